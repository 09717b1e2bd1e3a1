package probe_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/probe"
)

// get returns a request for path on the server at addr, which is a URL or host:port, by the
// pod's IP. Its timeout is long: a machine may be busy.
func get(t *testing.T, addr, path string) pod.ProbeRequest {
	t.Helper()
	if u, err := url.Parse(addr); err == nil && u.Host != "" {
		addr = u.Host
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return pod.ProbeRequest{PodIP: host, Probe: &v1.Probe{
		TimeoutSeconds: 30,
		ProbeHandler:   v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path, Port: intstr.FromInt(n)}},
	}}
}

func ask(t *testing.T, r pod.ProbeRequest) error {
	t.Helper()
	return probe.New(probe.Config{Version: "1.2"}).Probe(t.Context(), r)
}

// well returns err, but nil for a warning.
func well(err error) error {
	var warning *pod.ProbeWarning
	if errors.As(err, &warning) {
		return nil
	}
	return err
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// Shows: C-1.29.14
func TestC_1_29_14_StatusDecides(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		w.WriteHeader(code)
		io.WriteString(w, "body with a secret")
	})
	for _, code := range []int{200, 204, 299, 300, 304, 399} {
		err := ask(t, get(t, addr, fmt.Sprintf("/%d", code)))
		if well(err) != nil {
			t.Errorf("%d: %v, want success", code, err)
		}
		if warned := err != nil && strings.HasPrefix(err.Error(), "Probe terminated redirects, Response body: "); warned != (code >= 300) {
			t.Errorf("%d: %v", code, err)
		}
	}
	for _, code := range []int{400, 404, 500, 503} {
		want := fmt.Sprintf("HTTP probe failed with statuscode: %d", code)
		if got := failure(t, ask(t, get(t, addr, fmt.Sprintf("/%d", code)))); got != want {
			t.Errorf("got %q, want %q and nothing of the body", got, want)
		}
	}
}

// Shows: C-1.29.14
func TestC_1_29_14_Request(t *testing.T) {
	t.Parallel()
	seen := make(chan *http.Request, 1) // one probe, one request
	addr := serve(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r })
	tests := []struct {
		name    string
		path    string
		headers []v1.HTTPHeader
		want    map[string]string // by header, "" is absent; :host, :uri too
	}{
		{"Defaults", "/", nil, map[string]string{
			"User-Agent": "kube-probe/1.2", "Accept": "*/*", "Accept-Encoding": "", "Connection": "close", ":uri": "/"}},
		{"PathWithoutSlash", "healthz", nil, map[string]string{":uri": "/healthz"}},
		{"Query", "/h?a=b&c=%20d", nil, map[string]string{":uri": "/h?a=b&c=%20d"}},
		{"Given", "/", []v1.HTTPHeader{
			{Name: "user-agent", Value: "me"}, {Name: "Accept", Value: "text/plain"}, {Name: "X-A", Value: "1"}, {Name: "Host", Value: "web.example"}},
			map[string]string{"User-Agent": "me", "Accept": "text/plain", "X-A": "1", ":host": "web.example"}},
		{"Emptied", "/", []v1.HTTPHeader{{Name: "User-Agent"}, {Name: "Accept"}},
			map[string]string{"User-Agent": "", "Accept": ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := get(t, addr, tt.path)
			r.Probe.HTTPGet.HTTPHeaders = tt.headers
			if err := ask(t, r); err != nil {
				t.Fatal(err)
			}
			got := <-seen
			for name, want := range tt.want {
				have := strings.Join(got.Header.Values(name), ",")
				switch name {
				case ":host":
					have = got.Host
				case ":uri":
					have = got.RequestURI
				case "Connection":
					have = map[bool]string{true: "close"}[got.Close]
				}
				if have != want {
					t.Errorf("%s is %q, want %q", name, have, want)
				}
			}
		})
	}
	r := get(t, addr, "/")
	r.Probe.HTTPGet.HTTPHeaders = []v1.HTTPHeader{{Name: "X", Value: "secret\n"}}
	if got := trouble(t, ask(t, r)); strings.Contains(got, "secret") {
		t.Errorf("the header's value is in %q", got)
	}
}

// Shows: C-1.29.14
func TestC_1_29_14_NoProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	addr := serve(t, func(http.ResponseWriter, *http.Request) {})
	if err := ask(t, get(t, addr, "/")); err != nil {
		t.Error(err)
	}
}

// Shows: C-1.29.14
func TestC_1_29_14_LoopbackOnTheHostNetwork(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(http.ResponseWriter, *http.Request) {})
	r := get(t, addr, "/")
	r.PodIP = ""
	if err := ask(t, r); err != nil {
		t.Error(err)
	}
	r.PodIP, r.Probe.HTTPGet.Host = "192.0.2.1", "127.0.0.1" // the probe's own host comes first
	if err := ask(t, r); err != nil {
		t.Error(err)
	}
}

// Shows: C-1.29.14
func TestC_1_29_14_NamedPort(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(http.ResponseWriter, *http.Request) {})
	r := get(t, addr, "/")
	number := r.Probe.HTTPGet.Port.IntVal
	r.Container = &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: number}}}
	for _, text := range []string{"web", strconv.Itoa(int(number))} {
		r.Probe.HTTPGet.Port = intstr.FromString(text)
		if err := ask(t, r); err != nil {
			t.Errorf("port %q: %v", text, err)
		}
	}
}

