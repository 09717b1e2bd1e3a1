package probe_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/probe"
)

func execHook(cmd ...string) pod.HookRequest {
	return pod.HookRequest{ContainerID: "c1", Handler: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: cmd}}}
}

// getHook returns a hook that requests path from the server at addr.
func getHook(t *testing.T, addr, path string) pod.HookRequest {
	t.Helper()
	r := get(t, addr, path)
	return pod.HookRequest{PodIP: r.PodIP, Handler: &v1.LifecycleHandler{HTTPGet: r.Probe.HTTPGet}}
}

func hookWith(ctx context.Context, r pod.HookRequest) error {
	return probe.New(probe.Config{Version: "1.2"}).Hook(ctx, r)
}

func hook(t *testing.T, r pod.HookRequest) error {
	t.Helper()
	return hookWith(t.Context(), r)
}

// Shows: C-1.24.1
func TestC_1_24_1_ExecHook(t *testing.T) {
	t.Parallel()
	e := &execer{output: "the secret"}
	p := probe.New(probe.Config{Exec: e})
	r := execHook("sh", "-c", "$(A)")
	r.Container = &v1.Container{Env: []v1.EnvVar{{Name: "A", Value: "1"}}}
	if err := p.Hook(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"sh", "-c", "$(A)"}, e.cmd); diff != "" {
		t.Errorf("a hook's command is not expanded: %s", diff)
	}
	if e.id != "c1" || e.timeout < 24*time.Hour {
		t.Errorf("asked for %q, within %s; want c1, without a limit", e.id, e.timeout)
	}
	e.exit = 3
	if err := p.Hook(t.Context(), r); err == nil || err.Error() != "command exited with code 3" {
		t.Errorf("got %v, want the exit code and nothing of the output", err)
	}
	e.exit, e.err = 0, errors.New("no such container")
	if err := p.Hook(t.Context(), r); !errors.Is(err, e.err) {
		t.Errorf("got %v, want the runtime's reason", err)
	}
	if e.calls != 3 {
		t.Errorf("asked %d times, want every hook run once", e.calls)
	}
}

// until is an Execer whose command runs until its context ends.
type until struct{ limit atomic.Int64 }

func (u *until) ExecSync(ctx context.Context, _ string, _ []string, timeout time.Duration) (int32, []byte, error) {
	u.limit.Store(int64(timeout))
	<-ctx.Done()
	return 0, nil, ctx.Err()
}

// Shows: C-1.24.1
func TestC_1_24_1_ExecHookEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := &until{}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour) // the only timeout
		defer cancel()
		begin := time.Now()
		err := probe.New(probe.Config{Exec: u}).Hook(ctx, execHook("sleep"))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's end", err)
		}
		if took := time.Since(begin); took != 3*time.Hour {
			t.Errorf("ended after %s, want 3h", took)
		}
		if got := time.Duration(u.limit.Load()); got != 3*time.Hour {
			t.Errorf("the runtime got the timeout %s, want 3h", got)
		}
	})
}

// Shows: C-1.24.2
func TestC_1_24_2_AnyAnswerIsSuccess(t *testing.T) {
	t.Parallel()
	seen := make(chan *http.Request, 1) // one hook, one request
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.WriteHeader(500)
		io.WriteString(w, "a secret")
	})
	r := getHook(t, addr, "/stop?now")
	r.Handler.HTTPGet.HTTPHeaders = []v1.HTTPHeader{{Name: "X-A", Value: "1"}, {Name: "Host", Value: "web.example"}}
	r.Container = &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: r.Handler.HTTPGet.Port.IntVal}}}
	r.Handler.HTTPGet.Port = intstr.FromString("web")
	if err := hook(t, r); err != nil {
		t.Fatalf("status 500: %v, want success", err)
	}
	got := <-seen
	if got.RequestURI != "/stop?now" || got.Host != "web.example" || got.Header.Get("X-A") != "1" || got.UserAgent() != "kube-lifecycle/1.2" {
		t.Errorf("asked for %s of %s with %v", got.RequestURI, got.Host, got.Header)
	}
	for name, answer := range map[string]string{
		"CutBody": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
		"Huge":    "HTTP/1.1 404 Not Found\r\n\r\n" + strings.Repeat("x", 1<<20),
	} {
		if err := hook(t, getHook(t, raw(t, answer), "/")); err != nil {
			t.Errorf("%s: %v, want success", name, err)
		}
	}
	if err := hook(t, getHook(t, raw(t, "a secret\r\n\r\n"), "/")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error that does not say what was answered", err)
	}
	r.Container = nil // its spec was lost
	if err := hook(t, r); err == nil || !strings.Contains(err.Error(), `"web"`) {
		t.Errorf("an unknown port: got %v", err)
	}
}

