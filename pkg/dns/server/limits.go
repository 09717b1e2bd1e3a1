package server

import (
	"net/netip"
	"sync"
	"time"
)

// Limits limit the queries and connections of clients.
type Limits struct {
	Rate, Burst       int           // queries of one client: per second, and as a burst
	ClientWaiting     int           // queries of one client that wait for other servers
	Waiting           int           // queries that wait for other servers
	ClientConnections int           // TCP connections of one client
	Connections       int           // TCP connections
	StreamQueries     int           // queries over one connection
	Idle              time.Duration // how long a connection waits for one query, and for sending one answer
	Clients           int           // clients without a proven address whose rates are stored
	Proven            int           // clients whose addresses a connection has proven
	CacheEntries      int           // cached answers of other servers
	CacheBytes        int
	Try               time.Duration // for one answer of another server
	Total             time.Duration // for all tries of one query
	Down              time.Duration // how long a server that did not answer comes last; doubles up to MaxDown
	MaxDown           time.Duration
}

// DefaultLimits returns the limits of the process that serves pods. Total is below the five seconds
// after which resolvers repeat a query.
func DefaultLimits() Limits {
	return Limits{
		Rate: 2000, Burst: 4000, ClientWaiting: 64, Waiting: 256, ClientConnections: 16, Connections: 256,
		StreamQueries: 1024, Idle: 10 * time.Second, Clients: 4096, Proven: 1024, CacheEntries: 4096, CacheBytes: 2 << 20,
		Try: 1500 * time.Millisecond, Total: 4500 * time.Millisecond, Down: 5 * time.Second, MaxDown: time.Minute,
	}
}

// clients counts the queries and connections of each client.
//
// The source of a datagram may be forged, that of a connection cannot. A client is proven if it has
// made a connection. Each client has rates of its own. All unproven clients together also have a
// common rate, that of a few clients. So a pod that sends from changing addresses uses up only the
// common rate. Other clients above the common rate get an answer that refers them to TCP, and their
// first connection proves them.
type clients struct {
	limits Limits

	mu sync.Mutex
	// Rates of unproven clients are in two generations: when the newer one is full, it replaces the
	// older one. So the rates of clients that ask often stay.
	rates, older map[rateKey]*rate
	common       [rateKinds]*rate       // of all unproven clients together; nil before the first query
	proven       map[netip.Addr]*client // by key
	connections  map[netip.Addr]int
	waiting      map[netip.Addr]int
	connected    int
	waits        int
	unproven     int // of waits: those of unproven clients
}

// client is a proven client.
type client struct {
	rates [rateKinds]*rate // nil before the first query
	seen  time.Time
}

// rateKey identifies a rate. Datagrams and connections have different rates, so a pod that forges the
// address of another one does not use up the rate of its connections.
type rateKey struct {
	client netip.Addr
	kind   rateKind
}

// rateKind is the kind of queries to which a rate applies.
type rateKind byte

const (
	byDatagram rateKind = iota
	byStream
	cut       // datagrams above the limit, whose answers refer the client to TCP
	rateKinds // their number
)

const (
	// cutFactor is the rate of the kind cut, as a multiple of the other rates of a client.
	cutFactor = 4
	// unprovenFactor is the common rate of unproven clients, as a multiple of a client's rate.
	unprovenFactor = 4
)

// rate is a bucket of tokens.
type rate struct {
	tokens float64
	at     time.Time
}

// refill adds the tokens for the time since the last call: each tokens a second, up to most.
func (r *rate) refill(each, most float64, now time.Time) {
	if past := now.Sub(r.at); past > 0 {
		r.tokens = min(most, r.tokens+past.Seconds()*each)
	}
	r.at = now
}

func newClients(l Limits) *clients {
	return &clients{limits: l, rates: map[rateKey]*rate{}, proven: map[netip.Addr]*client{}, connections: map[netip.Addr]int{}, waiting: map[netip.Addr]int{}}
}

// keyOf returns the address that identifies a client. It has no zone, because datagrams and connections
// name zones differently.
func keyOf(client netip.Addr) netip.Addr { return client.Unmap().WithZone("") }

// allow takes a token of a client's rate, and for an unproven client also one of the common rate. It
// returns false if there is none.
func (c *clients) allow(from netip.Addr, kind rateKind, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	each, most := float64(c.limits.Rate), float64(c.limits.Burst)
	if kind == cut {
		each, most = cutFactor*each, cutFactor*most
	}
	key := keyOf(from)
	known := c.proven[key]
	if known != nil {
		known.seen = now
		return take(now, limited{ensure(&known.rates[kind], most, now), each, most})
	}
	all := limited{ensure(&c.common[kind], unprovenFactor*most, now), unprovenFactor * each, unprovenFactor * most}
	if kind == byStream { // prove had no room for this client
		return take(now, all)
	}
	return take(now, limited{c.rate(rateKey{key, kind}, most, now), each, most}, all)
}

