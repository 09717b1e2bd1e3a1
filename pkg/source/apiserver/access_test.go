package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

func TestNewDialsNothingAndNameIsThePath(t *testing.T) {
	path := leadsTo(t, "https://server.invalid:1", "", "")
	r := newReader(t, path, func(*apiclient.ReaderConfig) {})
	s, err := New(Config{Kubeconfig: path, Reader: r, Node: node, Spec: spec(path)})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Name(); got != "api:"+path {
		t.Errorf("name %q", got)
	}
	for _, c := range []Config{{}, {Kubeconfig: path, Reader: r, Spec: spec(path)}, {Kubeconfig: path, Reader: r, Node: node}, {Kubeconfig: path, Node: node, Spec: spec(path)}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: t.Name()}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key))
	a.cert = must(x509.ParseCertificate(der))
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// issue returns a certificate and its key, as PEM.
func (a *authority) issue(name string) (cert, key string) {
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key))
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(k))}))
}

// data is the field of a kubeconfig's cluster for a.
func (a *authority) data() string {
	return ", certificate-authority-data: " + base64.StdEncoding.EncodeToString([]byte(a.pem))
}

// secure starts a server whose certificate a issued; it requires client certificates.
func (a *authority) secure(t *testing.T) *server {
	cert, key := a.issue("server")
	pair := must(tls.X509KeyPair([]byte(cert), []byte(key)))
	h := httptest.NewUnstartedServer(nil)
	h.EnableHTTP2 = true
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM([]byte(a.pem))
	h.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, ClientCAs: clients}
	h.Config.ErrorLog = quiet()
	s := newServerAt(t, h)
	h.StartTLS()
	return s
}

// lets makes the server refuse requests for which in is false.
func (s *server) lets(in func(r *http.Request) bool) {
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if in(r) {
			return false
		}
		http.Error(w, "hunter2", http.StatusUnauthorized)
		return true
	})
}

// The source reports a token that expired; it uses a new one in its file at the next
// attempt, without a restart.
//
// Shows: F72
func TestF72_ExpiredTokenIsReadAgain(t *testing.T) {
	a := newAuthority(t)
	s := a.secure(t)
	s.put(boundPod("one", "x"))
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "first\n")
	l := sourcetest.Listen(t, newSource(t, leadsTo(t, s.URL, a.data(), "tokenFile: "+token)))
	l.Set().Holds(t, "one")
	if got := s.watched(t, 1).Header.Get("Authorization"); got != "Bearer first" {
		t.Errorf("authorization %q", got)
	}
	s.lets(func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer second" })
	if err := l.Error(); !strings.Contains(err.Error(), "HTTP 401: the server does not accept our credentials") {
		t.Errorf("error %q", err)
	}
	write(t, token, "second\n")
	w := l.Set()
	w.Holds(t, "one")
	w.Names(t)
}

// Shows: F72
func TestF72_ForbiddenIsReportedAndKeepsPods(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	l := sourcetest.Listen(t, s.source(t))
	l.Set()
	s.fails(http.StatusForbidden)
	if err := l.Error(); !strings.Contains(err.Error(), "HTTP 403: the server denies permission to list and watch this node's pods") {
		t.Errorf("error %q", err)
	}
	s.says(nil)
	l.Set().Holds(t, "one")
}

// The client's certificate is rotated in its files.
//
// Shows: F72
func TestF72_ClientCertificateIsReadAgain(t *testing.T) {
	a := newAuthority(t)
	s := a.secure(t)
	s.put(boundPod("one", "x"))
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	issue := func(name string) {
		cert, key := a.issue(name)
		write(t, path("crt"), cert)
		write(t, path("key"), key)
	}
	issue("first")
	write(t, path("ca"), a.pem)
	l := sourcetest.Listen(t, newSource(t, leadsTo(t, s.URL, ", certificate-authority: "+path("ca"), "client-certificate: "+path("crt")+", client-key: "+path("key"))))
	l.Set().Holds(t, "one")
	if r := s.watched(t, 1); r.ProtoMajor != 2 || r.TLS.PeerCertificates[0].Subject.CommonName != "first" {
		t.Errorf("HTTP/%d as %v", r.ProtoMajor, r.TLS.PeerCertificates)
	}
	s.lets(func(r *http.Request) bool { return r.TLS.PeerCertificates[0].Subject.CommonName == "second" })
	l.Error()
	// Between the two files' replacement they do not fit.
	cert, key := a.issue("second")
	write(t, path("crt"), cert)
	if err := l.Error(); !strings.Contains(err.Error(), "private key does not match public key") {
		t.Errorf("error %q", err)
	}
	write(t, path("key"), key)
	l.Set().Holds(t, "one")
}

