// Package apisource runs the api source against a real kube-apiserver and etcd.
//
// The tests of the first tier share a server, each with its own node and pod names; those of
// the full tier start theirs.
//
// Each test compares the source's pods with another client's reading of the API server.
package apisource

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/apiserver"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// rejects is the annotation that makes a pod rejected.
const rejects = "test/reject"

// newReader returns the reader of an API server as commands make it.
func newReader(t testing.TB, kubeconfig string, log *slog.Logger) *apiclient.Reader {
	t.Helper()
	client, err := apiclient.Open(apiclient.Config{File: kubeconfig, UserAgent: "nodectl/test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return apiclient.NewReader(apiclient.ReaderConfig{Client: client, Log: log})
}

// newSource returns the source as commands make it.
func newSource(t testing.TB, kubeconfig, node string, change ...func(*apiserver.Config)) *apiserver.Source {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg := apiserver.Config{
		Kubeconfig: kubeconfig, Reader: newReader(t, kubeconfig, log), Node: node, Log: log,
		Spec: func(p *v1.Pod, file string) (*pod.Spec, []pod.Problem) {
			if why, ok := p.Annotations[rejects]; ok {
				return nil, []pod.Problem{{Msg: why}}
			}
			return manifest.FromAPI(p, manifest.Options{Source: "api", Location: kubeconfig, File: file, Node: node})
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := apiserver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ops reads a source through podconfig. The returned function waits for an op, as "OP name",
// and returns its pod. It skips the ops in passed; any other op fails the test. Without a
// want, it waits for the first op of passed.
func ops(t *testing.T, s source.Source) func(want string, passed ...string) *pod.Spec {
	ctx, leave := context.WithCancel(context.Background())
	batches := make(chan podconfig.Batch) // cap 0: the reader sends, the test receives
	var reader sync.WaitGroup
	reader.Go(func() {
		for b := range podconfig.New(podconfig.Config{Sources: []source.Source{s}}).Batches(ctx) {
			select {
			case batches <- b:
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { leave(); reader.Wait() })
	var waiting []podconfig.PodUpdate // single pods, not yet looked at
	return func(want string, passed ...string) *pod.Spec {
		t.Helper()
		deadline := time.After(wait.Limit)
		for {
			for len(waiting) > 0 {
				u := waiting[0]
				waiting = waiting[1:]
				switch got := fmt.Sprintf("%s %s", u.Op, u.Pods[0].Name); {
				case got == want, want == "" && slices.Contains(passed, got):
					return u.Pods[0]
				case !slices.Contains(passed, got):
					t.Errorf("%q, want %q", got, want)
				}
			}
			select {
			case b := <-batches:
				for _, u := range b.Updates {
					for _, p := range u.Pods {
						waiting = append(waiting, podconfig.PodUpdate{Op: u.Op, Pods: []*pod.Spec{p}})
					}
				}
			case <-deadline:
				t.Fatalf("no %q", want)
			}
		}
	}
}

// write replaces a file in one step.
func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// proxy stands before an API server and can answer in its place. It authenticates to the
// server as the administrator.
type proxy struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
}

func newProxy(t testing.TB, c *cluster.Cluster) *proxy {
	t.Helper()
	config := c.Config(t, c.AdminKubeconfig(t))
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: tls}
	behind := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	p := &proxy{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		answer := p.answer
		p.mu.Unlock()
		if answer == nil || !answer(w, r) {
			behind.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() { p.CloseClientConnections(); p.Close(); transport.CloseIdleConnections() })
	return p
}

// says replaces the answer and cuts the requests under way.
func (p *proxy) says(answer func(w http.ResponseWriter, r *http.Request) bool) {
	p.mu.Lock()
	p.answer = answer
	p.mu.Unlock()
	p.CloseClientConnections()
}

// kubeconfig returns a file that names the proxy as server.
func (p *proxy) kubeconfig(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k, cluster: {server: %q}}]}", p.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// fixture is the source suite's fixture: manifests become pods of their own node.
func fixture(t *testing.T, c *cluster.Cluster, node string) sourcetest.Fixture {
	p := newProxy(t, c)
	manifests, have := sourcetest.Document{}, map[string]*v1.Pod{}
	show := func() {
		want, garbage := map[string]*v1.Pod{}, false
		for _, line := range strings.Split(manifests.Text(), "\n") {
			word, rest, _ := strings.Cut(line, " ")
			name, content, _ := strings.Cut(rest, " ")
			is := cluster.Pod(node, name)
			switch word {
			case "pod":
				is.Annotations = map[string]string{"content": content}
				want[name] = is
			case "reject":
				is.Annotations = map[string]string{rejects: content}
				want[name] = is
			case "", "#", "object", "workload":
			default:
				garbage = true
			}
		}
		if garbage {
			p.says(func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, "<html>Please log in</html>")
				return true
			})
			return
		}
		for name, is := range want {
			switch was := have[name]; {
			case was == nil:
				c.CreatePod(t, is)
			case !maps.Equal(was.Annotations, is.Annotations):
				c.PatchPod(t, "default", name, annotate(was, is))
			}
		}
		for name := range have {
			if want[name] == nil {
				c.DeletePod(t, "default", name, 0)
			}
		}
		have = want
		p.mu.Lock()
		broken := p.answer != nil
		p.mu.Unlock()
		if broken {
			p.says(nil)
		}
	}
	t.Cleanup(func() {
		for name := range have {
			c.DeletePod(t, "default", name, 0)
		}
	})
	return sourcetest.Fixture{
		Source: newSource(t, p.kubeconfig(t), node),
		Put:    func(name, text string) { manifests[name] = text; show() },
		Remove: func(name string) { delete(manifests, name); show() },
		Break: func() {
			p.says(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			})
		},
		Mend:     show,
		PodsOnly: true,
	}
}

// annotate returns the patch that replaces a pod's annotations.
func annotate(was, is *v1.Pod) string {
	var parts []string
	for k := range was.Annotations {
		if _, ok := is.Annotations[k]; !ok {
			parts = append(parts, fmt.Sprintf("%q: null", k))
		}
	}
	for k, v := range is.Annotations {
		parts = append(parts, fmt.Sprintf("%q: %q", k, v))
	}
	return fmt.Sprintf(`{"metadata": {"annotations": {%s}}}`, strings.Join(parts, ", "))
}
