package apiclient

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/authority"
	"github.com/nodectl/nodectl/test/wait"
)

// Pings and keep-alives detect a dead connection; the transport must be configured to
// send them.
//
// Shows: F70
func TestF70_ConnectionsAreProbed(t *testing.T) {
	t.Parallel()
	c := opened(t, kubeconfigOf(t, "https://127.0.0.1:1", "", ""))
	wire := must(c.Transport()).wire
	if !wire.ForceAttemptHTTP2 || wire.HTTP2.SendPingTimeout != 30*time.Second || wire.HTTP2.PingTimeout != 15*time.Second {
		t.Errorf("transport %+v", wire)
	}
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// secured starts a server whose certificate is the authority's; it asks clients for
// theirs.
func secured(t *testing.T, a *authority.Authority, answer http.HandlerFunc) *httptest.Server {
	h := httptest.NewUnstartedServer(answer)
	cert, key := a.Issue("server")
	h.TLS = &tls.Config{Certificates: []tls.Certificate{must(tls.X509KeyPair([]byte(cert), []byte(key)))}, ClientAuth: tls.RequestClientCert}
	h.EnableHTTP2 = true
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

// A server with a certificate of another authority is accepted once the kubeconfig's
// file names that one too.
//
// Shows: F72
func TestF72_RotatedAuthorityIsReadAgain(t *testing.T) {
	t.Parallel()
	was, is := authority.New(), authority.New()
	h := secured(t, is, func(http.ResponseWriter, *http.Request) {})
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write(t, ca, was.PEM())
	c := opened(t, kubeconfigOf(t, h.URL, ", certificate-authority: "+ca, ""))
	if _, _, err := get(t, c, "/"); err == nil || !strings.Contains(err.Error(), "signed by an authority that the kubeconfig does not name") {
		t.Errorf("error %v", err)
	}
	write(t, ca, was.PEM()+is.PEM())
	if _, _, err := get(t, c, "/"); err != nil {
		t.Error(err)
	}
}

// A kubeconfig may name a command that provides credentials. Its error is not shown,
// and the client runs it again.
//
// Shows: F72
func TestF72_CredentialsFromACommand(t *testing.T) {
	t.Parallel()
	s, trust := echo(t)
	path := kubeconfigOf(t, s.URL, trust, "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./credentials, interactiveMode: Never}")
	command := filepath.Join(filepath.Dir(path), "credentials")
	says := func(script string) {
		write(t, command, "#!/bin/sh\n"+script+"\n")
		if err := os.Chmod(command, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	says("echo hunter2 >&2; exit 3")
	c := opened(t, path)
	if _, _, err := get(t, c, "/"); err == nil || err.Error() != s.URL+": the kubeconfig's command for credentials failed" {
		t.Errorf("error %v", err)
	}
	says(`echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "given"}}'`)
	if _, got, err := get(t, c, "/"); !strings.Contains(got, "Bearer given ") {
		t.Errorf("%q, %v", got, err)
	}
}

// The next request uses a client certificate that was rotated in its file; requests in
// flight on the old connection may continue for a limited time.
//
// Shows: F72
func TestF72_RotatedCertificateEndsOldConnections(t *testing.T) {
	t.Parallel()
	a := authority.New()
	ended := make(chan string, 1) // cap 1: the handler of the one watch sends once
	h := secured(t, a, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		if r.URL.Path == "/watch" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			ended <- r.TLS.PeerCertificates[0].Subject.CommonName
		}
	})
	dir := t.TempDir()
	pair := filepath.Join(dir, "pair.pem")
	rotate := func(name string) { cert, key := a.Issue(name); write(t, pair, cert+key) }
	rotate("first")
	c := opened(t, kubeconfigOf(t, h.URL, ", certificate-authority-data: "+encoded(a.PEM()), "client-certificate: "+pair+", client-key: "+pair))
	response, err := c.RoundTrip(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://missing.invalid/watch", nil)))
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
	c.drainTimeout = 0
	says("second")
	if who := wait.Receive(t, "the end of the old certificate's connection", ended); who != "first" {
		t.Errorf("the connection of %s was closed", who)
	}
	says("second")
}

// A rotated pair is shown in place of the certificate that the kubeconfig holds, but
// only for the same name and while it is valid.
//
// Shows: D4
func TestD4_RotatedPairWins(t *testing.T) {
	t.Parallel()
	a := authority.New()
	now := time.Now()
	cert, key := a.Issue("system:node:n1", authority.Until(now.Add(time.Hour)))
	pair := filepath.Join(t.TempDir(), "pair.pem")
	path := kubeconfigOf(t, "https://127.0.0.1:1", "", "client-certificate-data: "+encoded(cert)+", client-key-data: "+encoded(key))
	c := opened(t, path, func(c *Config) { c.Pair = pair })
	shows := func(want string) *Transport {
		t.Helper()
		w := must(c.Transport())
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
	rotated, fresh := a.Issue("system:node:n1", authority.Until(now.Add(2*time.Hour)))
	write(t, pair, rotated+fresh)
	second := shows(rotated)
	if second == first || second.identity == first.identity || shows(rotated) != second || second.until.IsZero() {
		t.Error("the transport is not replaced, or without need")
	}
	second.until = now // as if it had expired
	if shows(rotated) == second {
		t.Error("the pair is not checked for its validity")
	}
	other, its := a.Issue("system:node:n2", authority.Until(now.Add(2*time.Hour)))
	write(t, pair, other+its)
	shows(cert)
	old, its := a.Issue("system:node:n1", authority.Until(now.Add(-time.Minute)))
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