// The server has a certificate of another authority: an error until the
// kubeconfig's file names that authority too.
//
// Shows: F72
func TestF72_RotatedAuthorityIsReadAgain(t *testing.T) {
	was, is := newAuthority(t), newAuthority(t)
	first := was.secure(t)
	first.put(boundPod("one", "x"))
	ca := filepath.Join(t.TempDir(), "ca")
	write(t, ca, was.pem)
	path := leadsTo(t, first.URL, ", certificate-authority: "+ca, "")
	l := sourcetest.Listen(t, newSource(t, path))
	before := l.Set()
	before.Holds(t, "one")
	first.watched(t, 1)
	second := is.secure(t)
	second.change(func() { second.rv = 1000; second.puts(boundPod("one", "y")) })
	writeKubeconfig(t, path, second.URL, ", certificate-authority: "+ca, "")
	first.fails(http.StatusServiceUnavailable)
	if err := l.Error(); !strings.Contains(err.Error(), "signed by an authority that the kubeconfig does not name") {
		t.Errorf("error %q", err)
	}
	write(t, ca, was.pem+is.pem)
	w := l.Set()
	w.Holds(t, "one")
	w.Names(t, "one")
}

// A kubeconfig that is broken for a while is an error for a while.
//
// Shows: F72
func TestF72_ReplacedKubeconfig(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	path := leadsTo(t, "http://127.0.0.1:1", "", "token: "+base64.StdEncoding.EncodeToString([]byte("hunter2")))
	l := sourcetest.Listen(t, newSource(t, path))
	if got, want := l.Error().Error(), "http://127.0.0.1:1: connection refused"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	write(t, path, "{")
	if err := l.Error(); !strings.HasPrefix(err.Error(), path) {
		t.Errorf("error %q", err)
	}
	writeKubeconfig(t, path, s.URL, "", "")
	l.Set().Holds(t, "one")
}

// The source sends requests below the path of the server's URL, as behind a gateway.
func TestServerBelowAPath(t *testing.T) {
	s := newServer(t)
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if p, ok := strings.CutPrefix(r.URL.Path, "/k8s/c-1"); ok {
			r.URL.Path = p
			return false
		}
		w.WriteHeader(http.StatusTeapot)
		return true
	})
	s.put(boundPod("one", "x"))
	sourcetest.Listen(t, newSource(t, leadsTo(t, s.URL+"/k8s/c-1/", "", ""))).Set().Holds(t, "one")
}

// A kubeconfig may name a command that provides credentials. Errors and logs contain
// neither its output nor its error.
//
// Shows: F72
func TestF72_CredentialsFromACommand(t *testing.T) {
	a := newAuthority(t)
	s := a.secure(t)
	s.put(boundPod("one", "x"))
	path := leadsTo(t, s.URL, a.data(), "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./credentials, interactiveMode: Never}")
	command := filepath.Join(filepath.Dir(path), "credentials")
	says := func(script string) {
		write(t, command, "#!/bin/sh\n"+script)
		if err := os.Chmod(command, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	says("exit 3\n")
	l := sourcetest.Listen(t, newSource(t, path))
	if got, want := l.Error().Error(), s.URL+": the kubeconfig's command for credentials failed"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	says(`echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "given"}}'` + "\n")
	l.Set().Holds(t, "one")
	if got := s.watched(t, 1).Header.Get("Authorization"); got != "Bearer given" {
		t.Errorf("authorization %q", got)
	}
}

// A kubeconfig that a bootstrap has yet to write is an error that passes, and the
// connections are shared with others.
//
// Shows: F72
func TestF72_KubeconfigIsYetToBeWritten(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	c, err := apiclient.Open(apiclient.Config{File: path, Awaited: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := sourcetest.Listen(t, newSource(t, path, func(cfg *Config) {
		cfg.Reader = newReader(t, path, func(r *apiclient.ReaderConfig) { r.Client, r.Shared = c, true })
	}))
	if err := l.Error(); err.Error() != path+": cannot be read: no such file or directory" {
		t.Errorf("error %q", err)
	}
	writeKubeconfig(t, path, s.URL, "", "")
	l.Set().Holds(t, "one")
}
