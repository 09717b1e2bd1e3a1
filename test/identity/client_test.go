package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/test/cluster"
)

const bootstrapToken = "abcdef.hunter2hunter2"

// client returns the manager of a node's client certificate, in its own directory, and the
// API client of its kubeconfig.
func client(t testing.TB, node string, change func(*certificate.ClientConfig)) (*certificate.Client, *apiclient.Client, *logger) {
	t.Helper()
	dir, l := t.TempDir(), &logger{}
	cfg := certificate.ClientConfig{Node: node, Kubeconfig: filepath.Join(dir, "kubeconfig"), Dir: filepath.Join(dir, "pki"), Rotate: true, UserAgent: "nodectl/test", Log: l.log()}
	change(&cfg)
	way := must(apiclient.Open(apiclient.Config{File: cfg.Kubeconfig, Awaited: true, UserAgent: "nodectl/test", Log: cfg.Log}))
	t.Cleanup(way.Close)
	cfg.API = way.REST()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.text())
		}
	})
	return must(certificate.NewClient(cfg)), way, l
}

// credential waits until the API server authenticates us as the node with a credential other
// than was, and returns it.
func credential(t testing.TB, node string, way *apiclient.Client, was string) string {
	t.Helper()
	is := ""
	until(t, "another certificate is shown", func() (bool, error) {
		me, err := whoami(t, way)
		if err != nil {
			return false, err
		}
		if got := me.Extra["authentication.kubernetes.io/credential-id"]; len(got) == 1 {
			is = got[0]
		}
		if me.Username != "system:node:"+node || !strings.Contains(strings.Join(me.Groups, " "), "system:nodes") {
			t.Errorf("we are %+v", me)
		}
		return is != was, nil
	})
	return is
}

// shows waits until the API server authenticates us by this certificate.
func shows(t testing.TB, way *apiclient.Client, cert *x509.Certificate) {
	t.Helper()
	sum := sha256.Sum256(cert.Raw)
	id := "X509SHA256=" + hex.EncodeToString(sum[:])
	until(t, "the newest certificate is shown", func() (bool, error) {
		me, err := whoami(t, way)
		got := me.Extra["authentication.kubernetes.io/credential-id"]
		if err == nil && !slices.Contains(got, id) {
			err = fmt.Errorf("%q is shown, want %q", got, id)
		}
		return err == nil, err
	})
}

// holds checks the directory of certificates. Their names have the time in seconds, as the
// kubelet's do: of two certificates of one second, the second replaces the first.
func holds(t testing.TB, dir string, pairs int) {
	t.Helper()
	all := must(filepath.Glob(filepath.Join(dir, "*")))
	if len(all) < 2 || len(all) > pairs+1 {
		t.Errorf("the directory holds %q, want at most %d pairs and a link", all, pairs)
	}
	for _, file := range all {
		info := must(os.Lstat(file))
		if link := filepath.Base(file) == "kubelet-client-current.pem"; link != (info.Mode()&fs.ModeSymlink != 0) || !link && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
	}
}

// A node without a kubeconfig gets one: requests fail until it is there, and nothing is
// restarted. The first certificate is about to expire and is rotated; the client presents the
// new one, and closes the old one's connection.
//
// Shows: D4, C-1.25.1
func TestD4_BootstrapAndRotation(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	s := sign(t, c, node, life{since: time.Hour, left: 5 * time.Minute}, life{left: time.Hour})
	var at certificate.ClientConfig
	lived := make(chan time.Duration, 1) // cap 1: one certificate is replaced
	certs, way, l := client(t, node, func(cfg *certificate.ClientConfig) {
		cfg.Bootstrap = tokenKubeconfig(t, c, bootstrapToken)
		cfg.Rotated = func(d time.Duration) { lived <- d }
		at = *cfg
	})
	if _, err := whoami(t, way); err == nil || !strings.Contains(err.Error(), at.Kubeconfig) {
		t.Errorf("without a kubeconfig: %v", err)
	}
	if f := certs.Facts(); f != (certificate.Facts{}) {
		t.Errorf("without a certificate: %+v", f)
	}
	runs(t, certs.Run)
	credential(t, node, way, "") // the first, or already the second
	csr, _ := s.waits(t, 1)
	if csr.Spec.Username != "system:bootstrap:abcdef" || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("asked by %s of %s", csr.Spec.Username, csr.Spec.SignerName)
	}
	csr, cert := s.waits(t, 2)
	if csr.Spec.Username != "system:node:"+node {
		t.Errorf("the second was asked for by %s", csr.Spec.Username)
	}
	shows(t, way, cert)
	if d := <-lived; d < time.Hour {
		t.Errorf("a certificate of an hour ago lived %v", d)
	}
	if f := certs.Facts(); !f.Expires.Equal(cert.NotAfter) || f.Failures != 0 {
		t.Errorf("facts %+v, want the end %v", f, cert.NotAfter)
	}
	holds(t, at.Dir, 2)
	text := string(must(os.ReadFile(at.Kubeconfig)))
	if strings.Contains(text+l.text(), "hunter2") || !strings.Contains(text, filepath.Join(at.Dir, "kubelet-client-current.pem")) {
		t.Errorf("kubeconfig and log:\n%s\n%s", text, l.text())
	}
	if info := must(os.Stat(at.Kubeconfig)); info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig has mode %v", info.Mode())
	}
	if all := c.requested(t, node); len(all) != 2 {
		t.Errorf("%d certificates were asked for", len(all))
	}
}

