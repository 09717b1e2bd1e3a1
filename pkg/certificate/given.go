package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// rereadAfter is the age at which a handshake reads the files again.
const rereadAfter = time.Second

// fromFiles is a certificate in files that another program renews. A handshake reads them;
// while they are unusable, the last good certificate stays in use.
type fromFiles struct {
	certFile, keyFile string
	failures          *counter
	log               *slog.Logger

	mu        sync.Mutex // guards the fields below
	read      time.Time
	cert, key []byte // as they were when they could last be read
	pair      *tls.Certificate
}

func newFromFiles(certFile, keyFile string, failures *counter, log *slog.Logger) (*fromFiles, error) {
	g := &fromFiles{certFile: certFile, keyFile: keyFile, failures: failures, log: log}
	if err := g.load(time.Now()); err != nil {
		return nil, err
	}
	return g, nil
}

// load reads the files; mu is held, or g is not shared yet.
func (g *fromFiles) load(now time.Time) error {
	g.read = now
	cert, err := os.ReadFile(g.certFile)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	key := cert
	if g.keyFile != g.certFile { // one that holds both may be another by now
		if key, err = os.ReadFile(g.keyFile); err != nil {
			return fmt.Errorf("serving certificate: %w", err)
		}
	}
	if g.pair != nil && bytes.Equal(cert, g.cert) && bytes.Equal(key, g.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("serving certificate %s with key %s: %w", g.certFile, g.keyFile, err)
	}
	if g.pair != nil {
		g.log.Info("Reloaded serving certificate", "file", g.certFile, "expires", pair.Leaf.NotAfter)
	}
	g.cert, g.key, g.pair = cert, key, &pair
	return nil
}

func (g *fromFiles) now() (*tls.Certificate, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); now.Sub(g.read) >= rereadAfter || now.Before(g.read) {
		if err := g.load(now); err != nil {
			g.failures.Inc()
			g.log.Warn("Failed to reload serving certificate; the last one stays in use", "error", err)
		}
	}
	return g.pair, nil
}

func (g *fromFiles) run(ctx context.Context) { <-ctx.Done() }
