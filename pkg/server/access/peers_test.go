package access

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/server"
)

// counting counts the verifications of a, and how many run at a time.
func counting(a *Access) (all, most *atomic.Int64) {
	all, most = new(atomic.Int64), new(atomic.Int64)
	var now atomic.Int64
	verify := a.certs.verify
	a.certs.verify = func(c *x509.Certificate, opts x509.VerifyOptions) ([][]*x509.Certificate, error) {
		all.Add(1)
		n := now.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		defer now.Add(-1)
		return verify(c, opts)
	}
	return all, most
}

// from gives a request another address.
func from(r *http.Request, address string) *http.Request {
	r.RemoteAddr = address
	return r
}

func tooMany(err error) bool {
	var refusal *server.StatusError
	return errors.As(err, &refusal) && refusal.Code == http.StatusTooManyRequests
}

// An unauthenticated caller cannot make the node verify a chain that costs more than a few
// signatures: too many intermediates, many of one subject, large keys, many names against many
// name constraints.
//
// Shows: D2
func TestCertificate_ExpensiveChain_IsNotVerified(t *testing.T) {
	t.Parallel()
	ours := newAuthority("ours", nil)
	s := &api{}
	a := s.access(t, func(c *Config) { c.ClientCAFile = caFile(t, ours.pem()) })
	verified, _ := counting(a)
	chain := func(n int, name func(int) string) []*x509.Certificate {
		at, all := ours, []*x509.Certificate(nil)
		for i := range n {
			at = newAuthority(name(i), at)
			all = append([]*x509.Certificate{at.cert}, all...)
		}
		return append([]*x509.Certificate{at.issue("anna")}, all...)
	}
	numbered := func(i int) string { return fmt.Sprint("between", i) }
	if _, ok, err := a.Authenticate(showing(chain(maxIntermediates, numbered)...)); !ok || err != nil || verified.Load() != 1 {
		t.Errorf("%d intermediates: %t, %v after %d verifications", maxIntermediates, ok, err, verified.Load())
	}
	long := make([]string, 200)
	for i := range long {
		long[i] = fmt.Sprintf("n%d.example", i)
	}
	many := newAuthority("many", ours)
	constrained := *many.cert
	constrained.ExcludedDNSDomains = long
	large := ours.issue("anna", func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3}, Value: make([]byte, maxChainBytes)}}
	})
	for name, shown := range map[string][]*x509.Certificate{
		"too many intermediates": chain(maxIntermediates+1, numbered),
		"of one subject":         chain(maxSameSubject+1, func(int) string { return "between" }),
		"bytes":                  {large},
		"names":                  {many.issue("anna", func(c *x509.Certificate) { c.DNSNames = long }), &constrained},
		"RSA":                    {ours.issue("anna"), wide(newAuthority("wide", ours).cert)},
	} {
		if _, ok, err := a.Authenticate(showing(shown...)); ok || err != nil {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
	}
	if n := verified.Load(); n != 1 {
		t.Errorf("%d verifications, want the first one only", n)
	}
}

// wide returns c with an RSA key whose use takes long.
func wide(c *x509.Certificate) *x509.Certificate {
	of := *c
	of.PublicKey = rsaKey(new(big.Int).Lsh(big.NewInt(1), maxRSABits))
	return &of
}

// A chain is verified once for a pool and a time, accepted or not.
//
// Shows: D2
func TestCertificate_SameChain_IsVerifiedOnce(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority("ours", nil), newAuthority("others", nil)
	file := caFile(t, ours.pem())
	s := &api{}
	a := s.access(t, func(c *Config) { c.ClientCAFile = file })
	verified, _ := counting(a)
	soon := time.Now().Add(time.Minute)
	good, bad := ours.issue("anna", func(c *x509.Certificate) { c.NotAfter = soon }), others.issue("anna")
	for range 50 {
		if _, ok, err := a.Authenticate(showing(good)); !ok || err != nil {
			t.Fatalf("good: %t, %v", ok, err)
		}
		if _, ok, err := a.Authenticate(showing(bad)); ok || err != nil {
			t.Fatalf("bad: %t, %v", ok, err)
		}
	}
	if n := verified.Load(); n != 2 {
		t.Errorf("%d verifications of two chains", n)
	}
	shown := []*x509.Certificate{good}
	if _, _, found := a.certs.cached(shown, soon.Add(time.Second)); found {
		t.Error("the result outlives the certificate")
	}
	if _, _, found := a.certs.cached(shown, time.Now().Add(-time.Hour)); found {
		t.Error("the result is used for a time before its verification")
	}
	put(t, file, others.pem())
	later := time.Now().Add(rereadAfter)
	if _, _, found := a.certs.cached(shown, later); found {
		t.Error("the result outlives the pool")
	}
}

