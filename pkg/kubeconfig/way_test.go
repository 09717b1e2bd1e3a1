package kubeconfig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"
)

// A dead connection is found by pings and keep-alives, which the transport has to
// be told to send.
func TestF70_ConnectionsAreProbed(t *testing.T) {
	t.Parallel()
	c := opened(t, kubeconfigOf(t, "https://127.0.0.1:1", "", ""))
	wire := must(c.Way()).wire
	if !wire.ForceAttemptHTTP2 || wire.HTTP2.SendPingTimeout != 30*time.Second || wire.HTTP2.PingTimeout != 15*time.Second {
		t.Errorf("transport %+v", wire)
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
func (a *authority) issue(name string, end time.Time) (cert, key string) {
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key))
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(k))}))
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// A client certificate that is rotated in its file is shown with the next request;
// what is under way on the old connection may end, but not for long.
func TestF72_RotatedCertificateEndsOldConnections(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	ended := make(chan string, 1) // cap 1: the handler of the one watch sends once
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		if r.URL.Path == "/watch" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			ended <- r.TLS.PeerCertificates[0].Subject.CommonName
		}
	}))
	cert, key := a.issue("server", time.Now().Add(time.Hour))
	h.TLS = &tls.Config{Certificates: []tls.Certificate{must(tls.X509KeyPair([]byte(cert), []byte(key)))}, ClientAuth: tls.RequireAnyClientCert}
	h.EnableHTTP2 = true
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.StartTLS()
	t.Cleanup(h.Close)

	dir := t.TempDir()
	pair := filepath.Join(dir, "pair.pem")
	rotate := func(name string) { cert, key := a.issue(name, time.Now().Add(time.Hour)); write(t, pair, cert+key) }
	rotate("first")
	c := opened(t, kubeconfigOf(t, h.URL, ", certificate-authority-data: "+encoded(a.pem), "client-certificate: "+pair+", client-key: "+pair))
	response, err := c.RoundTrip(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://nobody.invalid/watch", nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	says := func(want string) {
		t.Helper()
		if _, got, err := get(t, c, "/"); got != want {
			t.Errorf("asked as %q, %v, want %q", got, err, want)
		}
	}
	says("first")
	rotate("second")
	says("second")
	says("second")
	select {
	case who := <-ended:
		t.Errorf("what %s had under way ended at once", who)
	default:
	}
	c.lingers = 0
	says("second")
	select {
	case who := <-ended:
		if who != "first" {
			t.Errorf("the connection of %s was closed", who)
		}
	case <-time.After(30 * time.Second):
		t.Error("the old certificate's connection stays")
	}
	says("second")
}

// A rotated pair is shown in place of the certificate that the kubeconfig holds, but
// only for the same name and while it is valid.
func TestD4_RotatedPairWins(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	now := time.Now()
	cert, key := a.issue("system:node:n1", now.Add(time.Hour))
	pair := filepath.Join(t.TempDir(), "pair.pem")
	path := kubeconfigOf(t, "https://127.0.0.1:1", "", "client-certificate-data: "+encoded(cert)+", client-key-data: "+encoded(key))
	c := opened(t, path, func(c *Config) { c.Pair = pair })
	shows := func(want string) *Way {
		t.Helper()
		w := must(c.Way())
		config := w.wire.TLSClientConfig
		got := config.Certificates
		if config.GetClientCertificate != nil {
			got = []tls.Certificate{*must(config.GetClientCertificate(&tls.CertificateRequestInfo{}))}
		}
		if is := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: got[0].Certificate[0]})); is != want {
			t.Errorf("another certificate is shown")
		}
		return w
	}
	first := shows(cert)
	rotated, fresh := a.issue("system:node:n1", now.Add(2*time.Hour))
	write(t, pair, rotated+fresh)
	second := shows(rotated)
	if second == first || second.identity == first.identity || shows(rotated) != second || second.until.IsZero() {
		t.Error("the way is not made anew, or without need")
	}
	second.until = now // as if it had expired
	if shows(rotated) == second {
		t.Error("nobody looks whether the pair is still valid")
	}
	other, its := a.issue("system:node:n2", now.Add(2*time.Hour))
	write(t, pair, other+its)
	shows(cert)
	old, its := a.issue("system:node:n1", now.Add(-time.Minute))
	write(t, pair, old+its)
	shows(cert)
	write(t, pair, rotated)
	shows(cert)
	write(t, pair, rotated+fresh)
	shows(rotated)
	// A certificate in a file is kept fresh there.
	write(t, filepath.Join(filepath.Dir(path), "own.pem"), cert+key)
	write(t, path, kubeconfigText("https://127.0.0.1:1", "", "client-certificate: own.pem, client-key: own.pem"))
	shows(cert)
}