// A machine that slept past its certificate's expiry: with a bootstrap kubeconfig it recovers
// by itself.
//
// Shows: F72
func TestF72_ExpiredClientCertificateIsBootstrapped(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	s := sign(t, c, node)
	expired := c.Kubeconfig(t, cluster.Identity{User: "system:node:" + node, Groups: []string{"system:nodes"}, NotAfter: time.Now().Add(-time.Minute)})
	certs, way, l := client(t, node, func(cfg *certificate.ClientConfig) {
		cfg.Kubeconfig = expired
		cfg.Bootstrap = tokenKubeconfig(t, c, bootstrapToken)
	})
	if _, err := whoami(t, way); !apierrors.IsUnauthorized(err) {
		t.Fatalf("an expired certificate is answered %v", err)
	}
	if f := certs.Facts(); !f.Expires.Before(time.Now()) || f.Expires.IsZero() {
		t.Errorf("facts %+v", f)
	}
	runs(t, certs.Run)
	credential(t, node, way, "")
	if csr, _ := s.waits(t, 1); csr.Spec.Username != "system:bootstrap:abcdef" {
		t.Errorf("asked by %s", csr.Spec.Username)
	}
	if !strings.Contains(l.text(), "the certificate has expired") {
		t.Error("the log does not say that the certificate had expired")
	}
}

// Without a valid certificate the client logs that, and recovers when the kubeconfig is
// mended.
//
// Shows: F72
func TestF72_ExpiredClientCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	id := cluster.Identity{User: "system:node:" + node, Groups: []string{"system:nodes"}, NotAfter: time.Now().Add(-time.Minute)}
	path := c.Kubeconfig(t, id)
	certs, way, l := client(t, node, func(cfg *certificate.ClientConfig) { cfg.Kubeconfig = path })
	runs(t, certs.Run)
	until(t, "the log says that it has expired", func() (bool, error) { return strings.Contains(l.text(), "the certificate has expired"), nil })
	if _, err := whoami(t, way); !apierrors.IsUnauthorized(err) {
		t.Fatalf("an expired certificate is answered %v", err)
	}
	id.NotAfter = time.Now().Add(time.Hour)
	c.Kubeconfig(t, id)
	credential(t, node, way, "")
}

// A valid kubeconfig is not touched, with a bootstrap kubeconfig or without.
//
// Shows: D4
func TestD4_NoBootstrapWhereThereIsAKubeconfig(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	token := tokenKubeconfig(t, c, bootstrapToken)
	for _, path := range []string{c.NodeKubeconfig(t, node), token} {
		before := string(must(os.ReadFile(path)))
		var dir string
		certs, _, l := client(t, node, func(cfg *certificate.ClientConfig) { cfg.Kubeconfig, cfg.Bootstrap, dir = path, token, cfg.Dir })
		stop := runs(t, certs.Run)
		if path != token {
			until(t, "the log says that nodectl does not rotate it", func() (bool, error) {
				return strings.Contains(l.text(), "nodectl does not rotate the certificate"), nil
			})
		}
		stop()
		if after := string(must(os.ReadFile(path))); after != before {
			t.Errorf("%s has become\n%s", path, after)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("certificates are kept: %v", err)
		}
	}
	if all := c.requested(t, node); len(all) != 0 {
		t.Errorf("%d certificates were asked for", len(all))
	}
}

