package source_etcd

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nodectl/nodectl/pkg/source/etcd"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

// plain and other are the etcds of all tests; other is another cluster. A test that restarts,
// restores or compacts one is not parallel.
var (
	plain = suite.Once(func(t testing.TB) *cluster.Etcd {
		return cluster.StartEtcd(t, cluster.EtcdOptions{Args: []string{"--max-request-bytes=33554432"}})
	})
	other = suite.Once(func(t testing.TB) *cluster.Etcd { return cluster.StartEtcd(t, cluster.EtcdOptions{}) })
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// mine are the keys below which every test of any etcd has its own.
const mine = "/nodes/mine/"

// own returns the prefix of a test's keys.
func own(t testing.TB) string { return mine + t.Name() + "/" }

// start returns the etcd of all tests, and the prefix of the test's own keys.
func start(t testing.TB) (e *cluster.Etcd, prefix string) {
	t.Helper()
	return plain(t), own(t)
}

// newSource returns the source of an etcd's keys below prefix.
func newSource(t testing.TB, prefix string, endpoints []string, change ...func(*etcd.Config)) *etcd.Source {
	t.Helper()
	c := etcd.Config{Endpoints: endpoints, Prefix: prefix, Parse: sourcetest.Parse("etcd", prefix)}
	for _, f := range change {
		f(&c)
	}
	s, err := etcd.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listen ranges over a new source.
func listen(t testing.TB, prefix string, endpoints []string, change ...func(*etcd.Config)) *sourcetest.Listener {
	t.Helper()
	return sourcetest.Listen(t, newSource(t, prefix, endpoints, change...))
}

// Here the network between fails, and connections can be counted.
func TestEtcdBehindANetworkConforms(t *testing.T) {
	e := plain(t)
	e.Put(t, "other", "x") // the client's own goroutines begin before the rules look
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		prefix := own(t)
		n := newNetwork(t, e.Endpoints[0])
		return sourcetest.Fixture{
			Source: newSource(t, prefix, []string{n.url}),
			Put:    func(name, text string) { e.Put(t, prefix+name, text) },
			Remove: func(name string) { e.Delete(t, prefix+name) },
			Break:  n.cut,
			Mend:   n.mend,
			Looked: n.looked,
		}
	})
}

// network forwards connections to an etcd, and can be cut.
type network struct {
	t       testing.TB
	url     string
	to      string
	l       net.Listener
	refused atomic.Int64
	mu      sync.Mutex // guards the fields below
	broken  bool
	conns   map[net.Conn]bool
	wg      sync.WaitGroup
}

func newNetwork(t testing.TB, endpoint string) *network {
	t.Helper()
	scheme, to, _ := strings.Cut(endpoint, "://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{t: t, url: scheme + "://" + l.Addr().String(), to: to, l: l, conns: map[net.Conn]bool{}}
	n.wg.Go(n.serve)
	t.Cleanup(func() {
		_ = l.Close()
		n.cut()
		n.wg.Wait()
	})
	return n
}

func (n *network) serve() {
	for {
		c, err := n.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n.hold(c) {
			n.wg.Go(func() { n.carry(c) })
		}
	}
}

// hold records a connection, and closes it if the network is cut.
func (n *network) hold(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broken {
		n.refused.Add(1)
		_ = c.Close()
		return false
	}
	n.conns[c] = true
	return true
}

func (n *network) carry(c net.Conn) {
	defer c.Close()
	far, err := net.Dial("tcp", n.to)
	if err != nil || !n.hold(far) {
		return
	}
	defer far.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(far, c) // ends when either side closes
		_ = far.Close()
	})
	_, _ = io.Copy(c, far)
	_ = c.Close()
	wg.Wait()
}

// cut closes all connections and refuses new ones.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = true
	for c := range n.conns {
		_ = c.Close()
	}
	clear(n.conns)
}

func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = false
}

// looked returns after three more connections were refused.
func (n *network) looked() {
	n.t.Helper()
	want := n.refused.Load() + 3
	wait.True(n.t, "three more connections are refused", func() bool { return n.refused.Load() >= want })
}
