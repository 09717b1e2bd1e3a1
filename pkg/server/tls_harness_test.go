package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// authority signs certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	it := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, it, it, &key.PublicKey, key)
	if err == nil {
		it, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &authority{it, key}
}

// sign returns a certificate for name, for clients and for 127.0.0.1, and its key.
func (a *authority) sign(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	it := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, it, a.cert, &own.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes})
}

// desk is an Access that knows the names of an authority's certificates and what each
// may do: "get", or "*".
type desk struct {
	pool   *x509.CertPool
	rights map[string]string
}

func (d *desk) Who(r *http.Request) (Caller, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return Caller{}, false, nil
	}
	cert := r.TLS.PeerCertificates[0]
	if _, err := cert.Verify(x509.VerifyOptions{Roots: d.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return Caller{}, false, err
	}
	return Caller{Name: cert.Subject.CommonName, Groups: []string{"system:authenticated"}}, true, nil
}

func (d *desk) May(_ context.Context, c Caller, verb string, subresources ...string) (bool, string, error) {
	switch right := d.rights[c.Name]; right {
	case "*":
		return true, "", nil
	case "?":
		return false, "", errors.New("the API server does not answer")
	case verb:
		return true, "", nil
	default: // "create exec"
		v, sub, ok := strings.Cut(right, " ")
		return ok && v == verb && slices.Contains(subresources, sub), "no such right", nil
	}
}

// port is a server with a TLS listener in a test.
type port struct {
	address string
	ca      *authority
	other   *authority // nobody knows it
	log     *said
	stop    func()
}

// opened serves cfg on the socket and on a TLS port until the test ends.
func opened(t *testing.T, cfg Config) *port {
	t.Helper()
	p := &port{ca: newAuthority(t), other: newAuthority(t), log: new(said)}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	pool := x509.NewCertPool()
	pool.AddCert(p.ca.cert)
	if cfg.Access == nil {
		cfg.Access = &desk{pool: pool, rights: map[string]string{"admin": "*", "reader": "get", "unasked": "?", "shell": "create exec", "proxy": "create proxy"}}
	}
	cert, err := tls.X509KeyPair(p.ca.sign(t, "node"))
	if err != nil {
		t.Fatal(err)
	}
	bound := make(chan string, 1)
	if cfg.TLS == nil {
		cfg.TLS = &TLS{}
	}
	if cfg.TLS.Address == "" {
		cfg.TLS.Address = "127.0.0.1:0"
	}
	cfg.TLS.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	cfg.TLS.Bound = func(address string) { bound <- address }
	_, p.stop = started(t, cfg)
	select {
	case p.address = <-bound:
	case <-time.After(patience):
		t.Fatal("it does not listen")
	}
	return p
}

// config is how the holder of a certificate connects; "" has none, "stranger" has
// one of another authority.
func (p *port) config(t *testing.T, name string) *rest.Config {
	t.Helper()
	cfg := &rest.Config{Host: "https://" + p.address}
	cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.ca.cert.Raw})
	switch name {
	case "":
	case "stranger":
		cfg.CertData, cfg.KeyData = p.other.sign(t, "admin")
	default:
		cfg.CertData, cfg.KeyData = p.ca.sign(t, name)
	}
	return cfg
}

// tls is the same for crypto/tls.
func (p *port) tls(t *testing.T, name string) *tls.Config {
	t.Helper()
	cfg, err := rest.TLSConfigFor(p.config(t, name))
	if err != nil {
		t.Fatal(err)
	}
	cfg.NextProtos = nil
	return cfg
}

// web is the same as an HTTP client, over HTTP/1.1.
func (p *port) web(t *testing.T, name string) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: p.tls(t, name)}, Timeout: patience}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// fetch asks and returns the code, the body and the headers.
func (p *port) fetch(t *testing.T, web *http.Client, method, path string, header http.Header) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+p.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	a, err := web.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(data), a.Header
}

func tlsClient(c net.Conn, cfg *tls.Config) *tls.Conn {
	cfg = cfg.Clone()
	cfg.ServerName = "127.0.0.1"
	return tls.Client(c, cfg)
}