// The node adopts the kubelet's certificate: it renews the file that the kubelet's kubeconfig
// names, wherever that is.
//
// Shows: D4, C-1.25.1
func TestD4_KubeletsCertificateIsTakenOver(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	s := sign(t, c, node)
	pair := c.Authority.Issue(t, node+"-kubelets", cluster.Identity{User: "system:node:" + node, Groups: []string{"system:nodes"}, NotAfter: time.Now().Add(5 * time.Minute)})
	dir := t.TempDir()
	old := filepath.Join(dir, "kubelet-client-2020-01-01-00-00-00.pem")
	if err := os.WriteFile(old, append(must(os.ReadFile(pair.CertFile)), must(os.ReadFile(pair.KeyFile))...), 0o600); err != nil {
		t.Fatal(err)
	}
	current := filepath.Join(dir, "kubelet-client-current.pem")
	if err := os.Symlink(old, current); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubelet.conf")
	if err := apiclient.WriteJoined(path, c.AdminKubeconfig(t), current); err != nil {
		t.Fatal(err)
	}
	certs, way, _ := client(t, node, func(cfg *certificate.ClientConfig) { cfg.Kubeconfig = path })
	was := credential(t, node, way, "")
	runs(t, certs.Run)
	credential(t, node, way, was)
	if csr, _ := s.waits(t, 1); csr.Spec.Username != "system:node:"+node {
		t.Errorf("asked by %s", csr.Spec.Username)
	}
	holds(t, dir, 2)
}

// An API server that is still down, and an expired bootstrap token, delay only the
// certificate. The client retries both, reads the token from its file again, and counts and
// logs every failure.
//
// The server is the one of all tests: this test runs before the parallel ones.
//
// Shows: F70
func TestF70_BootstrapGoesOnUntilItSucceeds(t *testing.T) {
	c, node := start(t)
	sign(t, c, node)
	boot := tokenKubeconfig(t, c, "expired.hunter2hunter2")
	certs, way, l := client(t, node, func(cfg *certificate.ClientConfig) { cfg.Bootstrap, cfg.Rotate = boot, false })
	c.APIServer.Kill(t)
	runs(t, certs.Run)
	until(t, "a failure is counted", func() (bool, error) { return certs.Facts().Failures > 0, nil })
	c.APIServer.Start(t)
	until(t, "the log says that the token is refused", func() (bool, error) { return strings.Contains(l.text(), "Unauthorized"), nil })
	if err := os.Rename(tokenKubeconfig(t, c, bootstrapToken), boot); err != nil {
		t.Fatal(err)
	}
	credential(t, node, way, "")
	if f := certs.Facts(); f.Failures < 2 || f.Expires.IsZero() {
		t.Errorf("facts %+v", f)
	}
	if strings.Contains(l.text(), "hunter2") {
		t.Errorf("the log holds a token:\n%s", l.text())
	}
}

// Without rotation only the first certificate is requested.
//
// Shows: D4
func TestD4_BootstrapWithoutRotation(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	sign(t, c, node, life{since: time.Hour, left: 5 * time.Minute})
	certs, way, l := client(t, node, func(cfg *certificate.ClientConfig) {
		cfg.Bootstrap, cfg.Rotate = tokenKubeconfig(t, c, bootstrapToken), false
	})
	runs(t, certs.Run)
	credential(t, node, way, "")
	until(t, "it is left alone", func() (bool, error) { return strings.Contains(l.text(), "asking=false"), nil })
	if all := c.requested(t, node); len(all) != 1 {
		t.Errorf("%d certificates were asked for", len(all))
	}
}

// A kubeconfig with an embedded node certificate, as kubeadm init writes it: the certificate
// is rotated beside it, and the client presents the new one.
//
// Shows: D4, C-1.25.1
func TestD4_EmbeddedCertificateIsRotated(t *testing.T) {
	t.Parallel()
	c, node := start(t)
	s := sign(t, c, node)
	held := c.Authority.Issue(t, node+"-held", cluster.Identity{User: "system:node:" + node, Groups: []string{"system:nodes"}, NotAfter: time.Now().Add(20 * time.Minute)})
	encode := func(file string) string { return base64.StdEncoding.EncodeToString(must(os.ReadFile(file))) }
	path := filepath.Join(t.TempDir(), "kubelet.conf")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
clusters: [{name: k, cluster: {server: %q, certificate-authority: %q}}],
users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}]}`, c.URL, c.Authority.File, encode(held.CertFile), encode(held.KeyFile))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var dir string
	certs, _, _ := client(t, node, func(cfg *certificate.ClientConfig) {
		cfg.Kubeconfig, cfg.Bootstrap, dir = path, tokenKubeconfig(t, c, bootstrapToken), cfg.Dir
	})
	way := must(apiclient.Open(apiclient.Config{File: path, Pair: certificate.Pair(dir), UserAgent: "nodectl/test"}))
	t.Cleanup(way.Close)
	was := credential(t, node, way, "")
	runs(t, certs.Run)
	credential(t, node, way, was)
	csr, cert := s.waits(t, 1)
	if csr.Spec.Username != "system:node:"+node {
		t.Errorf("asked by %s", csr.Spec.Username)
	}
	if f := certs.Facts(); !f.Expires.Equal(cert.NotAfter) {
		t.Errorf("facts %+v, want the end %v", f, cert.NotAfter)
	}
	if after := string(must(os.ReadFile(path))); after != text {
		t.Errorf("the kubeconfig has become\n%s", after)
	}
}
