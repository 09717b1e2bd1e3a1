package server

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nodectl/nodectl/test/wait"
)

// shouter listens on a port. It reads until the caller closes its side, sends the text back
// in capitals, and closes.
func shouter(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(wait.Limit))
				text, _ := io.ReadAll(c)
				_, _ = c.Write(bytes.ToUpper(text))
			})
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// dialers are kubectl's two dialers for port-forward.
func (l *fixture) dialers(t *testing.T, name, path string) map[string]httpstream.Dialer {
	t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(l.config(t, name))
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(l.url(path), l.config(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]httpstream.Dialer{
		"SPDY":   spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, l.url(path)),
		"tunnel": tunnel,
	}
}

// forwarded starts a client that forwards to a port of the pod, and returns the local port.
func forwarded(t *testing.T, d httpstream.Dialer, to int, errs io.Writer) (local uint16, ended <-chan error) {
	t.Helper()
	stop, ready, end := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewForStreaming(d, []string{fmt.Sprintf("0:%d", to)}, stop, ready, io.Discard, errs)
	if err != nil {
		t.Fatal(err)
	}
	go func() { end <- f.ForwardPorts() }()
	t.Cleanup(func() { close(stop) })
	select {
	case <-ready:
	case err := <-end:
		t.Fatal(err)
	case <-time.After(wait.Limit):
		t.Fatal("it does not forward")
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	return ports[0].Local, end
}

// shout sends text to a port and returns the answer until the connection is closed, or
// reset because the port is not open.
func shout(t *testing.T, port uint16, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) }
	_ = c.SetDeadline(time.Now().Add(wait.Limit))
	if _, err := io.WriteString(c, text); err != nil && !reset(err) {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(c)
	if err != nil && !reset(err) {
		t.Error(err)
	}
	return string(answer)
}

// TestC_1_40_9_PortForward: many connections over one session, each with its two halves,
// also after one to a port that is not open.
//
// Shows: C-1.40.9
func TestC_1_40_9_PortForward(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	to := shouter(t)
	for _, path := range []string{"/portForward/ns/p", "/portForward/ns/p/u"} {
		for name, d := range l.dialers(t, "admin", path) {
			local, _ := forwarded(t, d, to, io.Discard)
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					text := strings.Repeat(fmt.Sprintf("said by %d. ", i), 1000)
					if got := shout(t, local, text); got != strings.ToUpper(text) {
						t.Errorf("%s: %d bytes of %d", name, len(got), len(text))
					}
				})
			}
			wg.Wait()
		}
	}
	for name, d := range l.dialers(t, "admin", "/portForward/ns/p") {
		local, ended := forwarded(t, d, 1, io.Discard)
		if got := shout(t, local, "anybody?"); got != "" {
			t.Errorf("%s: %q", name, got)
		}
		if err := wait.Receive(t, "the end of "+name, ended); !errors.Is(err, portforward.ErrLostConnectionToPod) { // kubectl gives up
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPortForward_RuntimeFails_ReturnsTheError: the client gets the runtime's error every time.
//
// Shows: C-1.40.9
func TestPortForward_RuntimeFails_ReturnsTheError(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for name, d := range l.dialers(t, "admin", "/portForward/ns/p") {
		conn, _, err := d.Dial("portforward.k8s.io")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			h := http.Header{"Port": {"1"}, "Requestid": {fmt.Sprint(i)}, "Streamtype": {"error"}}
			errs, err1 := conn.CreateStream(h)
			h.Set("streamType", "data")
			data, err2 := conn.CreateStream(h)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(errs)
			if err != nil || !strings.Contains(string(text), "connection refused") {
				t.Errorf("%s, %d: %q, %v", name, i, text, err)
			}
			conn.RemoveStreams(errs, data)
		}
		_ = conn.Close()
	}
}

// TestPortForward_CallerOrRuntimeEnds_SessionEnds: the session ends with the caller, and with the
// runtime.
//
// Shows: C-1.40.9
func TestPortForward_CallerOrRuntimeEnds_SessionEnds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"SPDY", "tunnel"} {
		l := newFixture(t)
		conn, protocol, err := l.dialers(t, "admin", "/portForward/ns/p")[name].Dial("portforward.k8s.io")
		if err != nil || protocol != "portforward.k8s.io" {
			t.Fatalf("%s: %q, %v", name, protocol, err)
		}
		_ = conn.Close()
		l.log.Has(t, 1, "Privileged call") // logged when the session is over
		l = newFixture(t)
		conn, _, err = l.dialers(t, "admin", "/portForward/ns/p")[name].Dial("portforward.k8s.io")
		if err != nil {
			t.Fatal(err)
		}
		l.stop()
		wait.Receive(t, "the end of "+name+" without its server", conn.CloseChan())
	}
}

