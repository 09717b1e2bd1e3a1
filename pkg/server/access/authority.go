package access

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/nodectl/nodectl/pkg/server"
)

const (
	// rereadAfter is the age at which the file is read again.
	rereadAfter = time.Second
	// credentialID is the ID of the credential, in the form of the API server's audit log.
	credentialID = "authentication.kubernetes.io/credential-id"
	// Limits of a chain. A client's chain has one or two intermediates of 2 KiB.
	maxIntermediates = 5
	maxSameSubject   = 2
	maxChainBytes    = 16 << 10
	maxRSABits       = 8192 // the limit of crypto/tls
	maxComparisons   = 1000 // of names with intermediates' name constraints
	// maxVerifications limits concurrent verifications.
	maxVerifications = 2
	// A refused chain is cached for refusedChainFor. An accepted one is cached as long as it is
	// valid: to verify it again, a request might wait behind invalid ones from the same address.
	refusedChainFor = 10 * time.Second
	maxChains       = 1024
)

// authorities are the authorities of client certificates.
type authorities struct {
	file string
	log  *slog.Logger

	verify            func(*x509.Certificate, x509.VerifyOptions) ([][]*x509.Certificate, error)
	slots             *semaphore.Weighted
	accepted, refused *cache.LRUExpireCache // of verification; refused chains displace no accepted one

	reloadWarnings server.WarningLimiter // errors

	mu         sync.Mutex // guards the fields below
	read       time.Time
	text       []byte
	pool       *x509.CertPool
	generation int64 // of the pool
}

func newAuthorities(file string, log *slog.Logger) (*authorities, error) {
	a := &authorities{
		file: file, log: log, verify: (*x509.Certificate).Verify, slots: semaphore.NewWeighted(maxVerifications),
		accepted: cache.NewLRUExpireCache(maxChains), refused: cache.NewLRUExpireCache(maxChains),
	}
	return a, a.load(time.Now())
}

// load reads the file. The caller holds mu, or a is not shared yet.
func (a *authorities) load(now time.Time) error {
	a.read = now
	text, err := os.ReadFile(a.file)
	if err != nil {
		return fmt.Errorf("client CA file: %w", err)
	}
	if a.pool != nil && bytes.Equal(text, a.text) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("client CA file: no certificate in %s", a.file)
	}
	if a.pool != nil {
		a.log.Info("Reloaded client CA file", "file", a.file)
	}
	a.text, a.pool = text, pool
	a.generation++
	return nil
}

// current returns the authorities and their generation. While the file cannot be read, it
// returns the last ones, so that replacing the file locks no caller out.
func (a *authorities) current(now time.Time) (*x509.CertPool, int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.read) >= rereadAfter || now.Before(a.read) {
		if err := a.load(now); err != nil {
			if notLogged, ok := a.reloadWarnings.Allow(); ok {
				a.log.Error("Failed to reload client CA file", "error", err, "notLogged", notLogged)
			}
		}
	}
	return a.pool, a.generation
}

// errChain is the error of a certificate chain that is refused without verification.
var errChain = errors.New("certificate chain costs too much to verify")

