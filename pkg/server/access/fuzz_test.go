package access

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// FuzzCertificates: a caller gets in only with a chain that an authority of the node signed
// for clients, and no chain above the limits is verified.
//
// Shows: D1
func FuzzCertificates(f *testing.F) {
	ours, others := newAuthority("ours", nil), newAuthority("ours", nil)
	between := newAuthority("between", ours)
	good := ours.issue("anna")
	f.Add(good.Raw)
	f.Add(bytes.Join([][]byte{between.issue("anna").Raw, between.cert.Raw}, nil))
	f.Add(others.issue("anna").Raw)
	f.Add(bytes.Join([][]byte{others.issue("anna").Raw, others.cert.Raw, ours.cert.Raw}, nil))
	f.Add(bytes.Repeat(others.cert.Raw, 2+maxIntermediates))
	f.Add(good.Raw[:len(good.Raw)-1])
	f.Add([]byte{0x30, 0x82})
	file := caFile(f, ours.pem())
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	f.Fuzz(func(t *testing.T, der []byte) {
		shown, err := x509.ParseCertificates(der)
		if err != nil || len(shown) == 0 { // crypto/tls fails the handshake
			return
		}
		a, err := New(Config{Node: "n1", ClientCAFile: file})
		if err != nil {
			t.Fatal(err)
		}
		verified, _ := counting(a)
		r := showing(shown...)
		c, ok, err := a.Authenticate(r)
		if err != nil {
			t.Errorf("error %v", err)
		}
		if n := verified.Load(); n > 1 || n == 1 && (len(der) > maxChainBytes || len(shown) > 1+maxIntermediates) {
			t.Errorf("%d verifications of %d certificates in %d bytes", n, len(shown), len(der))
		}
		between := x509.NewCertPool()
		for _, c := range shown[1:min(len(shown), 1+maxIntermediates)] {
			between.AddCert(c)
		}
		_, wrong := shown[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if ok && (wrong != nil || c.Local || c.Name != shown[0].Subject.CommonName || c.Name == "" || c.Name == anonymousName) {
			t.Errorf("%+v is let in: %v", c, wrong)
		}
		again, same, _ := a.Authenticate(r)
		if same != ok || again.Name != c.Name || verified.Load() > 1 {
			t.Errorf("the second answer is %t, the first one %t, after %d verifications", same, ok, verified.Load())
		}
	})
}

// FuzzTokens: with any Authorization header, only a token that the API server knows lets
// its caller in, and no token gets into the log.
//
// Shows: D1
func FuzzTokens(f *testing.F) {
	const known = "hunter2-of-anna"
	for _, header := range []string{
		"Bearer " + known, "bearer  " + known + " ", "Bearer " + known + " more", "Basic " + known, "Bearer", "", "Bearer \x00", "Bearer \xff\xfe",
		"Bearer " + strings.Repeat("x", maxTokenBytes+1), "Bearer " + strings.ToUpper(known), "Bearer\t" + known, "Bearer " + known + "\n",
	} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		var log bytes.Buffer
		s := &api{tokens: anna()}
		s.tokens[known] = s.tokens["hunter2"]
		delete(s.tokens, "hunter2")
		cfg := Config{Node: "n1", API: &rest.Config{Host: "https://kubernetes.invalid", Transport: s}, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		cfg.API.ContentType = "application/json"
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "https://node:10250/pods", nil)
		r.TLS = &tls.ConnectionState{}
		r.Header["Authorization"] = []string{header}
		c, ok, err := a.Authenticate(r)
		scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
		if token = strings.TrimSpace(token); ok && (token != known || !strings.EqualFold(scheme, "Bearer") || c.Name != "anna" || c.Local) {
			t.Errorf("%q is %+v", header, c)
		}
		if err != nil {
			t.Errorf("%q: %v", header, err)
		}
		if n, _ := s.counts(); n > 1 || n == 1 && len(token) > maxTokenBytes {
			t.Errorf("%q: %d reviews", header, n)
		}
		if len(token) > 8 && strings.Contains(log.String(), token) {
			t.Errorf("%q is in the log", header)
		}
		if _, same, _ := a.Authenticate(r); same != ok {
			t.Errorf("%q: the second answer is another one", header)
		}
	})
}