// An incomplete response at the end of the hook's time does not make the hook fail.
//
// Shows: C-1.24.2
func TestC_1_24_2_HTTPHookEndsWithItsContext(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	if err := probe.New(probe.Config{}).Hook(ctx, getHook(t, addr, "/slow")); err != nil {
		t.Errorf("answered, and never ended: %v, want success", err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("took %s, want the answer read to its end", took)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := probe.New(probe.Config{}).Hook(ctx, getHook(t, addr, "/mute")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's end", err)
	}
}

// Shows: C-1.24.2
func TestC_1_24_2_HTTPSFallsBackWithoutAuthorization(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	handle := func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }
	headers := []v1.HTTPHeader{{Name: "Authorization", Value: "Bearer secret"}, {Name: "X-A", Value: "1"}}

	r := getHook(t, serve(t, handle), "/")
	r.Handler.HTTPGet.Scheme, r.Handler.HTTPGet.HTTPHeaders = v1.URISchemeHTTPS, headers
	warned := ""
	r.Warn = func(reason, message string) { warned += reason + " " + message }
	if err := hook(t, r); err != nil {
		t.Fatalf("plain server: %v, want success", err)
	}
	if !strings.HasPrefix(warned, "LifecycleHTTPFallback request to HTTPS lifecycle hook 127.0.0.1:") {
		t.Errorf("warned %q", warned)
	}
	if h := <-seen; h.Get("Authorization") != "" || h.Get("X-A") != "1" {
		t.Errorf("sent in plain text: %v", h)
	}
	s := httptest.NewTLSServer(http.HandlerFunc(handle))
	defer s.Close()
	r = getHook(t, s.URL, "/")
	r.Handler.HTTPGet.Scheme, r.Handler.HTTPGet.HTTPHeaders = v1.URISchemeHTTPS, headers
	if err := hook(t, r); err != nil {
		t.Fatalf("self-signed: %v, want success", err)
	}
	if h := <-seen; h.Get("Authorization") != "Bearer secret" {
		t.Errorf("sent encrypted: %v, want the Authorization header", h)
	}
}

// Shows: C-1.24.3
func TestC_1_24_3_Sleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nap := func(seconds int64) pod.HookRequest {
			return pod.HookRequest{Handler: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: seconds}}}
		}
		for _, seconds := range []int64{0, 5} {
			begin := time.Now()
			if err := hook(t, nap(seconds)); err != nil || time.Since(begin) != time.Duration(seconds)*time.Second {
				t.Errorf("%d s: %v after %s", seconds, err, time.Since(begin))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begin := time.Now()
		err := probe.New(probe.Config{}).Hook(ctx, nap(3600))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 2*time.Second {
			t.Errorf("cut short: %v after %s, want the context's end after 2s", err, time.Since(begin))
		}
	})
}

// Shows: C-1.24.4
func TestC_1_24_4_UnknownHooksAreErrors(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]*v1.LifecycleHandler{
		"TCPSocket": {TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(1)}},
		"Nothing":   {},
		"Nil":       nil,
		"NoExecer":  {Exec: &v1.ExecAction{Command: []string{"true"}}},
		"Header":    {HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(1), HTTPHeaders: []v1.HTTPHeader{{Name: "X", Value: "secret\n"}}}},
	} {
		err := hook(t, pod.HookRequest{Handler: h})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want an error without values", name, err)
		}
	}
}
