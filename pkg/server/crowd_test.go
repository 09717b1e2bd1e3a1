package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/wait"
)

// TestF10_ACrowdIsHungUp: connections that ask for nothing are bounded as well;
// one too many is hung up at once, which is said once, and when others leave
// there is room again.
func TestF10_ACrowdIsHungUp(t *testing.T) {
	t.Parallel()
	log := new(said.Log)
	cfg := docs(filepath.Join(root(t), "nodectl.sock"))
	cfg.Connections, cfg.Log = 4, slog.New(slog.NewTextHandler(log, nil))
	web, _ := started(t, cfg)
	if code, _, _ := ask(t, web, http.MethodGet, "/v1/pods", ""); code != http.StatusOK {
		t.Fatalf("%d", code)
	}
	web.CloseIdleConnections()
	dial := func() net.Conn {
		t.Helper()
		c, err := Dial(t.Context(), cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	// asks reports whether a connection gets an answer, and not the end.
	asks := func(c net.Conn) bool {
		t.Helper()
		_, _ = io.WriteString(c, "GET /v1/pods HTTP/1.1\r\nHost: nodectl\r\n\r\n") // who is hung up is told by the read
		var answer [12]byte
		_, err := io.ReadFull(c, answer[:])
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			t.Fatal("neither an answer nor the end")
		}
		return err == nil && string(answer[:]) == "HTTP/1.1 200"
	}
	for range 2 {
		var crowd []net.Conn
		for len(crowd) < 4 {
			c := dial()
			defer c.Close()
			if !asks(c) { // one that has left is still counted
				continue
			}
			crowd = append(crowd, c)
		}
		for range 20 {
			late := dial()
			if asks(late) {
				t.Error("a fifth connection is answered")
			}
			_ = late.Close()
		}
		for _, c := range crowd {
			_ = c.Close()
		}
		for !func() bool { c := dial(); defer c.Close(); return asks(c) }() {
		}
	}
	if n := log.Count("Too many connections"); n < 1 || n > 2 {
		t.Errorf("said %d times in two crowds", n)
	}
}

// TestF10_LimitsFollowWhatMayBeOpened: a small process has few readers.
func TestF10_LimitsFollowWhatMayBeOpened(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		have Config
		want [3]int
	}{
		{Config{Connections: 32}, [3]int{32, 16, 8}},
		{Config{Connections: 4096}, [3]int{4096, 256, 64}},
		{Config{Connections: 32, Streams: 30}, [3]int{32, 30, 8}},
	} {
		got := New(c.have).cfg
		if now := [3]int{got.Connections, got.Streams, got.Requests}; now != c.want {
			t.Errorf("%v, want %v", now, c.want)
		}
	}
	if got := New(Config{}).cfg; got.Connections > descriptors()/2 || got.Connections > 512 || got.Connections < 1 {
		t.Errorf("%d connections of %d descriptors", got.Connections, descriptors())
	}
}
