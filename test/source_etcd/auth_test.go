package source_etcd

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/source/etcd"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
)

const hunter = "hunter2"

// locked lets the user node read the tests' keys, with a certificate and a password.
var locked = suite.Once(func(t testing.TB) *cluster.Etcd {
	return cluster.StartEtcd(t, cluster.EtcdOptions{TLS: true, RootPassword: "r00t", Users: []cluster.EtcdUser{
		{Name: "node", Password: hunter, Prefix: mine}, {Name: "other", Password: hunter, Prefix: "/elsewhere/"},
	}})
})

// secured returns that etcd, the prefix of the test's own keys, and a name for its
// client's certificate.
func secured(t testing.TB) (e *cluster.Etcd, prefix, client string) {
	t.Helper()
	e, prefix = locked(t), own(t)
	e.Put(t, prefix+"a", "pod one x")
	return e, prefix, "client-" + t.Name()
}

// write replaces a file in one step.
func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// Shows: F72
func TestF72_CertificateAndAuth(t *testing.T) {
	t.Parallel()
	e, prefix, client := secured(t)
	dir := t.TempDir()
	password, other := filepath.Join(dir, "password"), filepath.Join(dir, "other")
	write(t, password, hunter+"\n")
	write(t, other, hunter)
	pair := e.Authority.Issue(t, client, cluster.Identity{User: "missing"})
	foreign := cluster.NewAuthority(t, dir, "foreign")
	theirs := foreign.Issue(t, "foreign-client", cluster.Identity{User: "node"})
	late := e.Authority.Issue(t, client+"-late", cluster.Identity{User: "node", NotAfter: time.Now().Add(-time.Minute)})
	empty := filepath.Join(dir, "empty")
	write(t, empty, "\n")
	host := strings.TrimPrefix(e.Endpoints[0], "https://")
	for name, c := range map[string]struct {
		change func(c *etcd.Config)
		want   string // "" is a set
	}{
		"let in": {func(*etcd.Config) {}, ""},
		"user in the URL": {func(c *etcd.Config) {
			c.Username, c.PasswordFile, c.Endpoints = "", "", []string{"https://node:" + hunter + "@" + host}
		}, ""},
		"no certificate":       {func(c *etcd.Config) { c.CertFile, c.KeyFile = "", "" }, "it refuses the TLS connection: certificate required"},
		"another user's":       {func(c *etcd.Config) { c.CertFile, c.KeyFile = theirs.CertFile, theirs.KeyFile }, "it refuses the TLS connection: certificate required"},
		"an expired one":       {func(c *etcd.Config) { c.CertFile, c.KeyFile = late.CertFile, late.KeyFile }, "it refuses the TLS connection: expired certificate"},
		"unknown authority":    {func(c *etcd.Config) { c.CAFile = foreign.File }, "its certificate is signed by an unknown authority"},
		"system's authorities": {func(c *etcd.Config) { c.CAFile = "" }, "its certificate is signed by an unknown authority"},
		"missing certificate":  {func(c *etcd.Config) { c.CertFile = filepath.Join(dir, "none") }, "cannot read the client certificate: open " + filepath.Join(dir, "none") + ": no such file or directory"},
		"no authority in file": {func(c *etcd.Config) { c.CAFile = password }, password + " holds no CA certificate"},
		"plain to TLS": {func(c *etcd.Config) {
			c.Endpoints = []string{"http://" + host}
			c.CAFile, c.CertFile, c.KeyFile = "", "", ""
		}, "connection closed; is it https?"},
		"no user":                {func(c *etcd.Config) { c.Username, c.PasswordFile = "", "" }, "permission denied"},
		"wrong password":         {func(c *etcd.Config) { c.PasswordFile = e.Authority.File }, "permission denied: wrong user or password"},
		"unknown user":           {func(c *etcd.Config) { c.Username = "who" }, "permission denied: wrong user or password"},
		"empty password":         {func(c *etcd.Config) { c.PasswordFile = empty }, "the password file " + empty + " is empty"},
		"another user's prefix":  {func(c *etcd.Config) { c.Username, c.PasswordFile = "other", other }, "permission denied"},
		"more than one's prefix": {func(c *etcd.Config) { c.Prefix = "/nodes/" }, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			l := listen(t, prefix, e.Endpoints, func(cfg *etcd.Config) {
				cfg.CAFile, cfg.CertFile, cfg.KeyFile = e.Authority.File, pair.CertFile, pair.KeyFile
				cfg.Username, cfg.PasswordFile = "node", password
				cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
				c.change(cfg)
			})
			w := l.Next()
			switch {
			case c.want == "":
				w.Holds(t, "one")
			case w.Err != nil && w.Err.Error() == host+": connection closed; does it accept the client certificate?" && strings.HasPrefix(c.want, "it refuses the TLS"):
				// A connection that is reset meanwhile loses the reason.
			case w.Err == nil || w.Err.Error() != host+": "+c.want:
				t.Errorf("error %v, want %q", w.Err, c.want)
			}
			l.Leave()
			l.Ended()
			if all := log.String() + fmt.Sprint(w.Err); strings.Contains(all, hunter) {
				t.Errorf("a secret is printed:\n%s", all)
			}
		})
	}
}

