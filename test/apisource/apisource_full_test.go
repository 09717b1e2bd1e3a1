//go:build full

package apisource

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// The server answers 410 Gone in its own way to a watch that starts before everything it
// keeps; the list that follows has all changes.
//
// Shows: F71
func TestF71_Gone(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "was"))
	c.Compact(t)
	c.APIServer.Restart(t) // a running server has state that etcd does not have
	p := newProxy(t, c)
	var watches, lists atomic.Int32
	p.says(func(_ http.ResponseWriter, r *http.Request) bool {
		query := r.URL.Query()
		if !query.Has("watch") {
			lists.Add(1)
			return false
		}
		if watches.Add(1) == 1 {
			c.DeletePod(t, "default", "was", 0)
			c.CreatePod(t, cluster.Pod("n1", "is"))
			query.Set("resourceVersion", "1")
			r.URL.RawQuery = query.Encode()
		}
		return false
	})
	l := sourcetest.Listen(t, newSource(t, p.kubeconfig(t), "n1"))
	l.Set().Holds(t, "was")
	w := l.Set()
	w.Holds(t, "is")
	w.Names(t, "is", "was")
	if lists.Load() < 2 {
		t.Error("the set did not come from a list")
	}
}

// etcd is restored from a backup while the agent runs. Pods created since then are removed,
// after a second list confirms it; the others are not touched. The source sees later changes
// although their resource versions are old.
//
// Shows: F71
func TestF71_RestoredFromBackup(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "kept"))
	backup := c.Snapshot(t)
	for i := range 20 {
		c.PatchPod(t, "default", "kept", fmt.Sprintf(`{"metadata": {"annotations": {"n": "%d"}}}`, i))
	}
	c.CreatePod(t, cluster.Pod("n1", "new"))
	l := sourcetest.Listen(t, newSource(t, c.AdminKubeconfig(t), "n1"))
	l.Set().Holds(t, "kept", "new")
	c.Restore(t, backup)
	warned := false
	w := l.Next()
	for ; w.Err != nil; w = l.Next() {
		warned = warned || strings.Contains(w.Err.Error(), "restored from a backup")
	}
	if !warned {
		t.Error("the source says nothing of the past")
	}
	w.Holds(t, "kept")
	w.Names(t, "kept", "new")
	c.CreatePod(t, cluster.Pod("n1", "new"))
	l.Set().Holds(t, "kept", "new")
	c.DeletePod(t, "default", "kept", 0)
	for w := l.Set(); len(w.Contents()) != 1; w = l.Set() {
	}
}

// A client certificate expires and is replaced in its files; a token is revoked and replaced
// in its file. Neither needs a restart, and no pod is removed.
//
// Shows: F72
func TestF72_ExpiredCertificateAndToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, token := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "token")
	write(t, tokens, "first,tom,1\n")
	write(t, token, "first")
	c := cluster.Start(t, cluster.APIServerArgs("--token-auth-file="+tokens))
	c.CreatePod(t, cluster.Pod("n1", "one"))

	byToken := c.AdminKubeconfig(t)
	text, err := os.ReadFile(byToken)
	if err != nil {
		t.Fatal(err)
	}
	byToken = filepath.Join(dir, "kubeconfig")
	head, _, found := strings.Cut(string(text), "users:")
	if !found {
		t.Fatalf("kubeconfig %s", text)
	}
	write(t, byToken, head+"users: [{name: admin, user: {tokenFile: token}}]\n")
	holder := sourcetest.Listen(t, newSource(t, byToken, "n1"))
	holder.Set().Holds(t, "one")
	write(t, tokens, "second,tom,1\n")
	c.APIServer.Restart(t)
	for !strings.Contains(holder.Error().Error(), "HTTP 401: the server does not accept our credentials") {
	}
	write(t, token, "second")
	settled(holder).Holds(t, "one")

	byCertificate := c.Kubeconfig(t, cluster.Identity{User: "kim", NotAfter: time.Now().Add(-time.Minute)})
	l := sourcetest.Listen(t, newSource(t, byCertificate, "n1"))
	if err := l.Error(); !strings.Contains(err.Error(), "HTTP 401") {
		t.Errorf("error %q", err)
	}
	c.Kubeconfig(t, cluster.Identity{User: "kim"}) // over the same files
	settled(l).Holds(t, "one")
}

