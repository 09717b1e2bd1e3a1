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
	Clients           int           // clients whose rates are stored
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
		StreamQueries: 1024, Idle: 10 * time.Second, Clients: 4096, CacheEntries: 4096, CacheBytes: 2 << 20,
		Try: 1500 * time.Millisecond, Total: 4500 * time.Millisecond, Down: 5 * time.Second, MaxDown: time.Minute,
	}
}

// clients counts the queries and connections of each client.
type clients struct {
	limits Limits

	mu sync.Mutex
	// Rates are in two generations: when the newer one is full, it replaces the older one, so that
	// clients that ask often stay known.
	rates, older map[asker]*rate
	connections  map[netip.Addr]int
	waiting      map[netip.Addr]int
	connected    int
	waits        int
}

// asker is a client, and how it asks. The source of a datagram may be forged, that of a connection
// may not: a pod that sends queries in the name of another one leaves it its connections.
type asker struct {
	client netip.Addr
	by     way
}

// way is a way to ask.
type way byte

const (
	byDatagram way = iota
	byStream
	cut // a datagram above the limit, which gets an answer that refers to connections
)

// cutFactor is how many answers of the way cut a client gets for each one of another way.
const cutFactor = 4

// rate is a bucket of tokens.
type rate struct {
	tokens float64
	at     time.Time
}

func newClients(l Limits) *clients {
	return &clients{limits: l, rates: map[asker]*rate{}, connections: map[netip.Addr]int{}, waiting: map[netip.Addr]int{}}
}

// allow takes a token of a client's rate.
func (c *clients) allow(client netip.Addr, by way, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	each, most := float64(c.limits.Rate), float64(c.limits.Burst)
	if by == cut {
		each, most = cutFactor*each, cutFactor*most
	}
	r := c.rate(asker{client.Unmap(), by}, most, now)
	if past := now.Sub(r.at); past > 0 {
		r.tokens = min(most, r.tokens+past.Seconds()*each)
	}
	r.at = now
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	return true
}

// rate returns the rate of a client, a new one with most tokens. c.mu is held.
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

// enter counts a query that waits for other servers; it returns false if too many wait. When more
// than half of all places are in use, a client may have half as many places as are free, but at
// least one. So a few greedy clients always leave room for others: with n of them, each has about
// 1/(n+2) of all places.
func (c *clients) enter(client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, left := c.limits.ClientWaiting, c.limits.Waiting-c.waits
	if left < c.waits {
		one = min(one, max(1, left/2))
	}
	return count(c.waiting, &c.waits, client.Unmap(), one, c.limits.Waiting)
}

// leave ends enter.
func (c *clients) leave(client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uncount(c.waiting, &c.waits, client.Unmap())
}

// connect counts a connection; it returns false if there are too many.
func (c *clients) connect(client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count(c.connections, &c.connected, client.Unmap(), c.limits.ClientConnections, c.limits.Connections)
}

// disconnect ends connect.
func (c *clients) disconnect(client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uncount(c.connections, &c.connected, client.Unmap())
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