// checkChain refuses a chain whose verification could cost more than a few signatures.
// crypto/x509 itself stops after 100 signatures, which an unauthenticated caller could cause
// with one handshake.
func checkChain(presented []*x509.Certificate) error {
	if len(presented) > 1+maxIntermediates {
		return fmt.Errorf("%w: more than %d intermediates", errChain, maxIntermediates)
	}
	bytes, names, constraints, subjects := 0, 0, 0, map[string]int{}
	for i, c := range presented {
		names += len(c.DNSNames) + len(c.EmailAddresses) + len(c.IPAddresses) + len(c.URIs)
		if bytes += len(c.Raw); bytes > maxChainBytes {
			return fmt.Errorf("%w: more than %d bytes", errChain, maxChainBytes)
		}
		if key, ok := c.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSABits {
			return fmt.Errorf("%w: RSA key of more than %d bits", errChain, maxRSABits)
		}
		if i == 0 {
			continue
		}
		// crypto/x509 tries each certificate with the issuer's name as the issuer.
		if subjects[string(c.RawSubject)]++; subjects[string(c.RawSubject)] > maxSameSubject {
			return fmt.Errorf("%w: more than %d intermediates of one subject", errChain, maxSameSubject)
		}
		constraints += len(c.PermittedDNSDomains) + len(c.ExcludedDNSDomains) + len(c.PermittedIPRanges) + len(c.ExcludedIPRanges) +
			len(c.PermittedEmailAddresses) + len(c.ExcludedEmailAddresses) + len(c.PermittedURIDomains) + len(c.ExcludedURIDomains)
	}
	if names*constraints > maxComparisons {
		return fmt.Errorf("%w: more than %d names to compare", errChain, maxComparisons)
	}
	return nil
}

// verification is the result of verifying a chain.
type verification struct {
	caller      server.Caller
	ok          bool
	from, until time.Time // outside of this time the chain is verified again
}

// chainKey has the cache keys of a chain. The key of an accepted chain depends only on its first
// certificate, because other intermediates would change nothing. The key of a refused chain depends
// on all certificates, because it may have lacked an intermediate.
type chainKey struct{ accepted, refused string }

// cached returns the result for the chain from the caches. key has its cache keys.
func (a *authorities) cached(presented []*x509.Certificate, now time.Time) (key chainKey, result verification, found bool) {
	_, generation := a.current(now)
	sum := sha256.New()
	_ = binary.Write(sum, binary.BigEndian, generation)
	for i, c := range presented {
		_ = binary.Write(sum, binary.BigEndian, int64(len(c.Raw)))
		sum.Write(c.Raw)
		if i == 0 {
			key.accepted = string(sum.Sum(nil))
		}
	}
	key.refused = string(sum.Sum(nil))
	for _, in := range []struct {
		cache *cache.LRUExpireCache
		key   string
	}{{a.accepted, key.accepted}, {a.refused, key.refused}} {
		if v, ok := in.cache.Get(in.key); ok && !now.Before(v.(verification).from) && now.Before(v.(verification).until) {
			return key, v.(verification), true
		}
	}
	return key, verification{}, false
}

// verifyChain verifies the chain and caches the result under key. It accepts a certificate for
// client authentication that one of the authorities signed and that is valid now. At most
// maxVerifications run at a time.
func (a *authorities) verifyChain(ctx context.Context, key chainKey, presented []*x509.Certificate, now time.Time) (verification, error) {
	if err := a.slots.Acquire(ctx, 1); err != nil {
		return verification{}, err
	}
	defer a.slots.Release(1)
	if _, result, found := a.cached(presented, now); found { // another request has verified it meanwhile
		return result, nil
	}
	pool, _ := a.current(now)
	opts := x509.VerifyOptions{
		Roots: pool, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, between := range presented[1:] {
		opts.Intermediates.AddCert(between)
	}
	leaf := presented[0]
	chains, err := a.verify(leaf, opts)
	if err != nil {
		a.log.Debug("Client certificate refused", "error", err)
		result := verification{from: now, until: now.Add(refusedChainFor)}
		a.refused.Add(key.refused, result, refusedChainFor)
		return result, nil
	}
	sum := sha256.Sum256(leaf.Raw)
	result := verification{from: now, until: leaf.NotAfter, ok: true, caller: server.Caller{
		Name:   leaf.Subject.CommonName,
		Groups: leaf.Subject.Organization,
		Extra:  map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}}
	for _, c := range chains[0] {
		if c.NotAfter.Before(result.until) {
			result.until = c.NotAfter
		}
	}
	a.accepted.Add(key.accepted, result, result.until.Sub(now))
	return result, nil
}
