package dra

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// A driver ends each connection as soon as there is one. The node connects ever more seldom, and so waiting
// pods try ever more seldom.
func TestWatch_DriverEndsEachConnection_ConnectsEverMoreSeldom(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	socket, err := net.Listen("unix", m.socket("gpu"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	synctest.Test(t, func(t *testing.T) {
		var served sync.WaitGroup
		var dials atomic.Int64
		dial := func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			l, s := bufconn.Listen(1<<16), grpc.NewServer()
			served.Go(func() { _ = s.Serve(l) })
			served.Go(func() { time.Sleep(10 * time.Millisecond); s.Stop() })
			return l.DialContext(ctx)
		}
		c := New(Config{Dir: filepath.Join(m.dir, "claims"), Log: slog.New(slog.DiscardHandler), Boot: "boot-1", Dial: dial})
		if err := c.Register(t.Context(), driverName, m.socket("gpu"), known); err != nil {
			t.Fatal(err)
		}
		changes := 0
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
			select {
			case <-c.Changed():
				changes++
			case <-time.After(time.Second):
			}
		}
		if n := dials.Load(); n < 5 || n > 80 || changes > 80 {
			t.Errorf("%d connections and %d signals in two minutes, want 5 to 80", n, changes)
		}
		disconnect(c)
		served.Wait()
	})
}
