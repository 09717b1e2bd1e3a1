package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/nodectl/nodectl/test/wait"
)

// hungUp waits until the other side has closed c.
func hungUp(t *testing.T, what string, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(wait.Limit))
	_, err := io.Copy(io.Discard, c)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Errorf("%s: its connection is kept", what)
	}
}

// TestRefusal_BodyNeverComes_ConnectionIsClosed: no listener waits for the body of a refused
// request.
//
// Shows: D2
func TestRefusal_BodyNeverComes_ConnectionIsClosed(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Health = freePort(t)
	p := opened(t, cfg)
	const slow = "%s %s HTTP/1.1\r\nHost: n\r\nContent-Length: 10\r\n\r\n"
	var wg sync.WaitGroup
	for _, name := range []string{"", "unknown", "reader", "admin"} {
		for _, ask := range []string{"POST /run/ns/p/c", "POST /nothing", "GET /pods"} {
			method, path, _ := strings.Cut(ask, " ")
			c := p.secure(t, name)
			wg.Go(func() {
				_, _ = fmt.Fprintf(c, slow, method, path)
				hungUp(t, name+": "+ask, c)
			})
		}
	}
	p.log.Has(t, 1, `Listening listener="health port"`)
	for _, ask := range []string{"POST /healthz", "GET /healthz", "POST /pods"} {
		method, path, _ := strings.Cut(ask, " ")
		c, err := net.Dial("tcp", cfg.Health)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		wg.Go(func() {
			_, _ = fmt.Fprintf(c, slow, method, path)
			hungUp(t, "health port: "+ask, c)
		})
	}
	wg.Wait()
}

var freePorts atomic.Uint32

// freePort returns an address where no process listens, nor will by chance: no other test
// gets its IP.
func freePort(t *testing.T) string {
	t.Helper()
	n := freePorts.Add(1)
	l, err := net.Listen("tcp", fmt.Sprintf("127.1.%d.%d:0", n>>8&255, n&255))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestRefusal_HTTP2WindowNeverOpens_StreamIsClosed: the server cuts off a client that reads no
// byte of a refusal over HTTP/2.
//
// Shows: D2
func TestRefusal_HTTP2WindowNeverOpens_StreamIsClosed(t *testing.T) {
	t.Parallel()
	p := opened(t, testConfig(filepath.Join(root(t), "nodectl.sock")))
	cfg := p.tls(t, "")
	cfg.NextProtos = []string{"h2"}
	raw, err := net.Dial("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tlsClient(raw, cfg)
	_ = c.SetDeadline(time.Now().Add(wait.Limit))
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frame := func(kind, flags, stream byte, payload ...byte) {
		_, _ = c.Write(append([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, stream}, payload...))
	}
	frame(4, 0, 0, 0, 4, 0, 0, 0, 0)               // SETTINGS: a window of no byte
	frame(1, 5, 1, 0x82, 0x87, 0x84, 0x41, 1, 'n') // HEADERS, the end of both: GET https://n/
	for {
		head := make([]byte, 9)
		_, err := io.ReadFull(c, head)
		if err == nil {
			_, err = io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
		}
		if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
			t.Fatal("the stream is kept")
		}
		if err != nil || head[3] == 3 { // hung up, or RST_STREAM
			return
		}
	}
}

// pipes is a listener without a network, for synctest: its connections are net.Pipes.
type pipes struct {
	conns chan net.Conn // cap 0: dial sends, Accept receives
	ended chan struct{}
	end   func()
}

func newPipes() *pipes {
	ended := make(chan struct{})
	return &pipes{conns: make(chan net.Conn), ended: ended, end: sync.OnceFunc(func() { close(ended) })}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.end(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// served makes s answer on l with h until the test's end, and returns a client.
func (p *pipes) served(t *testing.T, s *Server, l net.Listener, version int, h http.HandlerFunc) *http.Client {
	ctx, end := context.WithCancel(t.Context())
	var protocols http.Protocols
	protocols.SetHTTP1(version == 1)
	protocols.SetUnencryptedHTTP2(version == 2)
	web := s.httpServer(ctx, h)
	web.Protocols = &protocols
	ended := make(chan error, 1) // one end
	go func() { ended <- s.serve(ctx, web, s.limitListener(l, "pipes", 10, 0)) }()
	transport := &http.Transport{DialContext: p.dial, Protocols: &protocols}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &http.Client{Transport: transport}
}

// A quiet log does not cut its reader off. HTTP/2 would end a stream whose write deadline
// passes, also while nothing is written.
//
// Shows: D2
func TestStreamWriter_QuietAfterAWrite_KeepsTheStream(t *testing.T) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP%d", version), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := New(Config{WriteTimeout: time.Minute}), newPipes()
				web := p.served(t, s, p, version, func(w http.ResponseWriter, _ *http.Request) {
					out := s.streamWriter(w)
					for _, line := range []string{"first\n", "second\n", "last\n"} {
						if _, err := io.WriteString(out, line); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Hour)
					}
					out.end()
				})
				a, err := web.Get("http://n/")
				if err != nil {
					t.Fatal(err)
				}
				defer a.Body.Close()
				if text, err := io.ReadAll(a.Body); err != nil || string(text) != "first\nsecond\nlast\n" || a.ProtoMajor != version {
					t.Errorf("HTTP/%d: %q, %v", a.ProtoMajor, text, err)
				}
			})
		})
	}
}

// exhausted is a listener that for a while fails as if no file descriptor were left.
type exhausted struct {
	*pipes
	until time.Time
	calls int
}

