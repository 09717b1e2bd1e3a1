package http

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// pair is a certificate and its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue returns a certificate that by has signed; nil is itself.
func issue(t testing.TB, by *pair, change func(*x509.Certificate)) *pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: by == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if change != nil {
		change(template)
	}
	signer := &pair{template, key}
	if by != nil {
		signer = by
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.cert, &key.PublicKey, signer.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &pair{cert, key}
}

func named(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name} }
}

func (p *pair) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw})
}

func (p *pair) keyPEM() []byte {
	der, _ := x509.MarshalPKCS8PrivateKey(p.key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (p *pair) tls() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{p.cert.Raw}, PrivateKey: p.key}
}

// put writes a file as rotation does, by a rename.
func put(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// secure returns a site behind TLS whose configuration change may alter.
func secure(t testing.TB, cert *pair, change func(*tls.Config)) *site {
	s := &site{more: make(chan struct{})}
	s.says("pod one x")
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert.tls()}}
	if change != nil {
		change(s.TLS)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// Shows: F62
func TestF62_CertificatesThatAreNoGood(t *testing.T) {
	ca := issue(t, nil, named("ca"))
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	put(t, caFile, ca.certPEM())
	for name, c := range map[string]struct {
		cert   *pair
		server func(*tls.Config)
		want   string
	}{
		"good":    {cert: issue(t, ca, nil)},
		"expired": {issue(t, ca, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), nil, "certificate has expired or is not yet valid"},
		"not yet valid": {issue(t, ca, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), nil,
			"certificate has expired or is not yet valid"},
		"of another host": {issue(t, ca, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"elsewhere"} }), nil,
			"certificate is not valid for 127.0.0.1"},
		"of another authority": {issue(t, issue(t, nil, named("ca")), nil), nil, "certificate signed by unknown authority"},
		"its own":              {issue(t, nil, nil), nil, "certificate signed by unknown authority"},
		"not for servers": {issue(t, ca, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), nil,
			"certificate is not valid"},
		"a protocol of the past": {issue(t, ca, nil), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 },
			"the server refuses the TLS connection: protocol version not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			s := secure(t, c.cert, c.server)
			w := s.listen(t, func(cfg *Config) { cfg.CAFile = caFile }).Next()
			got := ""
			if w.Err != nil {
				got = w.Err.Error()
			} else {
				w.Holds(t, "one")
			}
			if got != c.want {
				t.Errorf("error %q, want %q", got, c.want)
			}
		})
	}
}

