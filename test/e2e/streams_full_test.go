//go:build full

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// doorman makes an authority in file and a client of system:masters, which may do everything
// without an API server to ask.
func (s *stage) doorman(file string) *rest.Config {
	s.Helper()
	sign := func(it, by *x509.Certificate, key *ecdsa.PrivateKey) (der []byte, own *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		s.must(err)
		if key == nil {
			by, key = it, own
		}
		der, err = x509.CreateCertificate(rand.Reader, it, by, &own.PublicKey, key)
		s.must(err)
		return der, own
	}
	template := func(name string, groups ...string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: groups},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
	}
	ca := template("authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage, ca.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	der, key := sign(ca, nil, nil)
	s.must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	cert, own := sign(template("root", "system:masters"), ca, key)
	bytes, err := x509.MarshalPKCS8PrivateKey(own)
	s.must(err)
	return &rest.Config{TLSClientConfig: rest.TLSClientConfig{
		Insecure: true, // the agent's certificate is self-signed here
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes}),
	}}
}

// TestC_1_40_9_StreamsOfContainerd: exec, logs, run and port-forward through the TLS
// port, with client-go's clients and a real containerd.
//
// Shows: C-1.40.9
func TestC_1_40_9_StreamsOfContainerd(t *testing.T) {
	s := parallelStage(t)
	authority := filepath.Join(s.scratch, "ca.crt")
	who := s.doorman(authority)
	s.write("web.yaml", manifest("web", []string{container("main", "print, here, serve, ':8080', forever", `env: [{name: WORD, value: hello}]`)}))
	port := freePort(t)
	s.serve("--port", port, "--client-ca-file", authority)
	s.awaitRunning("web", "main")
	at := func(path string, query ...string) *url.URL {
		q := url.Values{}
		for i := 0; i < len(query); i += 2 {
			q.Add(query[i], query[i+1])
		}
		return &url.URL{Scheme: "https", Host: "127.0.0.1:" + port, Path: path, RawQuery: q.Encode()}
	}
	pod := "default/" + s.full("web")
	executors := func(query ...string) map[string]remotecommand.Executor {
		u := at("/exec/"+pod+"/main", query...)
		a, err1 := remotecommand.NewSPDYExecutor(who, http.MethodPost, u)
		b, err2 := remotecommand.NewWebSocketExecutor(who, http.MethodGet, u.String())
		s.must(errors.Join(err1, err2))
		return map[string]remotecommand.Executor{"SPDY": a, "WebSocket": b}
	}
	for name, x := range executors("command", "/app", "command", "env", "command", "WORD", "output", "1", "error", "1") {
		var out, errs bytes.Buffer
		if err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}); err != nil || !strings.HasSuffix(out.String(), "\nhello\n") {
			t.Errorf("%s: %q, %q, %v", name, out.String(), errs.String(), err)
		}
	}
	for name, x := range executors("command", "/app", "command", "exit", "command", "7", "output", "1", "error", "1") {
		var code clientexec.CodeExitError
		if err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard}); !errors.As(err, &code) || code.Code != 7 {
			t.Errorf("%s: %v", name, err)
		}
	}

	web, err := rest.HTTPClientFor(who)
	s.must(err)
	ask := func(method, path string, query ...string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, at(path, query...).String(), nil)
		s.must(err)
		a, err := web.Do(r)
		s.must(err)
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		s.must(err)
		return a.StatusCode, string(text)
	}
	s.eventually(func() error {
		if code, text := ask(http.MethodGet, "/containerLogs/"+pod+"/main", "tailLines", "1"); code != 200 || text != "here\n" {
			return fmt.Errorf("log: %d %q", code, text)
		}
		return nil
	})
	if code, text := ask(http.MethodPost, "/run/"+pod+"/main", "cmd", "/app print word"); code != 200 || !strings.HasSuffix(text, "\nword\n") {
		t.Errorf("run: %d %q", code, text)
	}
	// The bundle has no CRIU (C-1.40.10).
	if code, text := ask(http.MethodPost, "/checkpoint/"+pod+"/main"); code != http.StatusNotImplemented || !strings.Contains(text, "criu support is disabled by configuration") {
		t.Errorf("checkpoint: %d %q, want 501 and containerd's reason", code, text)
	}

	transport, upgrader, err := spdy.RoundTripperFor(who)
	s.must(err)
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at("/portForward/"+pod), who)
	s.must(err)
	for name, d := range map[string]httpstream.Dialer{"SPDY": spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at("/portForward/"+pod)), "tunnel": tunnel} {
		stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		f, err := portforward.NewForStreaming(d, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
		s.must(err)
		go func() { ended <- f.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatalf("%s: %v", name, err)
		}
		ports, err := f.GetPorts()
		s.must(err)
		for range 3 {
			a, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local))
			s.must(err)
			text, err := io.ReadAll(a.Body)
			_ = a.Body.Close()
			if err != nil || !strings.Contains(string(text), s.full("web")) {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		}
		close(stop)
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
