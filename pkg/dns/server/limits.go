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
	Idle              time.Duration // the time limit of a connection for one query, and for one answer
	Clients           int           // clients without a proven address whose rates are stored
	Proven            int           // clients whose addresses a connection has proven
	CacheEntries      int           // cached answers of other servers
	CacheBytes        int
	Try               time.Duration // for one answer of another server
	Total             time.Duration // for all tries of one query
	Down              time.Duration // how long a server that did not answer comes last; it doubles
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
// The source of a datagram may be forged, that of a connection may not. A client whose address a
// connection has proven has rates of its own. All other clients, the unproven ones, have rates of their
// own, too, but together they get no more than a few clients do. So a pod that sends from changing
// addresses uses up only the share of unproven clients. A client that this leaves without an answer is
// referred to connections, and its address is proven after the first one.
type clients struct {
	limits Limits

	mu sync.Mutex
	// Rates of unproven clients are in two generations: when the newer one is full, it replaces the older one,
	// so that clients that ask often stay known.
	rates, older map[asker]*rate
	together     [ways]*rate            // of all unproven clients together; nil before the first query
	proven       map[netip.Addr]*client // by key
	connections  map[netip.Addr]int
	waiting      map[netip.Addr]int
	connected    int
	waits        int
	unproven     int // of waits: those of unproven clients
}

// client is a client whose address a connection has proven.
type client struct {
	rates [ways]*rate // nil before the first query
	seen  time.Time
}

// asker is a client, and how it asks. A pod that sends queries in the name of another one leaves it its
// connections.
type asker struct {
	client netip.Addr
	by     way
}

// way is a way to ask.
type way byte

const (
	byDatagram way = iota
	byStream
	cut  // a datagram above the limit, which gets an answer that refers to connections
	ways // their number
)

const (
	// cutFactor is how many answers of the way cut a client gets for each one of another way.
	cutFactor = 4
	// unprovenFactor is how many clients' rates all unproven clients have together.
	unprovenFactor = 4
)

// rate is a bucket of tokens.
type rate struct {
	tokens float64
	at     time.Time
}

// refill adds the tokens of the time since the last call, each a second, up to most.
func (r *rate) refill(each, most float64, now time.Time) {
	if past := now.Sub(r.at); past > 0 {
		r.tokens = min(most, r.tokens+past.Seconds()*each)
	}
	r.at = now
}

func newClients(l Limits) *clients {
	return &clients{limits: l, rates: map[asker]*rate{}, proven: map[netip.Addr]*client{}, connections: map[netip.Addr]int{}, waiting: map[netip.Addr]int{}}
}

// keyOf returns the address that identifies a client. Datagrams and connections name zones differently.
func keyOf(client netip.Addr) netip.Addr { return client.Unmap().WithZone("") }

// allow takes a token of a client's rate. For an unproven client it takes one of all of them, too.
func (c *clients) allow(from netip.Addr, by way, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	each, most := float64(c.limits.Rate), float64(c.limits.Burst)
	if by == cut {
		each, most = cutFactor*each, cutFactor*most
	}
	key := keyOf(from)
	known := c.proven[key]
	if known != nil {
		known.seen = now
		return take(now, limited{ensure(&known.rates[by], most, now), each, most})
	}
	all := limited{ensure(&c.together[by], unprovenFactor*most, now), unprovenFactor * each, unprovenFactor * most}
	if by == byStream { // there is no room for more proven clients
		return take(now, all)
	}
	return take(now, limited{c.rate(asker{key, by}, most, now), each, most}, all)
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

// ensure returns a rate, a new one with most tokens if there is none.
func ensure(r **rate, most float64, now time.Time) *rate {
	if *r == nil {
		*r = &rate{tokens: most, at: now}
	}
	return *r
}

// rate returns the rate of an unproven client, a new one with most tokens. c.mu is held.
func (c *clients) rate(of asker, most float64, now time.Time) *rate {
	if r := c.rates[of]; r != nil {
		return r
	}
	r := c.older[of]
	if r == nil {
		r = &rate{tokens: most, at: now}
	}
	if len(c.rates) >= c.limits.Clients/2 {
		c.older, c.rates = c.rates, map[asker]*rate{}
	}
	c.rates[of] = r
	return r
}

// prove notes that a connection has proven the address of a client. The client keeps the tokens that
// it has left. If there is no room, a client that has not asked for provenIdle makes room; if there is
// none, the client stays unproven. c.mu is held.
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
	for by := range ways {
		if r := c.rates[asker{key, by}]; r != nil {
			fresh.rates[by] = r
		} else {
			fresh.rates[by] = c.older[asker{key, by}]
		}
	}
	c.proven[key] = fresh
}

// provenIdle is how long a client whose address is proven keeps its place without a query.
const provenIdle = time.Minute

// admission says whether a query may wait for other servers.
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
func (c *clients) enter(from netip.Addr, by way) (result admission, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(from)
	one, left := c.limits.ClientWaiting, c.limits.Waiting-c.waits
	if left < c.waits {
		one = min(one, max(1, left/2))
	}
	unproven := by == byDatagram && c.proven[key] == nil
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

// connect counts a connection; it returns false if there are too many. The connection proves the
// address of the client.
func (c *clients) connect(from netip.Addr, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !count(c.connections, &c.connected, keyOf(from), c.limits.ClientConnections, c.limits.Connections) {
		return false
	}
	c.prove(keyOf(from), now)
	return true
}

// disconnect ends connect.
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
