package certificate

import (
	"context"
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
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
)

const (
	// selfSignedFor is the validity of a self-signed certificate, and freshFor how much
	// of it has to be left.
	selfSignedFor = 365 * 24 * time.Hour
	freshFor      = 30 * 24 * time.Hour
	// checkAgain is how often its life and its addresses are looked at.
	checkAgain = 10 * time.Second
)

// selfSigned is a certificate that the node signs itself, kept in kubelet.crt and
// kubelet.key (C-1.40.1): it encrypts connections, but does not prove the node's
// identity. It is replaced before it expires, and when the node has another address.
type selfSigned struct {
	cfg      ServingConfig
	failures *counter
	log      *slog.Logger

	mu   sync.Mutex // guards the fields below
	pair *tls.Certificate
}

func newSelfSigned(cfg ServingConfig, failures *counter) (*selfSigned, error) {
	s := &selfSigned{cfg: cfg, failures: failures, log: cfg.Log}
	if pair, err := tls.LoadX509KeyPair(s.files()); err == nil {
		s.pair = &pair
	}
	return s, s.refresh(time.Now())
}

func (s *selfSigned) files() (cert, key string) {
	return filepath.Join(s.cfg.Dir, "kubelet.crt"), filepath.Join(s.cfg.Dir, "kubelet.key")
}

func (s *selfSigned) now() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pair, nil
}

func (s *selfSigned) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.refresh(time.Now()); err != nil {
			s.failures.Inc()
			s.log.Warn("Failed to renew self-signed serving certificate", "error", err)
		}
		backoff.Sleep(ctx, checkAgain)
	}
}

// refresh makes a certificate where the one that is there will not do.
func (s *selfSigned) refresh(now time.Time) error {
	names, addresses := sans(s.cfg.Addresses())
	names = append(names, s.cfg.Node)
	slices.Sort(names)
	names = slices.Compact(names)
	was, _ := s.now()
	if was != nil && serves(was.Leaf, names, addresses, now) {
		return nil
	}
	if was != nil && was.Leaf != nil && len(addresses) == 0 {
		addresses = was.Leaf.IPAddresses // not known yet, after a restart
	}
	cert, key, err := signSelf(s.cfg.Node, names, addresses, now)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	if err := s.keep(cert, key); err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pair = &pair
	s.log.Info("Created self-signed serving certificate", "names", names, "addresses", addresses, "expires", pair.Leaf.NotAfter)
	return nil
}

// keep writes the key first: one without its certificate is made again, and a
// certificate is never shown with another key.
func (s *selfSigned) keep(cert, key []byte) error {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	certFile, keyFile := s.files()
	if err := write(keyFile, key, 0o600); err != nil {
		return err
	}
	return write(certFile, cert, 0o644)
}

// serves reports whether a certificate will do for a while.
func serves(leaf *x509.Certificate, names []string, addresses []net.IP, now time.Time) bool {
	if leaf == nil || now.Before(leaf.NotBefore) || leaf.NotAfter.Sub(now) < freshFor {
		return false
	}
	for _, name := range names {
		if !slices.Contains(leaf.DNSNames, name) {
			return false
		}
	}
	for _, ip := range addresses {
		if !slices.ContainsFunc(leaf.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// signSelf makes a key and a certificate that it signs itself, as PEM.
func signSelf(node string, names []string, addresses []net.IP, now time.Time) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: node},
		NotBefore:    now.Add(-time.Hour), // whose clock is a little late
		NotAfter:     now.Add(selfSignedFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     names, IPAddresses: addresses,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}