// mutual is a server that requires a client certificate of ca, and answers with that
// certificate's name.
func mutual(t testing.TB, server, ca *pair) *site {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	s := secure(t, server, func(c *tls.Config) { c.ClientCAs, c.ClientAuth = pool, tls.RequireAndVerifyClientCert })
	s.does(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = fmt.Fprintf(w, "pod %s x", r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	return s
}

func TestClientCertificateIsShown(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	ca, other := issue(t, nil, named("ca")), issue(t, nil, named("other"))
	put(t, at("ca"), ca.certPEM())
	for name, p := range map[string]*pair{
		"me": issue(t, ca, named("me")), "other": issue(t, other, named("other")),
		"old": issue(t, ca, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
	} {
		put(t, at(name+".cert"), p.certPEM())
		put(t, at(name+".key"), p.keyPEM())
	}
	s := mutual(t, issue(t, ca, nil), ca)
	for name, want := range map[string]string{
		"me": "", "": "the server refuses the TLS connection: certificate required",
		"other": "the server refuses the TLS connection: certificate required", // it is not even offered: the server has named its authorities
		"old":   "the server refuses the TLS connection: expired certificate",
	} {
		l := s.listen(t, func(c *Config) {
			c.CAFile = at("ca")
			if name != "" {
				c.CertFile, c.KeyFile = at(name+".cert"), at(name+".key")
			}
		})
		if want == "" {
			l.Set().Holds(t, "me")
		} else if err := l.Error(); err.Error() != want {
			t.Errorf("%q: error %q, want %q", name, err, want)
		}
		l.Leave()
		l.Ended()
	}
}

func TestRotatedCredentialsAreUsed(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	ca := issue(t, nil, named("ca"))
	put(t, at("ca"), ca.certPEM())
	show := func(name string) {
		p := issue(t, ca, named(name))
		put(t, at("cert"), append(p.certPEM(), p.keyPEM()...)) // one file may hold both, and is replaced in one step
	}
	show("first")
	s := mutual(t, issue(t, ca, nil), ca)
	l := s.listen(t, func(c *Config) { c.CAFile, c.CertFile, c.KeyFile = at("ca"), at("cert"), at("cert") })
	l.Set().Holds(t, "first")
	show("second")
	l.Set().Holds(t, "second")
	// The authority is replaced: first the source does not trust the server, then the
	// new CA is written.
	put(t, at("ca"), issue(t, nil, named("ca")).certPEM())
	if err := l.Error(); err.Error() != "certificate signed by unknown authority" {
		t.Errorf("error %q", err)
	}
	put(t, at("ca"), ca.certPEM())
	l.Set().Holds(t, "second")
}

// A file with certificate and key is replaced while it is read: the client uses one of the two
// pairs, never a mix of both.
//
// Shows: F72
func TestF72_PairReplacedWhileItIsRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	ca := issue(t, nil, named("ca"))
	put(t, at("ca"), ca.certPEM())
	write := func(name string) {
		p := issue(t, ca, named(name))
		put(t, at("pair"), append(p.certPEM(), p.keyPEM()...))
	}
	write("first")
	s := mutual(t, issue(t, ca, nil), ca)
	src := s.source(t, func(c *Config) { c.CAFile, c.CertFile, c.KeyFile = at("ca"), at("pair"), at("pair") })
	src.read = func(what, path string) ([]byte, error) {
		data, err := readCredential(what, path)
		if path == at("pair") {
			write("second")
		}
		return data, err
	}
	l := sourcetest.Listen(t, src)
	l.Set().Holds(t, "first")
	l.Set().Holds(t, "second")
}

func TestCredentialsThatCannotBeUsedAreNamed(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	ca := issue(t, nil, named("ca"))
	me, other := issue(t, ca, named("me")), issue(t, ca, named("other"))
	good := map[string][]byte{"ca": ca.certPEM(), "cert": me.certPEM(), "key": me.keyPEM()}
	for name, data := range good {
		put(t, at(name), data)
	}
	s := mutual(t, issue(t, ca, nil), ca)
	l := s.listen(t, func(c *Config) { c.CAFile, c.CertFile, c.KeyFile = at("ca"), at("cert"), at("key") })
	first := l.Set()
	block := func(kind string) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte("hunter2")}) }
	for _, c := range []struct {
		file string
		data []byte // nil: the file is gone
		want string
	}{
		{"ca", nil, "CA file " + at("ca") + ": no such file or directory"},
		{"ca", []byte{}, "CA file " + at("ca") + ": no certificate in it"},
		{"ca", []byte("hunter2"), "CA file " + at("ca") + ": no certificate in it"},
		{"ca", make([]byte, 2<<20), "CA file " + at("ca") + ": larger than 1 MiB"},
		{"cert", nil, "client certificate " + at("cert") + ": no such file or directory"},
		{"cert", []byte("hunter2"), "client certificate " + at("cert") + ": no certificate in it"},
		{"cert", block("HUNTER2"), "client certificate " + at("cert") + ": no certificate in it"},
		{"cert", block("CERTIFICATE"), "client certificate " + at("cert") + ": not a valid certificate"},
		{"cert", other.certPEM(), "client key " + at("key") + ": not the key of certificate " + at("cert")},
		{"key", nil, "client key " + at("key") + ": no such file or directory"},
		{"key", []byte("hunter2"), "client key " + at("key") + ": no key in it"},
		{"key", block("PRIVATE KEY"), "client key " + at("key") + ": not the key of certificate " + at("cert")},
		{"key", other.keyPEM(), "client key " + at("key") + ": not the key of certificate " + at("cert")},
	} {
		if c.data == nil {
			if err := os.Remove(at(c.file)); err != nil {
				t.Fatal(err)
			}
		} else {
			put(t, at(c.file), c.data)
		}
		if err := l.Error(); err.Error() != c.want {
			t.Errorf("%s: error %q, want %q", c.file, err, c.want)
		}
		put(t, at(c.file), good[c.file])
		w := l.Set()
		w.Names(t)
		if w.Pod("me") != first.Pod("me") {
			t.Error("the pod is another pointer")
		}
	}
}

// An http URL needs none of the files, which are given once for all URLs.
func TestPlainURLReadsNoCredentials(t *testing.T) {
	s := newSite(t)
	s.says("pod one x")
	s.listen(t, func(c *Config) { c.CAFile, c.CertFile, c.KeyFile = "/nowhere/ca", "/nowhere/cert", "/nowhere/key" }).Set().Holds(t, "one")
	for want, c := range map[string]Config{
		"a client certificate without its key": {URL: "https://cfg/", CertFile: "c"},
		"a client key without its certificate": {URL: "https://cfg/", KeyFile: "k"},
	} {
		if _, err := New(c); err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
