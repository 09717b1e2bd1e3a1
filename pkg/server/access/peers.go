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
	// maxWaiting limits the requests of each waitKind that wait, and maxWaitingPeer those of
	// one peer.
	maxWaiting     = 64
	maxWaitingPeer = 32
	// Of one peer, refusalBurst credentials of each kind may be refused, and refusalsPerSecond more
	// each second. The peer then gets 429.
	refusalBurst      = 20
	refusalsPerSecond = 2
	// maxPeers limits the peers whose refusals are remembered.
	maxPeers = 4096
)

// peers limits the cost of unauthenticated callers, in total and by peer.
type peers struct {
	mu      sync.Mutex       // guards the fields below
	total   map[waitKind]int // requests that wait
	byPeer  map[peerWait]int
	byName  map[nameWait]int
	refused *cache.LRUExpireCache // peerWait → budget; the full budget if there is none
}

// waitKind is the operation that a request waits for: the verification of a certificate, the review
// of a token, or the review of a caller's access. Each kind has its own budget and places. So invalid
// tokens from the API server's address do not lock out its certificate, and callers without rights
// do not lock out trusted callers.
type waitKind string

const (
	certificates waitKind = "certificate"
	bearerTokens waitKind = "token"
	trustedNames waitKind = "access of a trusted name" // see reviews.trusted
	otherNames   waitKind = "access of another name"
)

// peerWait is a peer whose requests wait for an operation.
type peerWait struct {
	peer netip.Prefix
	kind waitKind
}

// nameWait is a caller whose requests wait for an operation.
type nameWait struct {
	name string
	kind waitKind
}

// budget is a token bucket: the refusals that a peer had left at the time at.
type budget struct {
	left float64
	at   time.Time
}

func newPeers() *peers {
	return &peers{total: map[waitKind]int{}, byPeer: map[peerWait]int{}, byName: map[nameWait]int{}, refused: cache.NewLRUExpireCache(maxPeers)}
}

// enter takes a place for a request that is going to wait. name is the caller whose access is
// reviewed, "" for a certificate or token. A caller gets a place only while it has fewer than are
// free, however many addresses and tokens it has. The request calls leave once when it ends; refused
// says that its certificate or token was refused. The error is a *server.StatusError with code 429.
func (p *peers) enter(peer netip.Prefix, kind waitKind, name string) (leave func(refused bool), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, by := peerWait{peer, kind}, nameWait{name, kind}
	switch {
	case p.left(of).left < 1:
		return nil, &server.StatusError{Code: http.StatusTooManyRequests, Message: "too many refused credentials from this address"}
	case p.total[kind] >= maxWaiting || p.byPeer[of] >= maxWaitingPeer || name != "" && p.byName[by] >= maxWaiting-p.total[kind]:
		return nil, &server.StatusError{Code: http.StatusTooManyRequests, Message: "too many requests are being authenticated or authorized"}
	}
	p.total[kind]++
	p.byPeer[of]++
	p.byName[by]++
	return func(refused bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.total[kind]--
		if p.byPeer[of]--; p.byPeer[of] == 0 {
			delete(p.byPeer, of)
		}
		if p.byName[by]--; p.byName[by] == 0 {
			delete(p.byName, by)
		}
		if refused {
			b := p.left(of)
			b.left--
			p.refused.Add(of, b, refusalBurst/refusalsPerSecond*time.Second)
		}
	}, nil
}

// left returns the budget of a peer now; mu is held.
func (p *peers) left(of peerWait) budget {
	now := time.Now()
	b, ok := p.refused.Get(of)
	if !ok {
		return budget{refusalBurst, now}
	}
	was := b.(budget)
	return budget{min(refusalBurst, was.left+now.Sub(was.at).Seconds()*refusalsPerSecond), now}
}
