package probe_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// silent returns the address of a server that accepts connections and sends nothing.
func silent(t *testing.T) string {
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
			defer c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// A server that resets the connection, at once or in the middle of its answer, fails the
// probe without a wait for the timeout.
//
// Shows: F80
func TestF80_ResetIsFailure(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"AtOnce": "", "InTheBody": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
					c.(*net.TCPConn).SetLinger(0) // RST
					c.Close()
				}
			}()
			defer func() { l.Close(); <-done }()
			r := get(t, l.Addr().String(), "/")
			if got := failure(t, ask(t, r)); !strings.Contains(got, "reset") && !strings.Contains(got, "EOF") && !strings.Contains(got, "closed the connection") {
				t.Errorf("got %q", got) // "no answer within …" after a wait
			}
		})
	}
}

// A redirect to the machine's own services, or the cloud's, is not followed: a request
// there would fail or hang in this test.
//
// Shows: F80
func TestF80_RedirectToLinkLocalIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"http://169.254.169.254/latest/meta-data", "http://[::1]:1/", "https://localhost:1/", "//192.0.2.1/", "file:///etc/passwd"} {
		addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		})
		r := get(t, addr, "/")
		if err := well(ask(t, r)); err != nil {
			t.Errorf("%s: %v, want success without asking there", to, err)
		}
	}
}

// Shows: F80
func TestF80_TimeoutIsAHardWall(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-end:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/trickle", func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-r.Context().Done():
				return
			case <-tick.C:
				io.WriteString(w, "x")
				w.(http.Flusher).Flush()
			}
		}
	})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		mux.ServeHTTP(w, r)
	}))
	defer s.Close()
	defer close(end)
	for _, path := range []string{"/hang", "/trickle"} {
		asked.Store(0)
		r := get(t, s.URL, path)
		r.Probe.TimeoutSeconds = 1
		begin := time.Now()
		if got := failure(t, ask(t, r)); got != "no answer within 1s" && !strings.HasSuffix(got, "(Client.Timeout exceeded while awaiting headers)") {
			t.Errorf("%s: got %q", path, got)
		}
		if took := time.Since(begin); took < time.Second {
			t.Errorf("%s took %s, want at least 1s", path, took)
		}
		if n := asked.Load(); n > 1 { // 0 on a machine that was busy for so long
			t.Errorf("%s was asked %d times", path, n)
		}
	}
}

// Shows: F80
func TestF80_BodyIsReadUpToTenKiB(t *testing.T) {
	t.Parallel()
	sent := make(chan int64, 1) // one request
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 64<<10)
		var total int64
		for total < 1<<30 {
			n, err := w.Write(chunk)
			total += int64(n)
			if err != nil {
				break
			}
		}
		sent <- total
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	defer s.Close()
	if err := ask(t, get(t, s.URL, "/")); err != nil {
		t.Errorf("got %v, want success without the rest of the body", err)
	}
	if n := <-sent; n >= 1<<30 {
		t.Errorf("the server could send %d bytes", n)
	}
}

// fullPort returns a loopback port where connections hang: its queue is full and it never
// accepts.
func fullPort(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*unix.SockaddrInet4).Port
	for range 8 {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 200*time.Millisecond)
		if err != nil {
			return port
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("a listener with a full queue still accepts")
	return 0
}
