package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/test/authority"
	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/wait"
)

// certAccess is an Access that authenticates an authority's certificates by their names, and has
// the rights of each: "get", or "*".
type certAccess struct {
	pool   *x509.CertPool
	rights map[string]string
}

func (d *certAccess) Authenticate(r *http.Request) (Caller, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return Caller{}, false, nil
	}
	cert := r.TLS.PeerCertificates[0]
	if _, err := cert.Verify(x509.VerifyOptions{Roots: d.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return Caller{}, false, err
	}
	return Caller{Name: cert.Subject.CommonName, Groups: []string{"system:authenticated"}}, true, nil
}

func (d *certAccess) Authorize(_ context.Context, c Caller, verb string, subresources ...string) (bool, string, error) {
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
	ca      *authority.Authority
	other   *authority.Authority // unknown to the server
	log     *said.Log
	stop    func()
}

// opened serves cfg on the socket and on a TLS port until the test ends.
func opened(t *testing.T, cfg Config) *port {
	t.Helper()
	p := &port{ca: authority.New(), other: authority.New(), log: new(said.Log)}
	if cfg.Log == nil {
		cfg.Log = p.log.Logger()
	}
	pool := x509.NewCertPool()
	pool.AddCert(p.ca.Cert)
	if cfg.Access == nil {
		cfg.Access = &certAccess{pool: pool, rights: map[string]string{"admin": "*", "reader": "get", "unasked": "?", "shell": "create exec", "proxy": "create proxy"}}
	}
	crt, key := p.ca.Issue("node")
	cert, err := tls.X509KeyPair([]byte(crt), []byte(key))
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
	p.address = wait.Receive(t, "its address", bound)
	return p
}

// config returns the client configuration with a certificate; "" has none, "unknown" has
// one of another authority.
func (p *port) config(t *testing.T, name string) *rest.Config {
	t.Helper()
	cfg := &rest.Config{Host: "https://" + p.address}
	cfg.CAData = []byte(p.ca.PEM())
	if name == "" {
		return cfg
	}
	by := p.ca
	if name == "unknown" {
		by, name = p.other, "admin"
	}
	cert, key := by.Issue(name)
	cfg.CertData, cfg.KeyData = []byte(cert), []byte(key)
	return cfg
}

// tls returns config for crypto/tls.
func (p *port) tls(t *testing.T, name string) *tls.Config {
	t.Helper()
	cfg, err := rest.TLSConfigFor(p.config(t, name))
	if err != nil {
		t.Fatal(err)
	}
	cfg.NextProtos = nil
	return cfg
}

// web returns an HTTP/1.1 client with config.
func (p *port) web(t *testing.T, name string) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: p.tls(t, name)}, Timeout: wait.Limit}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// fetch sends a request and returns the code, the body and the headers.
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