// TestC_1_40_9_PortForwardByWebSocket4: channels in pairs, as dashboards use them.
//
// Shows: C-1.40.9
func TestC_1_40_9_PortForwardByWebSocket4(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	to := shouter(t)
	d := websocket.Dialer{TLSClientConfig: l.tls(t, "admin"), Subprotocols: []string{"v4.channel.k8s.io"}}
	u := l.url("/portForward/ns/p", "port", fmt.Sprint(to))
	u.Scheme = "wss"
	c, _, err := d.DialContext(t.Context(), u.String(), nil) //nolint:bodyclose // as the library says
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(wait.Limit))
	for i := range 2 {
		_, m, err := c.ReadMessage()
		if err != nil || len(m) != 3 || int(m[0]) != i || int(binary.LittleEndian.Uint16(m[1:])) != to {
			t.Fatalf("%v, %v", m, err)
		}
	}
	if code, text, _ := l.fetch(t, l.web(t, "admin"), http.MethodGet, "/portForward/ns/p", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}); code != 400 || !strings.Contains(text, `"port" is required`) {
		t.Errorf("without ports: %d %s", code, text)
	}
	if code, _, _ := l.fetch(t, l.web(t, "admin"), http.MethodGet, "/portForward/ns/p?port=1", http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"SPDY/3.1+else.k8s.io"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="},
	}); code != 400 {
		t.Errorf("another tunnel: %d", code)
	}
}

// TestPortForward_NoRunningSandbox_IsRefused: a pod without a running sandbox gets no session.
//
// Shows: C-1.40.9
func TestPortForward_NoRunningSandbox_IsRefused(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	if _, err := l.rt.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: l.box}); err != nil {
		t.Fatal(err)
	}
	for name, d := range l.dialers(t, "admin", "/portForward/ns/p") {
		if _, _, err := d.Dial("portforward.k8s.io"); err == nil {
			t.Errorf("%s: all is well", name)
		}
	}
}

// TestD1_CVE_2018_1002105_NothingIsUsedAfterARefusal: the server neither forwards data that
// follows a refused upgrade to the runtime, nor reads it as another request.
//
// Shows: D1
func TestD1_CVE_2018_1002105_NothingIsUsedAfterARefusal(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 8)
	runtime := streamingServer(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		w.WriteHeader(http.StatusForbidden)
	})
	l := newFixture(t, func(c *Config) { of(*c).portForward = forwardTo(runtime) })
	c, err := net.Dial("tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	secure := tlsClient(c, l.tls(t, "admin"))
	_ = secure.SetDeadline(time.Now().Add(wait.Limit))
	_, _ = io.WriteString(secure, "POST /portForward/ns/p HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\nContent-Length: 0\r\n\r\n"+
		"POST /exec/any/thing HTTP/1.1\r\nHost: n\r\n\r\n")
	all, err := io.ReadAll(bufio.NewReader(secure))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 || !strings.Contains(string(all), "500") {
		t.Errorf("%d answers: %s", n, all)
	}
	if path := <-asked; path != "/" || len(asked) > 0 {
		t.Errorf("the runtime was asked for %s, and %d more", path, len(asked))
	}
}