// The server's certificate comes from another authority, as after a rotation:
// an error until the kubeconfig's file names that one.
//
// Shows: F72
func TestF72_RotatedCA(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "one"))
	w := newWire(t, c.URL)
	kubeconfig := rewrite(t, c.AdminKubeconfig(t), w.address())
	l := sourcetest.Listen(t, newSource(t, kubeconfig, "n1"))
	first := l.Set()
	first.Holds(t, "one")
	other := cluster.NewAuthority(t, filepath.Dir(c.Authority.File), "other")
	other.Issue(t, "apiserver", cluster.Identity{User: "apiserver", Hosts: []string{"127.0.0.1"}})
	// The server reads its certificate again after some time, and a watch over the old one
	// reports nothing.
	wait.NoError(t, func() error {
		text, err := os.ReadFile(other.File)
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		to, err := tls.Dial("tcp", strings.TrimPrefix(c.URL, "https://"), &tls.Config{RootCAs: pool})
		if err == nil {
			_ = to.Close() // it was shown
		}
		return err
	})
	w.cut()
	for {
		word := l.Next()
		if word.Err != nil && strings.Contains(word.Err.Error(), "signed by an authority that the kubeconfig does not name") {
			break
		}
	}
	text, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(kubeconfig), "ca.crt"), string(text))
	back := settled(l)
	back.Holds(t, "one")
	if back.Pod("one") != first.Pod("one") {
		t.Error("the pod is another pointer")
	}
}

// Every byte is dropped and no connection is closed: HTTP/2 pings find out within about a
// minute, long before the watch would have ended.
//
// Shows: F70
func TestF70_BlackHole(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "one"))
	w := newWire(t, c.URL)
	ctx, stop := context.WithTimeout(t.Context(), wait.Limit)
	defer stop()
	pods := 0
	for set := range newSource(t, rewrite(t, c.AdminKubeconfig(t), w.address()), "n1").Sets(ctx) {
		switch pods = set.Files.Len(); pods {
		case 1:
			c.CreatePod(t, cluster.Pod("n1", "two"))
		case 2: // the watch is up
			w.each(func(c *conn) { c.dead.Store(true) })
			c.CreatePod(t, cluster.Pod("n1", "three"))
		}
		if pods == 3 {
			break
		}
	}
	if pods != 3 {
		t.Fatal("the source never noticed")
	}
}

// rewrite writes a kubeconfig like file that names another server, with a copy of
// its authority beside it, ca.crt.
func rewrite(t testing.TB, file, server string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range config.Clusters {
		ca, err := os.ReadFile(c.CertificateAuthority)
		if err != nil {
			t.Fatal(err)
		}
		c.Server, c.CertificateAuthority = server, filepath.Join(dir, "ca.crt")
		write(t, c.CertificateAuthority, string(ca))
	}
	out := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// wire forwards connections to an address, until it is cut or goes dead.
type wire struct {
	net.Listener
	mu    sync.Mutex // guards conns
	conns []*conn
}

// conn is one connection and its continuation.
type conn struct {
	from, to net.Conn
	dead     atomic.Bool // bytes are dropped, and nothing is closed
}

func newWire(t *testing.T, server string) *wire {
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", u.Host)
			if err != nil {
				_ = from.Close()
				continue
			}
			c := &conn{from: from, to: to}
			w.mu.Lock()
			w.conns = append(w.conns, c)
			w.mu.Unlock()
			serving.Go(func() { c.forward(to, from) })
			serving.Go(func() { c.forward(from, to) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); w.cut(); serving.Wait() })
	return w
}

func (c *conn) forward(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		switch {
		case err != nil:
			return
		case c.dead.Load():
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// each calls f with every connection.
func (w *wire) each(f func(*conn)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		f(c)
	}
}

// cut closes every connection.
func (w *wire) cut() {
	w.each(func(c *conn) { _, _ = c.from.Close(), c.to.Close() })
}

// address returns the URL for a kubeconfig.
func (w *wire) address() string { return "https://" + w.Addr().String() }
