package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/server"
)

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newAuthority makes an authority, signed by above or by itself.
func newAuthority(name string, above *authority) *authority {
	a := &authority{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	by, key := template, a.key
	if above != nil {
		by, key = above.cert, above.key
	}
	a.cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, by, a.key.Public(), key))))
	return a
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

func (a *authority) issue(name string, change ...func(*x509.Certificate)) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: []string{"dev"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, f := range change {
		f(template)
	}
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	return must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key))))
}

func showing(certs ...*x509.Certificate) *http.Request {
	r := with("")
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	return r
}

func caFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	put(t, path, text)
	return path
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Shows: D1
func TestCertificate_OtherAuthority_IsRefused(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority("ours", nil), newAuthority("ours", nil)
	between := newAuthority("between", ours)
	s := &api{}
	a := s.access(t, func(c *Config) { c.ClientCAFile = caFile(t, ours.pem()) })
	now := time.Now()
	for _, it := range []struct {
		name string
		r    *http.Request
		want bool
	}{
		{"ours", showing(ours.issue("anna")), true},
		{"by an authority in between", showing(between.issue("anna"), between.cert), true},
		{"in between is not shown", showing(between.issue("anna")), false},
		{"another authority of the same name", showing(others.issue("anna")), false},
		{"another authority, which is shown", showing(others.issue("anna"), others.cert), false},
		{"expired", showing(ours.issue("anna", func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Second) })), false},
		{"not yet valid", showing(ours.issue("anna", func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) })), false},
		{"a server's", showing(ours.issue("anna", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })), false},
		{"no name", showing(ours.issue("")), false},
		{"anonymous", showing(ours.issue("system:anonymous")), false},
		{"the caller is not authenticated", showing(ours.issue("anna", func(c *x509.Certificate) { c.Subject.Organization = []string{"system:unauthenticated"} })), false},
		{"signed by itself", showing(others.cert), false},
	} {
		c, ok, err := a.Authenticate(it.r)
		if ok != it.want || err != nil {
			t.Errorf("%s: %t, %v", it.name, ok, err)
		}
		if ok && (c.Name != "anna" || !slices.Equal(c.Groups, []string{"dev", "system:authenticated"}) || c.Local || !strings.HasPrefix(c.Extra[credentialID][0], "X509SHA256=")) {
			t.Errorf("%s: %+v", it.name, c)
		}
	}
	if n, _ := s.counts(); n != 0 {
		t.Errorf("%d reviews about certificates", n)
	}
	// Without authorities certificates are ignored; a token beside a bad one counts.
	s.tokens = anna()
	r := showing(others.issue("mallory"))
	r.Header.Set("Authorization", "Bearer hunter2")
	if c, ok, err := a.Authenticate(r); !ok || err != nil || c.Name != "anna" {
		t.Errorf("%+v, %t, %v", c, ok, err)
	}
	if _, ok, _ := s.access(t).Authenticate(showing(ours.issue("anna"))); ok {
		t.Error("a certificate is accepted without authorities")
	}
}

// The file is read again when it changes; while it is being replaced, callers stay
// admitted.
//
// Shows: F72
func TestAuthority_FileReplaced_IsReadAgain(t *testing.T) {
	t.Parallel()
	was, is := newAuthority("was", nil), newAuthority("is", nil)
	file := caFile(t, was.pem())
	s := &api{}
	a := s.access(t, func(c *Config) { c.ClientCAFile = file })
	now := time.Now()
	knows := func(by *authority) bool {
		now = now.Add(rereadAfter)
		shown := []*x509.Certificate{by.issue("anna")}
		key, _, _ := a.certs.cached(shown, now)
		said, err := a.certs.verifyChain(t.Context(), key, shown, now)
		return err == nil && said.ok
	}
	if !knows(was) || knows(is) {
		t.Error("not only the first authority is accepted")
	}
	put(t, file, was.pem()+is.pem())
	if !knows(was) || !knows(is) {
		t.Error("not both authorities are accepted")
	}
	put(t, file, "-----BEGIN")
	if !knows(was) || !knows(is) {
		t.Error("half a file locks out")
	}
	put(t, file, is.pem())
	if knows(was) || !knows(is) {
		t.Error("the old authority is accepted, or the new one is not")
	}
}

// Without an API server only system:masters is admitted.
//
// Shows: D1
func TestAuthorize_NoAPIServer_OnlyMastersAreAllowed(t *testing.T) {
	t.Parallel()
	ours := newAuthority("ours", nil)
	a, err := New(Config{Node: "n1", ClientCAFile: caFile(t, ours.pem())})
	if err != nil {
		t.Fatal(err)
	}
	master := ours.issue("admin", func(c *x509.Certificate) { c.Subject.Organization = []string{"system:masters"} })
	for _, it := range []struct {
		r   *http.Request
		who bool
		may bool
	}{
		{showing(master), true, true},
		{showing(ours.issue("anna")), true, false},
		{with("hunter2"), false, false},
		{with(""), false, false},
	} {
		c, ok, err := a.Authenticate(it.r)
		if ok != it.who || err != nil {
			t.Errorf("%+v is %t, %v", c, ok, err)
		}
		if ok, _, err := a.Authorize(t.Context(), c, "get", "proxy", "pods"); ok != it.may || err != nil {
			t.Errorf("%+v may: %t, %v", c, ok, err)
		}
	}
	if ok, _, _ := a.Authorize(t.Context(), server.Caller{Local: true}, "create", "proxy"); !ok {
		t.Error("the local caller may not")
	}
}

func rsaKey(n *big.Int) *rsa.PublicKey { return &rsa.PublicKey{N: n, E: 1<<31 - 1} }
