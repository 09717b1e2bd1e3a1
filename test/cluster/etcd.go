package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"

	"github.com/nodectl/nodectl/test/wait"
)

// EtcdOptions describes the etcd to start. The zero value is one member without TLS and
// without users.
type EtcdOptions struct {
	// TLS requires clients to present a certificate of Etcd.Authority.
	TLS bool
	// RootPassword enables authentication: the user root has it.
	RootPassword string
	// Users are those beside root; they need RootPassword.
	Users []EtcdUser
	// Members is how many members the cluster has; zero is one.
	Members int
	// Args are added to the program's.
	Args []string
}

// EtcdUser may read and write the keys that begin with Prefix.
type EtcdUser struct{ Name, Password, Prefix string }

// Etcd is a real etcd. Endpoints stay the same over restarts.
type Etcd struct {
	Endpoints []string
	Members   []*Process
	// Authority issues clients' certificates; nil without TLS. Server is the members' serving
	// certificate, and the certificate of root.
	Authority *Authority
	Server    Pair

	options EtcdOptions
	dir     string
	tls     *tls.Config

	mu     sync.Mutex // guards client
	client *clientv3.Client
}

// Snapshot is a copy of the data of all members.
type Snapshot struct{ dir string }

// StartEtcd starts an etcd for this test alone; it ends with the test.
func StartEtcd(t testing.TB, options EtcdOptions) *Etcd {
	t.Helper()
	options.Members = max(options.Members, 1)
	e := &Etcd{options: options, dir: t.TempDir()}
	scheme := "http"
	if options.TLS {
		scheme = "https"
		e.Authority = NewAuthority(t, e.dir, "etcd-ca")
		e.Server = e.Authority.Issue(t, "etcd-root", Identity{User: "root", Hosts: []string{"127.0.0.1", "localhost"}})
		e.tls = e.Authority.TLS(t, e.Server)
	}
	var peers, cluster []string
	for i := range options.Members {
		e.Endpoints = append(e.Endpoints, scheme+"://"+address(t))
		peers = append(peers, "http://"+address(t))
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i, endpoint := range e.Endpoints {
		metrics := "http://" + address(t)
		name := fmt.Sprintf("m%d", i)
		dir := filepath.Join(e.dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		args := []string{
			"--name=" + name, "--data-dir=" + e.data(i),
			"--listen-client-urls=" + endpoint, "--advertise-client-urls=" + endpoint,
			"--listen-peer-urls=" + peers[i], "--initial-advertise-peer-urls=" + peers[i],
			"--initial-cluster=" + strings.Join(cluster, ","), "--initial-cluster-token=" + e.dir,
			"--listen-metrics-urls=" + metrics, "--unsafe-no-fsync", "--log-level=error",
		}
		if options.Members == 1 {
			args = append(args, "--heartbeat-interval=10", "--election-timeout=50") // no other member to lose to
		} // etcd's own, 1 s: a briefly descheduled member must not count as lost
		if options.TLS {
			args = append(args, "--cert-file="+e.Server.CertFile, "--key-file="+e.Server.KeyFile,
				"--trusted-ca-file="+e.Authority.File, "--client-cert-auth")
		}
		ready := func(ctx context.Context) error { return answers(ctx, metrics+"/health") }
		e.Members = append(e.Members, newProcess(t, "etcd", dir, append(args, options.Args...), ready))
	}
	e.Start(t)
	t.Cleanup(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.client != nil {
			_ = e.client.Close() // says that its context is done
		}
	})
	if options.RootPassword != "" {
		e.enableAuth(t)
	}
	return e
}

func (e *Etcd) data(i int) string { return filepath.Join(e.dir, fmt.Sprintf("m%d", i), "data") }

// Start starts every member that does not run, and returns when all answer.
func (e *Etcd) Start(t testing.TB) {
	t.Helper()
	for _, m := range e.Members {
		if !m.Runs() {
			if err := m.launch(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, m := range e.Members {
		if err := m.await(t.Context()); err != nil {
			t.Fatalf("%v; its log ends with:\n%s", err, tail(m.log, 10))
		}
	}
}

// Kill ends all members that run, as kill -9 does.
func (e *Etcd) Kill(t testing.TB) {
	t.Helper()
	for _, m := range e.Members {
		if m.Runs() {
			m.Kill(t)
		}
	}
}

// Restart kills all members and starts them again.
func (e *Etcd) Restart(t testing.TB) { t.Helper(); e.Kill(t); e.Start(t) }

// Snapshot kills the members, copies their data and starts them again.
func (e *Etcd) Snapshot(t testing.TB) Snapshot {
	t.Helper()
	e.Kill(t)
	s := Snapshot{t.TempDir()}
	for i := range e.Members {
		if err := os.CopyFS(filepath.Join(s.dir, fmt.Sprint(i)), os.DirFS(e.data(i))); err != nil {
			t.Fatal(err)
		}
	}
	e.Start(t)
	return s
}

// Restore kills the members, replaces their data by that of s and starts them again: later
// writes are lost. The zero Snapshot is an empty etcd.
func (e *Etcd) Restore(t testing.TB, s Snapshot) {
	t.Helper()
	e.Kill(t)
	for i := range e.Members {
		if err := os.RemoveAll(e.data(i)); err != nil {
			t.Fatal(err)
		}
		if s.dir == "" {
			continue
		}
		if err := os.CopyFS(e.data(i), os.DirFS(filepath.Join(s.dir, fmt.Sprint(i)))); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(e.data(i), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	e.Start(t)
}

// Client returns a client with root's rights. It closes with the test that
// started e.
func (e *Etcd) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client == nil {
		var user, password string
		if e.options.RootPassword != "" {
			user, password = "root", e.options.RootPassword
		}
		e.client = e.clientAs(t, user, password)
	}
	return e.client
}

func (e *Etcd) clientAs(t testing.TB, user, password string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: e.Endpoints, TLS: e.tls, Username: user, Password: password,
		DialTimeout: Patience, Logger: zap.NewNop(), MaxCallSendMsgSize: 64 << 20,
		// A test's etcd comes back quickly.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: Patience,
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// enableAuth makes the users and turns authentication on.
func (e *Etcd) enableAuth(t testing.TB) {
	t.Helper()
	c := e.clientAs(t, "", "")
	defer c.Close()
	ctx := t.Context()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.UserAdd(ctx, "root", e.options.RootPassword)
	do(err)
	_, err = c.UserGrantRole(ctx, "root", "root")
	do(err)
	for _, u := range e.options.Users {
		_, err = c.RoleAdd(ctx, "role-"+u.Name)
		do(err)
		_, err = c.RoleGrantPermission(ctx, "role-"+u.Name, u.Prefix, clientv3.GetPrefixRangeEnd(u.Prefix), clientv3.PermissionType(clientv3.PermReadWrite))
		do(err)
		_, err = c.UserAdd(ctx, u.Name, u.Password)
		do(err)
		_, err = c.UserGrantRole(ctx, u.Name, "role-"+u.Name)
		do(err)
	}
	_, err = c.AuthEnable(ctx)
	do(err)
}

// Put writes a key.
func (e *Etcd) Put(t testing.TB, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	c := e.Client(t)
	_, err := c.Put(ctx, key, value)
	if lost := new(rpctypes.EtcdError); errors.As(err, lost) && lost.Code() == codes.Unavailable {
		// The members elected another leader meanwhile, which may have the write or not.
		err = wait.Try(func() error {
			_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", value)).Else(clientv3.OpPut(key, value)).Commit()
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Delete deletes a key, which need not exist.
func (e *Etcd) Delete(t testing.TB, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	if _, err := e.Client(t).Delete(ctx, key); err != nil {
		t.Fatal(err)
	}
}

// Revision returns the store's revision.
func (e *Etcd) Revision(t testing.TB) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	r, err := e.Client(t).Get(ctx, "\x00")
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

// Compact forgets every revision before the newest, on disk too.
func (e *Etcd) Compact(t testing.TB) {
	t.Helper()
	revision := e.Revision(t)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	if _, err := e.Client(t).Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

// answers returns nil when a GET of url is answered with 200.
func answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