// Shows: C-1.29.14
func TestC_1_29_14_Redirects(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/well", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/ill", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("u"), http.StatusFound)
	})
	mux.HandleFunc("/hop/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		if n > 1 {
			http.Redirect(w, r, fmt.Sprintf("/hop/%d", n-1), http.StatusFound)
		}
	})
	addr := serve(t, mux.ServeHTTP)
	other := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		w.WriteHeader(500)
	})
	// The same listener with another name counts as another host.
	otherHost := strings.Replace(other, "127.0.0.1", "localhost", 1)

	for _, path := range []string{"/to?u=/well", "/hop/10", "/to?u=" + url.QueryEscape(otherHost)} {
		if err := well(ask(t, get(t, addr, path))); err != nil {
			t.Errorf("%s: %v, want success", path, err)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("the other host was asked %d times, want never", n)
	}
	for path, want := range map[string]string{
		"/to?u=/ill":                      "HTTP probe failed with statuscode: 500",
		"/hop/20":                         `Get "/hop/10": stopped after 10 redirects`,
		"/to?u=" + url.QueryEscape(other): "HTTP probe failed with statuscode: 500", // same host, other port
	} {
		if got := failure(t, ask(t, get(t, addr, path))); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// Shows: C-1.29.14
func TestC_1_29_14_HTTPSIsNotVerified(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	r := get(t, s.URL, "/")
	r.Probe.HTTPGet.Scheme = v1.URISchemeHTTPS
	if err := ask(t, r); err != nil {
		t.Errorf("self-signed: %v, want success", err)
	}
	h2 := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			w.WriteHeader(500)
		}
	}))
	h2.EnableHTTP2 = true
	h2.StartTLS()
	defer h2.Close()
	r = get(t, h2.URL, "/")
	r.Probe.HTTPGet.Scheme = v1.URISchemeHTTPS
	if err := ask(t, r); err != nil {
		t.Errorf("HTTP/2: %v, want success", err)
	}
	plain := get(t, serve(t, func(http.ResponseWriter, *http.Request) {}), "/")
	plain.Probe.HTTPGet.Scheme = v1.URISchemeHTTPS
	if got := failure(t, ask(t, plain)); !strings.HasPrefix(got, "Get \"https://") || !strings.HasSuffix(got, "/\": http: server gave HTTP response to HTTPS client") {
		t.Errorf("plain server: got %q", got)
	}
}

// Shows: C-1.29.14
func TestC_1_29_14_TransportErrorsAreFailures(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	if got := failure(t, ask(t, get(t, gone.URL, "/?token=x"))); !strings.HasPrefix(got, "Get \""+gone.URL+"/?token=x\": dial tcp ") || !strings.HasSuffix(got, "connection refused") {
		t.Errorf("refused: got %q", got)
	}
	for name, tt := range map[string]struct{ answer, want string }{
		"Garbage":    {"secret secret secret\r\n\r\n", "Get URL: the server did not answer with HTTP"},
		"Silence":    {"", "Get URL: EOF"},
		"CutBody":    {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "the server closed the connection before its answer was complete"},
		"HugeHeader": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "Get URL: the server did not answer with HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := raw(t, tt.answer)
			want := strings.Replace(tt.want, "URL", `"http://`+addr+`/"`, 1)
			if got := failure(t, ask(t, get(t, addr, "/"))); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// raw sends answer on every connection, after it has read the request, and closes it.
func raw(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// TestHTTPGet_RedirectToAnotherHost_WarningHasTheBody: the kubelet's warning ends in the
// body of the response. Before it reaches an event, data of a container is cut and made
// printable: no control characters, and a limited length.
//
// Shows: C-1.29.14, F80
func TestHTTPGet_RedirectToAnotherHost_WarningHasTheBody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, want string }{
		"plain":   {"moved on\n", "moved on\n"},
		"empty":   {"", ""},
		"hostile": {"\x1b[2Ja\x00\xffb\u202e\u2028c", "\uFFFD[2Ja\uFFFD\uFFFDb\uFFFD\uFFFDc"},
		"long":    {strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<10) + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.Header().Set("Location", "http://elsewhere.invalid/")
				w.WriteHeader(http.StatusFound)
				io.WriteString(w, c.body)
			})
			err := ask(t, get(t, addr, "/"))
			warning, ok := errors.AsType[*pod.ProbeWarning](err)
			if !ok || warning.Message != "Probe terminated redirects, Response body: "+c.want {
				t.Errorf("got %q", err)
			}
			if n := asked.Load(); n != 1 { // the warning is the answer: no retry
				t.Errorf("the probe asked %d times", n)
			}
		})
	}
}

// TestHTTPGet_NoAnswerInTime_NamesTheURL: the message is net/http's, as in the kubelet.
func TestHTTPGet_NoAnswerInTime_NamesTheURL(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	addr := serve(t, func(http.ResponseWriter, *http.Request) { <-end })
	defer close(end)
	r := get(t, addr, "/healthz")
	r.Probe.TimeoutSeconds = 1
	want := "Get \"" + addr + "/healthz\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
	if got := failure(t, ask(t, r)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
