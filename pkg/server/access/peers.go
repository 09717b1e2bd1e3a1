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
	// waiting bounds the requests that are being authenticated at a time, and
	// waitingPeer those of one peer.
	waiting     = 64
	waitingPeer = 32
	// A peer may present refusalBurst unknown credentials that are refused, and
	// refusalsPerSecond more each second.
	refusalBurst      = 20
	refusalsPerSecond = 2
	// peersKept bounds the peers with a refusal that is not forgiven yet.
	peersKept = 4096
	// quietFor is the time between two equal warnings.
	quietFor = 10 * time.Second
)

// peers bounds the cost of callers that are not authenticated yet, in all and by peer.
type peers struct {
	mu      sync.Mutex // guards what follows
	all     int
	waiting map[netip.Prefix]int
	refused *cache.LRUExpireCache // netip.Prefix → budget; absent: nothing was refused
}

// budget is a token bucket: the refusals that a peer had left at a time.
type budget struct {
	left float64
	at   time.Time
}

func newPeers() *peers {
	return &peers{waiting: map[netip.Prefix]int{}, refused: cache.NewLRUExpireCache(peersKept)}
}

// peerOf returns the peer of a request. The addresses of an IPv6 network are one peer,
// because one host has all of them.
func peerOf(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	address, bits := at.Addr().Unmap().WithZone(""), 32
	if address.Is6() {
		bits = 64
	}
	peer, _ := address.Prefix(bits)
	return peer
}

// enter admits a request to authentication. Call leave once afterwards, with whether
// the credential was refused. The error is a *server.Refusal with code 429.
func (p *peers) enter(peer netip.Prefix) (leave func(refused bool), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.left(peer).left < 1:
		return nil, &server.Refusal{Code: http.StatusTooManyRequests, Message: "too many refused credentials from this address"}
	case p.all >= waiting || p.waiting[peer] >= waitingPeer:
		return nil, &server.Refusal{Code: http.StatusTooManyRequests, Message: "too many requests are being authenticated"}
	}
	p.all++
	p.waiting[peer]++
	return func(refused bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.waiting[peer]--; p.waiting[peer] == 0 {
			delete(p.waiting, peer)
		}
		if refused {
			b := p.left(peer)
			b.left--
			p.refused.Add(peer, b, refusalBurst/refusalsPerSecond*time.Second)
		}
	}, nil
}

// left returns the budget of a peer now; mu is held.
func (p *peers) left(peer netip.Prefix) budget {
	now := time.Now()
	b, ok := p.refused.Get(peer)
	if !ok {
		return budget{refusalBurst, now}
	}
	was := b.(budget)
	return budget{min(refusalBurst, was.left+now.Sub(was.at).Seconds()*refusalsPerSecond), now}
}

// seldom lets one warning pass each quietFor, and counts the others.
type seldom struct {
	mu     sync.Mutex // guards what follows
	last   time.Time
	hidden int
}

// now reports whether to warn, and how many warnings have been left out since the last one.
func (s *seldom) now() (hidden int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.last.IsZero() && now.Sub(s.last) < quietFor {
		s.hidden++
		return 0, false
	}
	hidden, s.last, s.hidden = s.hidden, now, 0
	return hidden, true
}
