package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/wait"
)

// secure connects to the TLS port.
func (p *port) secure(t *testing.T, name string) *tls.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(wait.Limit))
	return tlsClient(c, p.tls(t, name))
}

// TestTLS_DefaultMinimum_IsTLS13: older versions of TLS need configuration.
//
// Shows: D2
func TestTLS_DefaultMinimum_IsTLS13(t *testing.T) {
	t.Parallel()
	p := opened(t, testConfig(filepath.Join(root(t), "nodectl.sock")))
	old := p.tls(t, "admin")
	old.MaxVersion = tls.VersionTLS12
	c, err := tls.Dial("tcp", p.address, old)
	if err == nil {
		_ = c.Close()
		t.Error("TLS 1.2 is spoken")
	}
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.TLS = &TLS{MinVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}
	p = opened(t, cfg)
	old = p.tls(t, "admin")
	old.MaxVersion = tls.VersionTLS12
	old.NextProtos = []string{"h2", "http/1.1"}
	c, err = tls.Dial("tcp", p.address, old)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s := c.ConnectionState(); s.Version != tls.VersionTLS12 || s.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 || s.NegotiatedProtocol != "http/1.1" {
		t.Errorf("%+v", s)
	}
}

// TestD2_HTTP2: the server supports HTTP/2, with a limit of streams.
//
// Shows: D2
func TestD2_HTTP2(t *testing.T) {
	t.Parallel()
	p := opened(t, testConfig(filepath.Join(root(t), "nodectl.sock")))
	cfg := p.tls(t, "admin")
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}}
	t.Cleanup(web.CloseIdleConnections)
	a, err := web.Get("https://" + p.address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if text, _ := io.ReadAll(a.Body); a.ProtoMajor != 2 || string(text) != "ok" {
		t.Errorf("HTTP/%d: %s", a.ProtoMajor, text)
	}
	if n := New(Config{}).httpServer(t.Context(), nil).HTTP2.MaxConcurrentStreams; n != 100 {
		t.Errorf("%d streams", n)
	}
	a, err = web.Post("https://"+p.address+"/exec/ns/p/c?command=x&output=1", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusNotImplemented && a.StatusCode != http.StatusBadRequest {
		t.Errorf("exec: %d", a.StatusCode)
	}
}

// TestTLS_SlowOrLargeRequest_IsRefused: the server does not wait for half a header, and does not
// read large headers and bodies.
//
// Shows: D2
func TestTLS_SlowOrLargeRequest_IsRefused(t *testing.T) {
	t.Parallel()
	p := opened(t, testConfig(filepath.Join(root(t), "nodectl.sock")))
	for _, n := range []int{20 << 10, 64 << 10} {
		c := p.secure(t, "admin")
		_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: n\r\nX: "+strings.Repeat("x", n)+"\r\n\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		if tooLarge := strings.Contains(line, " 431 "); tooLarge != (n > 32<<10) {
			t.Errorf("a header of %d bytes: %q", n, line)
		}
	}
	for body, code := range map[string]string{"Content-Length: 100000000": " 413 ", "Transfer-Encoding: chunked": " 413 "} {
		c := p.secure(t, "admin")
		_, _ = io.WriteString(c, "GET /pods HTTP/1.1\r\nHost: n\r\n"+body+"\r\n\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		if !strings.Contains(line, code) {
			t.Errorf("%s: %q", body, line)
		}
	}
	c := p.secure(t, "admin")
	_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: n\r\n")
	begin := time.Now()
	hungUp(t, "half a header", c)
	if took := time.Since(begin); took < 3*time.Second {
		t.Errorf("half a header: hung up after %s", took)
	}
}

// TestTLS_ConnectionsAboveALimit_AreClosed: connections above a peer's limit are closed, which
// is logged once; there is room again when others leave.
//
// Shows: D2
func TestTLS_ConnectionsAboveALimit_AreClosed(t *testing.T) {
	t.Parallel()
	for _, limits := range []TLS{{PerPeer: 3}, {Connections: 3, PerPeer: 100}} {
		cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
		cfg.TLS = &limits
		perPeer := limits.Connections == 0
		p := opened(t, cfg)
		asks := func(c *tls.Conn) bool {
			_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n")
			line, _ := bufio.NewReader(c).ReadString('\n')
			return strings.Contains(line, " 200 ")
		}
		var crowd []*tls.Conn
		for range 3 {
			c := p.secure(t, "admin")
			if err := c.Handshake(); err != nil {
				t.Fatal("no room for three")
			}
			crowd = append(crowd, c)
		}
		for range 5 {
			if asks(p.secure(t, "admin")) {
				t.Error("a fourth connection is answered")
			}
		}
		if perPeer { // an authorized caller no longer counts for its address
			for _, c := range crowd {
				if !asks(c) {
					t.Error("a connection is not answered")
				}
			}
			for range 5 {
				if !asks(p.secure(t, "admin")) {
					t.Error("the connections of known callers count for their address")
				}
			}
			continue
		}
		_ = crowd[0].Close()
		wait.True(t, "there is room again", func() bool { return asks(p.secure(t, "admin")) })
		if n := p.log.Count("Too many connections"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	}
}

// TestTLS_RequestAboveTheLimit_Gets429: requests above the limit get 429; the socket has its
// own limit.
//
// Shows: D2
func TestTLS_RequestAboveTheLimit_Gets429(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	here, goOn := make(chan struct{}), make(chan struct{})
	first := true
	var mu sync.Mutex
	of(cfg).pods = func() []v1.Pod {
		mu.Lock()
		wait := first
		first = false
		mu.Unlock()
		if wait {
			here <- struct{}{}
			<-goOn
		}
		return nil
	}
	cfg.TLS = &TLS{Requests: 1}
	p := opened(t, cfg)
	done := make(chan int, 1)
	web := p.web(t, "admin")
	go func() {
		a, err := web.Get("https://" + p.address + "/pods")
		if err != nil {
			done <- 0
			return
		}
		_ = a.Body.Close()
		done <- a.StatusCode
	}()
	waitFor(t, here)
	code, _, header := p.fetch(t, p.web(t, "admin"), http.MethodGet, "/pods", nil)
	if code != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
		t.Errorf("%d %v", code, header)
	}
	if code, _, _ := p.fetch(t, p.web(t, ""), http.MethodGet, "/pods", nil); code != http.StatusUnauthorized {
		t.Errorf("without credentials: %d", code)
	}
	if code, _, _ := full(t, client(cfg.Socket), http.MethodGet, "/pods", ""); code != http.StatusOK {
		t.Errorf("on the socket: %d", code)
	}
	close(goOn)
	if code := <-done; code != http.StatusOK {
		t.Errorf("the first: %d", code)
	}
}

// A caller that may read does not read its answers: it has half of the places for requests,
// and the API server has some.
//
// Shows: D2
func TestRequests_OneCallerReadsNoAnswers_OthersAreAnswered(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	const half = 2
	here, goOn := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	cfg.Pods.(*answers).pods = func() []v1.Pod {
		if calls.Add(1) <= half {
			here <- struct{}{}
			<-goOn
		}
		return nil
	}
	cfg.TLS = &TLS{Requests: 2 * half}
	p := opened(t, cfg)
	var held sync.WaitGroup
	for range half {
		web := p.web(t, "reader")
		held.Go(func() {
			if a, err := web.Get("https://" + p.address + "/pods"); err == nil {
				_ = a.Body.Close()
			}
		})
		waitFor(t, here)
	}
	if code, _, _ := p.fetch(t, p.web(t, "reader"), http.MethodGet, "/pods", nil); code != http.StatusTooManyRequests {
		t.Errorf("one more request of the caller: %d", code)
	}
	if code, _, _ := p.fetch(t, p.web(t, "admin"), http.MethodGet, "/pods", nil); code != http.StatusOK {
		t.Errorf("a request of another caller: %d", code)
	}
	close(goOn)
	held.Wait()
	if code, _, _ := p.fetch(t, p.web(t, "reader"), http.MethodGet, "/pods", nil); code != http.StatusOK {
		t.Errorf("the caller's places are not given back: %d", code)
	}
}

// TestServe_PortInUse_IsLoggedOnce: the server tries each second, and logs
// that once.
//
// Shows: C-1.40.1
func TestServe_PortInUse_IsLoggedOnce(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	synctest.Test(t, func(t *testing.T) {
		log, served := new(said.Log), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go New(Config{Log: log.Logger()}).listenAndServe(ctx, "a port", other.Addr().String(), func(net.Listener) error {
			close(served)
			<-ctx.Done()
			return nil
		})
		time.Sleep(10*retryInterval + retryInterval/2)
		if n := log.Count("Failed to listen; retrying"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		_ = other.Close()
		time.Sleep(retryInterval)
		synctest.Wait()
		select {
		case <-served:
		default:
			t.Errorf("the server does not listen %s after the port is free:\n%s", retryInterval, log.String())
		}
		cancel()
	})
}

// TestServe_PortInUse_ListensOnceItIsFree: the server listens once the port is free, and closes it
// when it ends.
//
// Shows: C-1.40.1
func TestServe_PortInUse_ListensOnceItIsFree(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	log := new(said.Log)
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Log = log.Logger()
	bound := make(chan string, 1)
	cfg.TLS = &TLS{Address: address, Bound: func(a string) { bound <- a }, Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }}
	cfg.Health = "127.0.0.1:0"
	_, stop := started(t, cfg) // the socket answers meanwhile
	log.Has(t, 1, "Failed to listen; retrying")
	_ = other.Close()
	wait.Receive(t, "another try to listen", bound)
	stop()
	if c, err := net.Dial("tcp", address); err == nil {
		_ = c.Close()
		t.Error("the port is open without its server")
	}
}

// TestServe_NoTLS_ListensOnlyOnTheSocket: without TLS the server listens on the socket only.
//
// Shows: D1
func TestServe_NoTLS_ListensOnlyOnTheSocket(t *testing.T) {
	t.Parallel()
	log := new(said.Log)
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Log = log.Logger()
	web, stop := started(t, cfg)
	if code, _, _ := full(t, web, http.MethodGet, "/healthz", ""); code != http.StatusOK {
		t.Errorf("%d", code)
	}
	stop()
	if log.Count("Listening") > 0 {
		t.Error("it listens")
	}
}

// TestC_1_40_5_Health: health routes are on the socket, on the TLS port, and on a health
// port that has no other route and hides why a check fails.
//
// Shows: C-1.40.5
func TestC_1_40_5_Health(t *testing.T) {
	t.Parallel()
	log := new(said.Log)
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Log = log.Logger()
	cfg.Health = freePort(t)
	var mu sync.Mutex
	var sick error
	cfg.Checks = map[string]func(context.Context) error{"syncloop": func(context.Context) error { mu.Lock(); defer mu.Unlock(); return sick }}
	web, _ := started(t, cfg)
	get := func(path string) (int, string) { c, s, _ := full(t, web, http.MethodGet, path, ""); return c, s }
	for path, want := range map[string]string{
		"/healthz": "ok", "/livez": "ok", "/readyz": "ok", "/healthz/": "ok", "/healthz/ping": "ok", "/healthz/syncloop": "ok",
		"/healthz?verbose":                   "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n",
		"/readyz?verbose=1&exclude=syncloop": "[+]ping ok\n[+]log ok\n[+]syncloop excluded: ok\nreadyz check passed\n",
	} {
		if code, text := get(path); code != 200 || text != want {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	mu.Lock()
	sick = fmt.Errorf("no round for a minute")
	mu.Unlock()
	if code, text := get("/healthz"); code != 500 || text != "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed" {
		t.Errorf("%d %q", code, text)
	}
	if code, text := get("/healthz/syncloop"); code != 500 || text != "internal server error: no round for a minute" {
		t.Errorf("%d %q", code, text)
	}
	if code, _ := get("/healthz/other"); code != 404 {
		t.Errorf("%d", code)
	}
	log.Has(t, 1, `Listening listener="health port"`)
	a, err := http.Get("http://" + cfg.Health + "/healthz/ping")
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Body.Close()
	if a.StatusCode != 200 {
		t.Errorf("health port: %d", a.StatusCode)
	}
	if a, err = http.Get("http://" + cfg.Health + "/healthz/syncloop"); err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(a.Body)
	_ = a.Body.Close()
	if a.StatusCode != 500 || string(text) != "internal server error: reason withheld" {
		t.Errorf("health port: %d %q", a.StatusCode, text)
	}
	for _, it := range routes() {
		if it.health {
			continue
		}
		r, err := http.NewRequestWithContext(t.Context(), it.methods[0], "http://"+cfg.Health+concrete(it.path), nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		if a.StatusCode != http.StatusNotFound {
			t.Errorf("%s on the health port: %d", it.path, a.StatusCode)
		}
	}
}

// TestTLS_DebuggingDisabled_Gets405: the setting applies to the TLS port only.
//
// Shows: C-1.40.11
func TestTLS_DebuggingDisabled_Gets405(t *testing.T) {
	t.Parallel()
	l := newFixture(t, func(c *Config) { c.NoDebugging = true })
	web := l.web(t, "admin")
	for _, it := range routes() {
		if !it.kubelet {
			continue
		}
		code, text, _ := l.fetch(t, web, it.methods[0], concrete(it.path), nil)
		if off := code == 405 && text == "Debug endpoints are disabled."; off != it.debugging {
			t.Errorf("%s: %d %s", it.path, code, text)
		}
	}
	if code, text, _ := full(t, client(l.cfg.Socket), http.MethodPost, "/run/ns/p/c?cmd=true", ""); code != 200 {
		t.Errorf("on the socket: %d %s", code, text)
	}
}