// A caller with a valid certificate and no rights adds invalid intermediates. The node does not
// verify the certificate again, and the cache keeps those of other callers. A certificate that was
// rejected without its intermediate is accepted with it.
//
// Shows: D2
func TestCertificate_InvalidIntermediatesAdded_IsNotVerifiedAgain(t *testing.T) {
	t.Parallel()
	ours := newAuthority("ours", nil)
	between := newAuthority("between", ours)
	a := (&api{}).access(t, func(c *Config) { c.ClientCAFile = caFile(t, ours.pem()) })
	verified, _ := counting(a)
	good := between.issue("mallory")
	for range 2 {
		if _, ok, err := a.Authenticate(showing(good)); ok || err != nil {
			t.Fatalf("without its intermediate: %t, %v", ok, err)
		}
	}
	for i := range 50 {
		if _, ok, err := a.Authenticate(showing(good, between.cert, newAuthority(fmt.Sprint("junk", i), nil).cert)); !ok || err != nil {
			t.Fatalf("with its intermediate and junk: %t, %v", ok, err)
		}
	}
	if _, ok, err := a.Authenticate(showing(good)); !ok || err != nil {
		t.Errorf("without its intermediate, once it is accepted: %t, %v", ok, err)
	}
	if n := verified.Load(); n != 2 {
		t.Errorf("%d verifications, want one refused and one accepted", n)
	}
	if n := len(a.certs.accepted.Keys()); n != 1 {
		t.Errorf("one certificate has %d places in the cache", n)
	}
}

// A crowd of different chains costs few verifications: each peer has a budget, and few run at
// a time. The accepted chain of the same peer is answered all the while.
//
// Shows: D2
func TestCertificate_ManyChains_FewAreVerified(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority("ours", nil), newAuthority("others", nil)
	s := &api{}
	a := s.access(t, func(c *Config) { c.ClientCAFile = caFile(t, ours.pem()) })
	verified, most := counting(a)
	good := ours.issue("anna")
	if _, ok, _ := a.Authenticate(showing(good)); !ok {
		t.Fatal("a good certificate is refused")
	}
	var shown []*x509.Certificate
	for range 5 * refusalBurst {
		shown = append(shown, others.issue("mallory"))
	}
	begin := time.Now()
	var refused atomic.Int64
	var wg sync.WaitGroup
	for _, c := range shown {
		wg.Go(func() {
			if _, ok, err := a.Authenticate(showing(c)); ok || err != nil && !tooMany(err) {
				t.Errorf("%t, %v", ok, err)
			} else if err != nil {
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	// Those that were under way when the budget ended are finished.
	bound := 1 + refusalBurst + maxWaitingPeer + int64(time.Since(begin).Seconds()+1)*refusalsPerSecond
	if n := verified.Load(); n > bound || refused.Load() == 0 {
		t.Errorf("%d verifications, want at most %d; %d turned away", n, bound, refused.Load())
	}
	if n := most.Load(); n > maxVerifications {
		t.Errorf("%d at a time", n)
	}
	if _, ok, err := a.Authenticate(showing(good)); !ok || err != nil {
		t.Errorf("the accepted chain: %t, %v", ok, err)
	}
	if _, ok, err := a.Authenticate(from(showing(ours.issue("ben")), "203.0.113.7:1")); !ok || err != nil {
		t.Errorf("another peer: %t, %v", ok, err)
	}
}

// Invalid credentials from the API server's address do not lock out its certificate. An accepted
// chain is not verified again, and refused tokens and chains have a budget each.
//
// Shows: D2
func TestCertificate_InvalidOnesFromSameAddress_ValidOneIsAccepted(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority("ours", nil), newAuthority("others", nil)
	a := (&api{tokens: anna()}).access(t, func(c *Config) { c.ClientCAFile = caFile(t, ours.pem()) })
	verified, _ := counting(a)
	good := ours.issue("anna")
	spend := func(junk func(int) *http.Request) {
		t.Helper()
		for i := 0; ; i++ {
			if _, ok, err := a.Authenticate(junk(i)); ok || i > 10*refusalBurst {
				t.Fatal("the budget is not spent")
			} else if tooMany(err) {
				return
			}
		}
	}
	spend(func(i int) *http.Request { return with(fmt.Sprint("junk-", i)) })
	if _, ok, err := a.Authenticate(showing(good)); !ok || err != nil {
		t.Errorf("after junk tokens: %t, %v", ok, err)
	}
	spend(func(int) *http.Request { return showing(others.issue("mallory")) })
	before := verified.Load()
	if _, said, found := a.certs.cached([]*x509.Certificate{good}, good.NotAfter.Add(-time.Second)); !found || !said.ok {
		t.Error("the accepted chain is not kept as long as it is valid")
	}
	if _, ok, err := a.Authenticate(showing(good)); !ok || err != nil || verified.Load() != before {
		t.Errorf("after junk chains: %t, %v", ok, err)
	}
}

// Refused tokens displace no accepted one, from however many peers they come, and one peer
// causes few reviews and few warnings.
//
// Shows: D2
func TestToken_ManyRefused_AcceptedOneStaysCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &api{tokens: anna()}
		a := s.access(t, func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
			c.TokensFor = time.Hour
		})
		if _, ok, _ := a.Authenticate(with("hunter2")); !ok {
			t.Fatal("a good token is refused")
		}
		for i := range 2 * maxTokens {
			r := from(with(fmt.Sprint("unknown-", i)), fmt.Sprintf("[2001:db8:%x::1]:1", i))
			if _, ok, err := a.Authenticate(r); ok || err != nil {
				t.Fatalf("%d: %t, %v", i, ok, err)
			}
		}
		before, _ := s.counts()
		if _, ok, err := a.Authenticate(with("hunter2")); !ok || err != nil {
			t.Errorf("the accepted token: %t, %v", ok, err)
		}
		if n, _ := s.counts(); n != before {
			t.Error("the accepted token was displaced")
		}
		begin, turned := time.Now(), 0
		for i := range 1000 { // one host with many addresses
			_, ok, err := a.Authenticate(from(with(fmt.Sprint("other-", i)), fmt.Sprintf("[2001:db8:ffff:1::%x]:1", i+1)))
			if ok {
				t.Fatal("accepted")
			}
			if tooMany(err) {
				turned++
			}
		}
		n, _ := s.counts()
		most := refusalBurst + int(time.Since(begin).Seconds()+1)*refusalsPerSecond
		if n-before > most || turned != 1000-(n-before) {
			t.Errorf("one peer causes %d reviews, want at most %d; %d are turned away", n-before, most, turned)
		}
		s.set(errDown)
		before = strings.Count(log.String(), "level=WARN")
		for i := range 400 { // in less than ten seconds: the client of the API server sends 50 a second
			_, _, _ = a.Authenticate(from(with(fmt.Sprint("late-", i)), "203.0.113.9:1"))
		}
		if n := strings.Count(log.String(), "level=WARN") - before; n != 1 {
			t.Errorf("%d warnings", n)
		}
		time.Sleep(20 * time.Second)
		_, _, _ = a.Authenticate(from(with("late"), "203.0.113.9:1"))
		if !strings.Contains(log.String(), "notLogged=399") {
			t.Errorf("the warnings left out are not counted: %s", log.String())
		}
		s.set(nil)
		time.Sleep(time.Minute)
		if _, ok, err := a.Authenticate(from(with("other-1"), "[2001:db8:ffff:1::1]:1")); ok || err != nil {
			t.Errorf("after a minute the peer is still turned away: %t, %v", ok, err)
		}
	})
}

