//go:build linux

package support

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outside is the environment of a node: a directory, and the targets of probes. It is outside
// the node's synctest bubble.
type outside struct {
	dir, root string
	log       *lines
	fills     []string // names in manifests, each with the text that replaces it
	tcpAt     string   // where tcp listens

	seen struct {
		sync.Mutex
		by map[string][]string // requests, by the kind of server
	}
}

// newOutside starts the servers that text names. No other server has a port.
func newOutside(t *testing.T, text string) *outside {
	o := &outside{dir: t.TempDir(), log: &lines{}}
	o.root = filepath.Join(o.dir, "root")
	o.fills = []string{"$DIR", o.dir}
	t.Cleanup(func() { unmount(t, o.dir) })
	for name, content := range map[string]string{"resolv.conf": "nameserver 192.0.2.53\nsearch node.test\n", "seccomp/p.json": "{}"} {
		path := filepath.Join(o.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(text, "$HTTP") {
		o.web(t)
	}
	if strings.Contains(text, "$TCP") {
		o.tcp(t)
	}
	if strings.Contains(text, "$GRPC") {
		o.grpc(t)
	}
	return o
}

// fill puts values in place of names.
func (o *outside) fill(text string) string { return strings.NewReplacer(o.fills...).Replace(text) }

// web is a server that records its requests, with TLS on a second port.
func (o *outside) web(t *testing.T) {
	note := func(w http.ResponseWriter, r *http.Request) {
		at := r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
		host, _, _ := net.SplitHostPort(at)
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		o.note("http", scheme+" "+host+" "+r.URL.Path+" "+r.Header.Get("X-Who"))
	}
	for _, name := range []string{"$HTTPS", "$HTTP"} { // the longer name first
		s := httptest.NewUnstartedServer(http.HandlerFunc(note))
		l, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		s.Listener.Close()
		s.Listener = l
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that use the wrong port
		if name == "$HTTPS" {
			s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		o.fills = append(o.fills, ports(name, l)...)
	}
}

// tcp is a server that records its clients, one by one, and each before it closes the
// connection.
func (o *outside) tcp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	o.tcpAt = l.Addr().String()
	o.fills = append(o.fills, ports("$TCP", l)...)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			o.note("tcp", "a connection")
			c.Close()
		}
	})
}

// came says whether a client connected to tcp. It connects once more itself: when that
// connection is closed, all earlier ones are noted.
func (o *outside) came() error {
	c, err := net.Dial("tcp", o.tcpAt)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.ReadAll(c); err != nil {
		return err
	}
	return holds(len(o.asked("tcp")) > 1, "no connection came")
}

// grpc is a server whose service "shop" is well, and nothing else.
func (o *outside) grpc(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		o.note("grpc", q.(*healthpb.HealthCheckRequest).GetService())
		return next(ctx, q)
	}))
	h := health.NewServer()
	h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	h.SetServingStatus("shop", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, h)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	o.fills = append(o.fills, ports("$GRPC", l)...)
}

// ports returns the name of a port with the number that replaces it, in quotes and without.
func ports(name string, l net.Listener) []string {
	n := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	return []string{`"` + name + `"`, n, name, n}
}

// note keeps a request.
func (o *outside) note(server, request string) {
	o.seen.Lock()
	defer o.seen.Unlock()
	if o.seen.by == nil {
		o.seen.by = map[string][]string{}
	}
	o.seen.by[server] = append(o.seen.by[server], request)
}

// asked returns the requests to a server.
func (o *outside) asked(server string) []string {
	o.seen.Lock()
	defer o.seen.Unlock()
	return slices.Clone(o.seen.by[server])
}

func v1LabelSelector(s *metav1.LabelSelector) string { return metav1.FormatLabelSelector(s) }
