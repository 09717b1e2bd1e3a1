package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodectl/nodectl/pkg/dns"
)

// forwarder forwards queries to other servers. Equal queries share one call: with many open calls for
// one name, an attacker could guess a matching answer more easily.
type forwarder struct {
	limits Limits
	counts *counters

	mu      sync.Mutex
	servers []*upstream
	calls   map[string]*call
	cache   *cache
}

// upstream is another server, with its state.
type upstream struct {
	at       netip.AddrPort
	failures int
	until    time.Time // the forwarder asks it last until then
}

// call is a query to other servers that has no answer yet.
type call struct {
	done chan struct{}
	msg  []byte
	err  error
}

func newForwarder(l Limits, counts *counters) *forwarder {
	return &forwarder{limits: l, counts: counts, calls: make(map[string]*call), cache: newCache(l.CacheEntries, l.CacheBytes)}
}

// setServers replaces the servers. A server that stays keeps its state. If the servers change,
// setServers empties the cache.
func (f *forwarder) setServers(all []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.EqualFunc(f.servers, all, func(u *upstream, at netip.AddrPort) bool { return u.at == at }) {
		return
	}
	var next []*upstream
	for _, at := range all {
		i := slices.IndexFunc(f.servers, func(u *upstream) bool { return u.at == at })
		if i >= 0 {
			next = append(next, f.servers[i])
		} else {
			next = append(next, &upstream{at: at})
		}
	}
	f.servers, f.cache = next, newCache(f.limits.CacheEntries, f.limits.CacheBytes)
}

// cached returns a cached answer and its age.
func (f *forwarder) cached(q dns.Query) (msg []byte, age time.Duration, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cache.get(q.Key(), time.Now())
}

// resolve asks the servers, one after another, until one answers. If an equal query is open, it waits
// for that answer, at most until ctx ends.
func (f *forwarder) resolve(ctx context.Context, q dns.Query) ([]byte, error) {
	key := q.Key()
	f.mu.Lock()
	c, open := f.calls[key]
	if !open {
		// The answer may have come since the caller looked into the cache.
		if msg, _, ok := f.cache.get(key, time.Now()); ok {
			f.mu.Unlock()
			return msg, nil
		}
		c = &call{done: make(chan struct{})}
		f.calls[key] = c
	}
	f.mu.Unlock()
	if open {
		select {
		case <-c.done:
			return c.msg, c.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	f.counts.forwarded.Add(1)
	c.err = errors.New("the query panicked") // for the waiting queries if ask panics
	defer func() {
		f.mu.Lock()
		delete(f.calls, key)
		f.mu.Unlock()
		close(c.done)
	}()
	c.msg, c.err = f.ask(ctx, q, key)
	return c.msg, c.err
}

// ask asks the servers, at most twice each, and caches the answer.
func (f *forwarder) ask(ctx context.Context, q dns.Query, key string) ([]byte, error) {
	ctx, stop := context.WithTimeoutCause(ctx, f.limits.Total, errors.New("no name server answered in time"))
	defer stop()
	var failure []byte // the answer of a server that reports a failure
	var errs []error
	for range 2 { // a packet of the first round may have been lost
		for _, u := range f.order(time.Now()) {
			if ctx.Err() != nil {
				return nil, errors.Join(append(errs, context.Cause(ctx))...)
			}
			msg, h, err := f.exchange(ctx, u.at, q)
			f.note(u, err)
			if err != nil {
				errs = append(errs, fmt.Errorf("ask %s: %w", u.at, err))
				continue
			}
			if h.RCode == dnsmessage.RCodeSuccess || h.RCode == dnsmessage.RCodeNameError {
				f.store(key, msg, h)
				return msg, nil
			}
			failure = msg
		}
		if failure != nil {
			return failure, nil
		}
	}
	if len(errs) == 0 {
		return nil, errors.New("there is no name server to ask")
	}
	return nil, errors.Join(errs...)
}

// order returns the servers in the order in which ask uses them: servers that recently did not
// answer come last.
func (f *forwarder) order(now time.Time) []*upstream {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Clone(f.servers)
	slices.SortStableFunc(all, func(a, b *upstream) int {
		switch aDown, bDown := now.Before(a.until), now.Before(b.until); {
		case aDown == bDown:
			return 0
		case aDown:
			return 1
		}
		return -1
	})
	return all
}

// note records whether a server has answered.
func (f *forwarder) note(u *upstream, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		u.failures, u.until = 0, time.Time{}
		return
	}
	u.failures++
	down := f.limits.Down << min(u.failures-1, 10)
	u.until = time.Now().Add(min(down, f.limits.MaxDown))
}

// store caches an answer.
func (f *forwarder) store(key string, msg []byte, h dnsmessage.Header) {
	life := dns.Life(msg, h)
	if life <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache.put(key, msg, time.Now(), life)
}

// exchange asks one server once. Each query has a socket of its own, with a random port that the
// kernel chooses, and a random ID. The kernel drops answers from other addresses. exchange drops
// answers to other queries until the right answer or the deadline comes.
func (f *forwarder) exchange(ctx context.Context, to netip.AddrPort, q dns.Query) ([]byte, dnsmessage.Header, error) {
	network := "udp"
	if q.Stream {
		network = "tcp"
	}
	var id [2]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, dnsmessage.Header{}, err
	}
	number := binary.BigEndian.Uint16(id[:])
	question, err := q.Ask(number)
	if err != nil {
		return nil, dnsmessage.Header{}, err
	}
	ctx, stop := context.WithTimeout(ctx, f.limits.Try)
	defer stop()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, dnsmessage.Header{}, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	ended := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer ended()
	if q.Stream {
		return overStream(conn, q, number, question)
	}
	return overDatagrams(conn, q, number, question)
}

// maxForeign is the number of answers to other queries after which exchange gives up: each may be an
// attacker's guess.
const maxForeign = 32

func overDatagrams(conn net.Conn, q dns.Query, id uint16, question []byte) ([]byte, dnsmessage.Header, error) {
	if _, err := conn.Write(question); err != nil {
		return nil, dnsmessage.Header{}, err
	}
	buf := make([]byte, dns.MaxQuery+1)
	for range maxForeign {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, dnsmessage.Header{}, err
		}
		if n > dns.MaxQuery {
			continue
		}
		h, err := q.Check(buf[:n], id)
		if errors.Is(err, dns.ErrForeign) {
			continue
		}
		return slices.Clone(buf[:n]), h, err
	}
	return nil, dnsmessage.Header{}, errors.New("too many answers to other queries")
}

func overStream(conn net.Conn, q dns.Query, id uint16, question []byte) ([]byte, dnsmessage.Header, error) {
	if err := writeMessage(conn, question); err != nil {
		return nil, dnsmessage.Header{}, err
	}
	msg, err := readMessage(conn, maxStream)
	if err != nil {
		return nil, dnsmessage.Header{}, err
	}
	h, err := q.Check(msg, id)
	return msg, h, err
}

// maxStream is the size of the largest answer of another server.
const maxStream = 65535