// One peer does not take the places of the others while its tokens are reviewed.
//
// Shows: D2
func TestToken_OnePeerWaits_OthersAreAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &api{tokens: anna(), meet: func() { time.Sleep(time.Second) }}
		a := s.access(t)
		var away atomic.Int64
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				if _, _, err := a.Authenticate(with(fmt.Sprint("unknown-", i))); tooMany(err) {
					away.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := away.Load(); n != 500-maxWaitingPeer {
			t.Errorf("%d are turned away", n)
		}
		if _, ok, err := a.Authenticate(from(with("hunter2"), "203.0.113.9:1")); !ok || err != nil {
			t.Errorf("another peer: %t, %v", ok, err)
		}
		wg.Wait()
	})
}

// Tokens that wait for their review take no place of a certificate, neither of the same peer
// nor in all.
//
// Shows: D2
func TestPeers_TokenReviewsAtTheLimit_CertificatesAreAnswered(t *testing.T) {
	t.Parallel()
	p := newPeers()
	same := server.Peer("192.0.2.1:1")
	for i := range 4 * maxWaiting {
		peer := same
		if i > maxWaitingPeer {
			peer = server.Peer(fmt.Sprintf("198.51.100.%d:1", i%250))
		}
		_, _ = p.enter(peer, bearerTokens, "")
	}
	if _, err := p.enter(server.Peer("203.0.113.9:1"), bearerTokens, ""); err == nil {
		t.Error("places of tokens have no bound")
	}
	leave, err := p.enter(same, certificates, "")
	if err != nil {
		t.Fatalf("a certificate: %v", err)
	}
	leave(false)
	if p.total[certificates] != 0 || p.byPeer[peerWait{same, certificates}] != 0 {
		t.Error("its place is not given back")
	}
}