// The next connection uses the renewed files (F72).
//
// Shows: F72
func TestF72_RenewedFilesAreUsed(t *testing.T) {
	t.Parallel()
	e, prefix, client := secured(t)
	n := newNetwork(t, e.Endpoints[0])
	password := filepath.Join(t.TempDir(), "password")
	write(t, password, "wrong")
	late := cluster.Identity{User: "node", NotAfter: time.Now().Add(-time.Minute)}
	pair := e.Authority.Issue(t, client, late)
	l := listen(t, prefix, []string{n.url}, func(c *etcd.Config) {
		c.CAFile, c.CertFile, c.KeyFile = e.Authority.File, pair.CertFile, pair.KeyFile
		c.Username, c.PasswordFile = "node", password
	})
	says(t, l, "certificate")
	e.Authority.Issue(t, client, cluster.Identity{User: "node"})
	failsWith(t, l, "wrong user or password")
	write(t, password, hunter)
	first := l.Set()
	first.Holds(t, "one")
	e.Authority.Issue(t, client, late) // the connection stays open, and needs no new certificate
	e.Put(t, prefix+"b", "pod two x")
	l.Set().Names(t, "two")
	n.cut()
	n.mend()
	failsWith(t, l, "certificate")
	e.Authority.Issue(t, client, cluster.Identity{User: "node"})
	w := until(t, l, "one", "two")
	w.Names(t)
	if w.Pod("one") != first.Pod("one") {
		t.Error("the pod is another pointer")
	}
}

// A certificate that names a user suffices.
//
// Shows: F72
func TestF72_UserOfTheCertificate(t *testing.T) {
	e, prefix, client := secured(t)
	pair := e.Authority.Issue(t, client, cluster.Identity{User: "node"})
	l := listen(t, prefix, e.Endpoints, func(c *etcd.Config) {
		c.CAFile, c.CertFile, c.KeyFile = e.Authority.File, pair.CertFile, pair.KeyFile
	})
	l.Set().Holds(t, "one")
	e.Put(t, prefix+"a", "pod one y")
	l.Set().Names(t, "one")
	// A permission that is revoked during an outage causes an error, and removes nothing.
	if _, err := e.Client(t).UserRevokeRole(t.Context(), "node", "role-node"); err != nil {
		t.Fatal(err)
	}
	e.Restart(t)
	failsWith(t, l, "permission denied")
	if _, err := e.Client(t).UserGrantRole(t.Context(), "node", "role-node"); err != nil {
		t.Fatal(err)
	}
	w := until(t, l, "one")
	w.Names(t)
}

// The error names a member that uses another protocol.
//
// Shows: F72
func TestF72_WrongScheme(t *testing.T) {
	t.Parallel()
	e, prefix := start(t)
	l := listen(t, prefix, []string{strings.Replace(e.Endpoints[0], "http:", "https:", 1)})
	says(t, l, "is it http?")
	l.Leave()
	l.Ended()
}
