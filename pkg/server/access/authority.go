package access

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/server"
)

const (
	// rereadAfter is how old what was read of the file may be.
	rereadAfter = time.Second
	// credentialID is what the API server's audit log calls the credential.
	credentialID = "authentication.kubernetes.io/credential-id"
)

// authorities are those whose client certificates are believed.
type authorities struct {
	file string
	log  *slog.Logger

	mu   sync.Mutex // guards what follows
	read time.Time
	text []byte
	pool *x509.CertPool
}

func newAuthorities(file string, log *slog.Logger) (*authorities, error) {
	a := &authorities{file: file, log: log}
	return a, a.load(time.Now())
}

// load reads the file; mu is held, or nobody else knows a.
func (a *authorities) load(now time.Time) error {
	a.read = now
	text, err := os.ReadFile(a.file)
	if err != nil {
		return fmt.Errorf("client authorities: %w", err)
	}
	if a.pool != nil && bytes.Equal(text, a.text) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("client authorities: %s holds no certificate", a.file)
	}
	if a.pool != nil {
		a.log.Info("Client authorities replaced", "file", a.file)
	}
	a.text, a.pool = text, pool
	return nil
}

// now returns the authorities. While the file cannot be read, those of before stand:
// a file that is being replaced locks nobody out.
func (a *authorities) now(now time.Time) *x509.CertPool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.read) >= rereadAfter || now.Before(a.read) {
		if err := a.load(now); err != nil {
			a.log.Error("Client authorities not read again", "error", err)
		}
	}
	return a.pool
}

// who says whom the certificate names that somebody has shown the key of: it is
// signed for clients by one of the authorities, and is valid now.
func (a *authorities) who(shown []*x509.Certificate, now time.Time) (server.Caller, bool) {
	opts := x509.VerifyOptions{
		Roots: a.now(now), Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, between := range shown[1:] {
		opts.Intermediates.AddCert(between)
	}
	leaf := shown[0]
	if _, err := leaf.Verify(opts); err != nil {
		a.log.Debug("Client certificate refused", "error", err)
		return server.Caller{}, false
	}
	sum := sha256.Sum256(leaf.Raw)
	return server.Caller{
		Name:   leaf.Subject.CommonName,
		Groups: leaf.Subject.Organization,
		Extra:  map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}, true
}
