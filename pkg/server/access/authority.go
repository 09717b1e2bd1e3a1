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
	intermediates = 5
	sameSubject   = 2
	chainLimit    = 16 << 10
	rsaLimit      = 8192 // bits, the limit of crypto/tls
	comparisons   = 1000 // of names with intermediates' name constraints
	// verifying limits concurrent verifications.
	verifying = 2
	// An accepted certificate is cached as long as its chain is valid. To verify it again, a
	// request would have to wait, and junk certificates from the same address may have taken
	// all places. A refused chain is cached for refusedFor.
	refusedFor = 10 * time.Second
	chainsKept = 1024
)

// authorities are the authorities of client certificates.
type authorities struct {
	file string
	log  *slog.Logger

	verify            func(*x509.Certificate, x509.VerifyOptions) ([][]*x509.Certificate, error)
	turns             *semaphore.Weighted
	accepted, refused *cache.LRUExpireCache // of judged; a crowd of refused chains displaces no accepted one

	unread server.WarningLimiter // errors

	mu         sync.Mutex // guards the fields below
	read       time.Time
	text       []byte
	pool       *x509.CertPool
	generation int64 // of the pool
}

func newAuthorities(file string, log *slog.Logger) (*authorities, error) {
	a := &authorities{
		file: file, log: log, verify: (*x509.Certificate).Verify, turns: semaphore.NewWeighted(verifying),
		accepted: cache.NewLRUExpireCache(chainsKept), refused: cache.NewLRUExpireCache(chainsKept),
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

// now returns the authorities and their generation. While the file cannot be read, it
// returns the last ones, so that replacing the file locks no caller out.
func (a *authorities) now(now time.Time) (*x509.CertPool, int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.read) >= rereadAfter || now.Before(a.read) {
		if err := a.load(now); err != nil {
			if hidden, ok := a.unread.Allow(); ok {
				a.log.Error("Failed to reload client CA file", "error", err, "notLogged", hidden)
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
func checkChain(shown []*x509.Certificate) error {
	if len(shown) > 1+intermediates {
		return fmt.Errorf("%w: more than %d intermediates", errChain, intermediates)
	}
	bytes, names, constraints, subjects := 0, 0, 0, map[string]int{}
	for i, c := range shown {
		names += len(c.DNSNames) + len(c.EmailAddresses) + len(c.IPAddresses) + len(c.URIs)
		if bytes += len(c.Raw); bytes > chainLimit {
			return fmt.Errorf("%w: more than %d bytes", errChain, chainLimit)
		}
		if key, ok := c.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > rsaLimit {
			return fmt.Errorf("%w: RSA key of more than %d bits", errChain, rsaLimit)
		}
		if i == 0 {
			continue
		}
		// crypto/x509 tries each certificate with the issuer's name as the issuer.
		if subjects[string(c.RawSubject)]++; subjects[string(c.RawSubject)] > sameSubject {
			return fmt.Errorf("%w: more than %d intermediates of one subject", errChain, sameSubject)
		}
		constraints += len(c.PermittedDNSDomains) + len(c.ExcludedDNSDomains) + len(c.PermittedIPRanges) + len(c.ExcludedIPRanges) +
			len(c.PermittedEmailAddresses) + len(c.ExcludedEmailAddresses) + len(c.PermittedURIDomains) + len(c.ExcludedURIDomains)
	}
	if names*constraints > comparisons {
		return fmt.Errorf("%w: more than %d names to compare", errChain, comparisons)
	}
	return nil
}

// judged is the result of one verification.
type judged struct {
	caller      server.Caller
	ok          bool
	from, until time.Time // outside of these the chain is verified again
}

// chainKey is the cache key of a chain: of an accepted one only its first certificate, since
// other intermediates would change nothing; of a refused one all, since it may have lacked
// an intermediate.
type chainKey struct{ accepted, refused string }

// kept returns the result of the chain from the caches. key is its cache key.
func (a *authorities) kept(shown []*x509.Certificate, now time.Time) (key chainKey, said judged, found bool) {
	_, generation := a.now(now)
	sum := sha256.New()
	_ = binary.Write(sum, binary.BigEndian, generation)
	for i, c := range shown {
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
		if v, ok := in.cache.Get(in.key); ok && !now.Before(v.(judged).from) && now.Before(v.(judged).until) {
			return key, v.(judged), true
		}
	}
	return key, judged{}, false
}

// judge verifies the chain and caches the result under key. It accepts a certificate for
// client authentication that one of the authorities signed and that is valid now. Few
// verifications run at a time.
func (a *authorities) judge(ctx context.Context, key chainKey, shown []*x509.Certificate, now time.Time) (judged, error) {
	if err := a.turns.Acquire(ctx, 1); err != nil {
		return judged{}, err
	}
	defer a.turns.Release(1)
	if _, said, found := a.kept(shown, now); found { // another request has verified it meanwhile
		return said, nil
	}
	pool, _ := a.now(now)
	opts := x509.VerifyOptions{
		Roots: pool, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, between := range shown[1:] {
		opts.Intermediates.AddCert(between)
	}
	leaf := shown[0]
	chains, err := a.verify(leaf, opts)
	if err != nil {
		a.log.Debug("Client certificate refused", "error", err)
		said := judged{from: now, until: now.Add(refusedFor)}
		a.refused.Add(key.refused, said, refusedFor)
		return said, nil
	}
	sum := sha256.Sum256(leaf.Raw)
	said := judged{from: now, until: leaf.NotAfter, ok: true, caller: server.Caller{
		Name:   leaf.Subject.CommonName,
		Groups: leaf.Subject.Organization,
		Extra:  map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}}
	for _, c := range chains[0] {
		if c.NotAfter.Before(said.until) {
			said.until = c.NotAfter
		}
	}
	a.accepted.Add(key.accepted, said, said.until.Sub(now))
	return said, nil
}