func (e *exhausted) Accept() (net.Conn, error) {
	if time.Now().Before(e.until) {
		e.calls++
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return e.pipes.Accept()
}

// A server that can accept nothing tries once a second, and answers once it can.
//
// Shows: F10
func TestServe_NoDescriptorLeft_AcceptsOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 600
		p := newPipes()
		l := &exhausted{pipes: p, until: time.Now().Add(seconds * time.Second)}
		web := p.served(t, New(Config{}), l, 1, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
		a, err := web.Get("http://n/") // it waits to be accepted
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		if text, err := io.ReadAll(a.Body); err != nil || string(text) != "here" {
			t.Errorf("%q, %v", text, err)
		}
		if l.calls < 2 || l.calls > seconds+10 { // the first ten come sooner
			t.Errorf("%d calls of Accept in %d seconds, want one a second", l.calls, seconds)
		}
		if late := time.Since(l.until); late > time.Second {
			t.Errorf("answered %s after there were descriptors again", late)
		}
	})
}

// slowAccess takes long to refuse a caller without a certificate.
type slowAccess struct {
	Access
	asked   chan struct{}
	release chan struct{}
}

func (d *slowAccess) Authenticate(r *http.Request) (Caller, bool, error) {
	if len(r.TLS.PeerCertificates) > 0 {
		return Caller{Name: "admin"}, true, nil
	}
	d.asked <- struct{}{}
	<-d.release
	return Caller{}, false, nil
}

func (d *slowAccess) Authorize(context.Context, Caller, string, ...string) (bool, string, error) {
	return true, "", nil
}

// TestRequests_AuthenticationPending_KnownCallersAreAnswered: while the authentication of a crowd
// of unknown callers is pending, a known caller is answered.
//
// Shows: D2
func TestRequests_AuthenticationPending_KnownCallersAreAnswered(t *testing.T) {
	t.Parallel()
	const places = 3
	d := &slowAccess{asked: make(chan struct{}), release: make(chan struct{})}
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Access, cfg.TLS = d, &TLS{Requests: places}
	p := opened(t, cfg)
	var conns []net.Conn
	for range places {
		c := p.secure(t, "")
		_, _ = io.WriteString(c, "GET /pods HTTP/1.1\r\nHost: n\r\n\r\n")
		conns = append(conns, c)
		<-d.asked
	}
	if code, text, _ := p.fetch(t, p.web(t, "admin"), http.MethodGet, "/healthz", nil); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	close(d.release)
	for _, c := range conns {
		if line, _ := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, " 401 ") {
			t.Errorf("%q", line)
		}
	}
}

// TestStreams_Error_HasNoStreamingURL: no error contains the URL of the runtime's streaming
// server, or its token.
//
// Shows: D1
func TestStreams_Error_HasNoStreamingURL(t *testing.T) {
	t.Parallel()
	where := streamingServer(t, func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = c.Close()
		}
	})
	where.Path = "/exec/s3cr3t-token"
	for _, broken := range []bool{false, true} {
		at := *where
		if broken {
			at.Host = freePort(t)
		}
		l := newFixture(t, func(cfg *Config) {
			of(*cfg).exec, of(*cfg).portForward = execTo(&at), forwardTo(&at)
		})
		for name, x := range l.clients(t, "admin", l.url("/exec/ns/p/c", "command", "true", "output", "1")) {
			err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			if err == nil || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("exec by %s: %v", name, err)
			}
		}
		code, text, _ := l.fetch(t, l.web(t, "admin"), http.MethodPost, "/portForward/ns/p", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"portforward.k8s.io"}})
		if code != http.StatusInternalServerError || strings.Contains(text, "s3cr3t") {
			t.Errorf("port-forward: %d %s", code, text)
		}
		if l.log.Count("s3cr3t") > 0 {
			t.Error("it is in the log")
		}
	}
}

// TestAudit_RefusedByLimitOrSetting_HasALine: a privileged call of an authenticated caller has
// a line also if all places are taken, and if debugging handlers are disabled.
//
// Shows: D2
func TestAudit_RefusedByLimitOrSetting_HasALine(t *testing.T) {
	t.Parallel()
	l := newFixture(t, func(c *Config) { c.NoDebugging = true })
	l.fetch(t, l.web(t, "admin"), http.MethodPost, "/exec/ns/p/c?command=sh&output=1", nil)
	l.stop()
	if l.log.Count(`msg="Privileged call"`) != 1 || l.log.Count("result=405") != 1 {
		t.Errorf("turned off: %s", l.log.String())
	}
	here, goOn := make(chan struct{}), make(chan struct{})
	l = newFixture(t, func(c *Config) {
		c.TLS = &TLS{Streams: 1}
		c.Containers = of(*c)
		of(*c).exec = func(context.Context, *v1.Pod, string, []string, Streams) (*url.URL, error) {
			close(here)
			<-goOn
			return nil, errors.New("no")
		}
	})
	var wg sync.WaitGroup
	first, second := l.web(t, "admin"), l.web(t, "admin")
	up := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}}
	wg.Go(func() { l.fetch(t, first, http.MethodPost, "/exec/ns/p/c?command=sh&output=1", up) })
	waitFor(t, here)
	code, _, _ := l.fetch(t, second, http.MethodPost, "/exec/ns/p/c?command=cat&output=1", up)
	close(goOn)
	wg.Wait()
	l.stop()
	if code != http.StatusTooManyRequests || l.log.Count(`msg="Privileged call"`) != 2 || l.log.Count("result=429") != 1 || l.log.Count("argv0=cat") != 1 {
		t.Errorf("no place: %d, %s", code, l.log.String())
	}
}
