package access

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/nodectl/nodectl/pkg/server"
)

const (
	// waiting limits the requests that wait, by what they wait for, and waitingPeer those of
	// one peer.
	waiting     = 64
	waitingPeer = 32
	// A peer may present refusalBurst unknown credentials that are refused, and
	// refusalsPerSecond more each second.
	refusalBurst      = 20
	refusalsPerSecond = 2
	// peersKept limits the peers whose refusals are remembered.
	peersKept = 4096
)

// peers limits the cost of unauthenticated callers, in total and by peer.
type peers struct {
	mu      sync.Mutex // guards the fields below
	all     map[credential]int
	waiting map[presented]int
	names   map[reviewed]int
	refused *cache.LRUExpireCache // presented → budget; absent: nothing was refused
}

// credential is what a request waits for: the verification of a kind of credential, or the
// review of a caller's access. Each has its own budget and places, so that junk tokens from
// the API server's address do not lock out its certificate, and callers without rights do not
// lock out those that were allowed something.
type credential string

const (
	certificates credential = "certificate"
	bearerTokens credential = "token"
	trustedNames credential = "access of a trusted name"
	otherNames   credential = "access of another name"
)

// presented is a peer with the kind of credential that it presents.
type presented struct {
	peer netip.Prefix
	kind credential
}

// reviewed is a caller with the kind of its review.
type reviewed struct {
	name string
	kind credential
}

// budget is a token bucket: the refusals that a peer had left at the time at.
type budget struct {
	left float64
	at   time.Time
}

func newPeers() *peers {
	return &peers{all: map[credential]int{}, waiting: map[presented]int{}, names: map[reviewed]int{}, refused: cache.NewLRUExpireCache(peersKept)}
}

// enter admits a credential to authentication, or a caller of that name to its review; name is ""
// for a credential. A name gets a place only while it has fewer than are free, however many
// addresses and tokens it has. Call leave once afterwards, with whether the credential was
// refused. The error is a *server.StatusError with code 429.
func (p *peers) enter(peer netip.Prefix, kind credential, name string) (leave func(refused bool), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, by := presented{peer, kind}, reviewed{name, kind}
	switch {
	case p.left(of).left < 1:
		return nil, &server.StatusError{Code: http.StatusTooManyRequests, Message: "too many refused credentials from this address"}
	case p.all[kind] >= waiting || p.waiting[of] >= waitingPeer || name != "" && p.names[by] >= waiting-p.all[kind]:
		return nil, &server.StatusError{Code: http.StatusTooManyRequests, Message: "too many requests are being authenticated or authorized"}
	}
	p.all[kind]++
	p.waiting[of]++
	p.names[by]++
	return func(refused bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all[kind]--
		if p.waiting[of]--; p.waiting[of] == 0 {
			delete(p.waiting, of)
		}
		if p.names[by]--; p.names[by] == 0 {
			delete(p.names, by)
		}
		if refused {
			b := p.left(of)
			b.left--
			p.refused.Add(of, b, refusalBurst/refusalsPerSecond*time.Second)
		}
	}, nil
}

// left returns the budget of a peer now; mu is held.
func (p *peers) left(of presented) budget {
	now := time.Now()
	b, ok := p.refused.Get(of)
	if !ok {
		return budget{refusalBurst, now}
	}
	was := b.(budget)
	return budget{min(refusalBurst, was.left+now.Sub(was.at).Seconds()*refusalsPerSecond), now}
}