// limited is a bucket with its limits.
type limited struct {
	*rate
	each, most float64
}

// take takes a token of each bucket, or none if one of them is empty.
func take(now time.Time, all ...limited) bool {
	for _, l := range all {
		l.refill(l.each, l.most, now)
	}
	for _, l := range all {
		if l.tokens < 1 {
			return false
		}
	}
	for _, l := range all {
		l.tokens--
	}
	return true
}

// ensure returns a rate. If there is none, it makes one with most tokens.
func ensure(r **rate, most float64, now time.Time) *rate {
	if *r == nil {
		*r = &rate{tokens: most, at: now}
	}
	return *r
}

// rate returns the rate of an unproven client. If there is none, it makes one with most tokens. The
// caller holds c.mu.
func (c *clients) rate(of rateKey, most float64, now time.Time) *rate {
	if r := c.rates[of]; r != nil {
		return r
	}
	r := c.older[of]
	if r == nil {
		r = &rate{tokens: most, at: now}
	}
	if len(c.rates) >= c.limits.Clients/2 {
		c.older, c.rates = c.rates, map[rateKey]*rate{}
	}
	c.rates[of] = r
	return r
}

// prove adds a proven client. The client keeps its remaining tokens. If there is no room, prove drops
// the clients without a query for provenIdle. If all proven clients have asked since then, the client
// stays unproven. The caller holds c.mu.
func (c *clients) prove(key netip.Addr, now time.Time) {
	if known := c.proven[key]; known != nil {
		known.seen = now
		return
	}
	if len(c.proven) >= c.limits.Proven {
		for other, known := range c.proven {
			if now.Sub(known.seen) >= provenIdle {
				delete(c.proven, other)
			}
		}
		if len(c.proven) >= c.limits.Proven {
			return
		}
	}
	fresh := &client{seen: now}
	for kind := range rateKinds {
		if r := c.rates[rateKey{key, kind}]; r != nil {
			fresh.rates[kind] = r
		} else {
			fresh.rates[kind] = c.older[rateKey{key, kind}]
		}
	}
	c.proven[key] = fresh
}

// provenIdle is how long a proven client keeps its place without a query.
const provenIdle = time.Minute

// admission is the decision whether a query may wait for other servers.
type admission int

const (
	admitted        admission = iota
	tooMany                   // too many queries of the client wait, or too many of all
	tooManyUnproven           // too many queries of unproven clients wait
)

// enter counts a query that waits for other servers, unless too many wait. When more than half of
// all places are in use, a client may have half as many places as are free, but at least one. So a
// few greedy clients always leave room for others: with n of them, each has about 1/(n+2) of all
// places. Unproven clients have at most half of all places. leave ends the wait.
func (c *clients) enter(from netip.Addr, kind rateKind) (result admission, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(from)
	one, left := c.limits.ClientWaiting, c.limits.Waiting-c.waits
	if left < c.waits {
		one = min(one, max(1, left/2))
	}
	unproven := kind == byDatagram && c.proven[key] == nil
	if unproven && c.unproven >= (c.limits.Waiting+1)/2 {
		return tooManyUnproven, nil
	}
	if !count(c.waiting, &c.waits, key, one, c.limits.Waiting) {
		return tooMany, nil
	}
	if unproven {
		c.unproven++
	}
	return admitted, func() { c.leave(key, unproven) }
}

// leave ends a wait.
func (c *clients) leave(key netip.Addr, unproven bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uncount(c.waiting, &c.waits, key)
	if unproven {
		c.unproven--
	}
}

// connect counts a connection, or returns false if there are too many. The connection proves the
// client.
func (c *clients) connect(from netip.Addr, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !count(c.connections, &c.connected, keyOf(from), c.limits.ClientConnections, c.limits.Connections) {
		return false
	}
	c.prove(keyOf(from), now)
	return true
}

// disconnect ends a connection that connect has counted.
func (c *clients) disconnect(from netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uncount(c.connections, &c.connected, keyOf(from))
}

func count(by map[netip.Addr]int, all *int, client netip.Addr, one, total int) bool {
	if by[client] >= one || *all >= total {
		return false
	}
	by[client]++
	*all++
	return true
}

func uncount(by map[netip.Addr]int, all *int, client netip.Addr) {
	if by[client]--; by[client] <= 0 {
		delete(by, client)
	}
	*all--
}
