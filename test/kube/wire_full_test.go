//go:build full

package kube

import (
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nodectl/nodectl/test/cluster"
)

// wire forwards a node's connections to its API server, and can be cut.
type wire struct {
	listener net.Listener
	to       string // host:port of the API server
	wait     sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	open map[net.Conn]struct{}
	away bool // no connection gets through
}

// newWire makes a wire to the cluster's API server that listens at an address of host.
func newWire(t testing.TB, c *cluster.Cluster, host string) *wire {
	t.Helper()
	at, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	p := &wire{listener: l, to: at.Host, open: map[net.Conn]struct{}{}}
	p.wait.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut(true)
		p.wait.Wait()
	})
	return p
}

func (p *wire) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wait.Go(func() { p.carry(c) })
	}
}

// carry copies in both directions until either side ends or the wire is cut.
func (p *wire) carry(from net.Conn) {
	defer from.Close()
	if !p.add(from) {
		return
	}
	defer p.remove(from)
	to, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !p.add(to) {
		return
	}
	defer p.remove(to)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	})
	_, _ = io.Copy(from, to)
	_ = from.Close()
}

func (p *wire) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.away {
		p.open[c] = struct{}{}
	}
	return !p.away
}

func (p *wire) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// cut closes open connections, and with away lets none through until mend. It returns how
// many it closed.
func (p *wire) cut(away bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
	for c := range p.open {
		_ = c.Close()
	}
	return len(p.open)
}

// mend lets connections through again.
func (p *wire) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = false
}

// through writes the kubeconfig of a user of the cluster, with the wire's address, to
// a file in dir, in one step.
func (p *wire) through(t testing.TB, c *cluster.Cluster, from, to string) string {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), c.URL, "https://"+p.listener.Addr().String(), 1)
	if err := os.WriteFile(to+".new", []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
	return filepath.Clean(to)
}
