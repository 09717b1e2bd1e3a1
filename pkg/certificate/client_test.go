package certificate

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// places makes kubeconfigs of every kind, and returns where they are.
func places(t testing.TB, now time.Time) (file func(name string) string) {
	t.Helper()
	dir := t.TempDir()
	file = func(name string) string { return filepath.Join(dir, name) }
	pair := func(path string, end time.Time) {
		cert, key := issue("system:node:n1", end)
		put(t, path, slices.Concat(cert, key))
	}
	if err := os.MkdirAll(file("other"), 0o700); err != nil {
		t.Fatal(err)
	}
	pair(file("other/kubelet-client-current.pem"), now.Add(time.Hour))
	pair(file("mine.pem"), now.Add(time.Hour))
	pair(file("expired.pem"), now.Add(-time.Second))
	text := func(user string) []byte {
		return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"+
			"clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {%s}}]\n", user)
	}
	put(t, file("rotating"), text("client-certificate: other/kubelet-client-current.pem, client-key: other/kubelet-client-current.pem"))
	put(t, file("given"), text("client-certificate: mine.pem, client-key: mine.pem"))
	put(t, file("old"), text("client-certificate: expired.pem, client-key: expired.pem"))
	put(t, file("lost"), text("client-certificate: gone.pem, client-key: gone.pem"))
	put(t, file("half.pem"), []byte("-----BEGIN CERTIFICATE-----\nMII"))
	put(t, file("half"), text("client-certificate: half.pem, client-key: half.pem"))
	put(t, file("token"), text("token: hunter2"))
	embedded := func(name, node string, end time.Time) {
		cert, key := issue(node, end)
		put(t, file(name), text("client-certificate-data: "+base64.StdEncoding.EncodeToString(cert)+", client-key-data: "+base64.StdEncoding.EncodeToString(key)))
	}
	embedded("embedded", "system:node:n1", now.Add(time.Hour))
	embedded("embedded-old", "system:node:n1", now.Add(-time.Hour))
	embedded("admin", "admin", now.Add(time.Hour))
	put(t, file("broken"), []byte("{"))
	return file
}

// The handling of the client certificate depends on the kubeconfig.
//
// Shows: D4
func TestD4_WhenACertificateIsAskedFor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	file := places(t, now)
	for _, it := range []struct {
		kubeconfig, bootstrap string
		fixed                 bool // no rotation
		ask, first            bool
		dir                   string
	}{
		{"none", "boot", false, true, true, "pki"},
		{"none", "", false, false, false, "pki"},
		{"lost", "boot", false, true, true, "pki"},
		{"half", "boot", false, true, true, "pki"},
		{"old", "boot", false, true, true, "pki"},
		{"old", "boot", true, true, true, "pki"},
		{"old", "", false, false, false, "pki"},
		{"rotating", "boot", false, true, false, "other"},
		{"rotating", "", false, true, false, "other"},
		{"rotating", "boot", true, false, false, "other"},
		{"given", "boot", false, false, false, "pki"},
		{"token", "boot", false, false, false, "pki"},
		{"embedded", "boot", false, true, false, "pki"},
		{"embedded", "boot", true, false, false, "pki"},
		{"embedded-old", "boot", false, true, true, "pki"},
		{"admin", "boot", false, false, false, "pki"},
		{"broken", "boot", false, false, false, ""},
	} {
		cfg := ClientConfig{Node: "n1", Kubeconfig: file(it.kubeconfig), Dir: file("pki"), Rotate: !it.fixed, API: &rest.Config{}}
		if it.bootstrap != "" {
			cfg.Bootstrap = file(it.bootstrap)
		}
		want := ""
		if it.dir != "" {
			want = file(it.dir)
		}
		if n := must(NewClient(cfg)).needs(now); n.ask != it.ask || n.first != it.first || n.dir != want {
			t.Errorf("%+v: %+v", it, n)
		} else if strings.Contains(n.why, "hunter2") {
			t.Errorf("%+v: %s", it, n.why)
		}
	}
}

// The metrics count the certificate in use, even if it replaces a certificate in the kubeconfig.
//
// Shows: D4
func TestD4_FactsAreOfTheCertificateThatIsShown(t *testing.T) {
	t.Parallel()
	now := time.Now()
	file := places(t, now)
	// The pair that is shown in place of one that the kubeconfig holds counts.
	if err := os.MkdirAll(file("rotated"), 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key := issue("system:node:n1", now.Add(time.Hour))
	put(t, Pair(file("rotated")), slices.Concat(cert, key))
	shown := must(NewClient(ClientConfig{Node: "n1", Kubeconfig: file("embedded-old"), Bootstrap: file("boot"), Dir: file("rotated"), Rotate: true, API: &rest.Config{}}))
	if n, f := shown.needs(now), shown.Facts(); !n.ask || n.first || !f.Expires.After(now) {
		t.Errorf("%+v, facts %+v", n, f)
	}
	if f := must(NewClient(ClientConfig{Node: "n1", Kubeconfig: file("old"), Dir: file("pki"), API: &rest.Config{}})).Facts(); !f.Expires.Before(now) || f.Expires.IsZero() {
		t.Errorf("facts %+v", f)
	}
	for _, cfg := range []ClientConfig{{}, {Node: "n1", Kubeconfig: "x", Dir: "y"}, {Node: "n1", Kubeconfig: "x", API: &rest.Config{}}, {Node: "n1", Dir: "y", API: &rest.Config{}}} {
		if _, err := NewClient(cfg); err == nil {
			t.Errorf("NewClient accepts %+v", cfg)
		}
	}
}
