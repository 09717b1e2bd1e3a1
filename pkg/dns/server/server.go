// Package server answers DNS queries over UDP and TCP: queries about the cluster from a zone, all
// others by forwarding to the name servers of the node.
//
// One client cannot block others: each has limits for its rate, its connections and its queries that
// wait for other servers. Clients whose addresses may be forged also have a common limit. Above these
// limits, the server refers clients to TCP, answers with SERVFAIL, drops queries or closes
// connections. All sizes, times and counts are bounded.
//
// Each query within the limits gets an answer, at least SERVFAIL. Other servers never see a name of
// the cluster.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/panics"
)

// State has the Services and settings on which answers depend. Each State replaces the previous
// one. A State never changes.
type State struct {
	dns.Config
	// Services is nil until the Services of the node are known. Until then, the answer for their
	// names is SERVFAIL, which clients do not cache. Difference needs them as dns.Sort sorts them.
	Services []*dns.Service
	// Known means that all Services are known, also if there are none. Until then, the answer for an
	// unknown name is SERVFAIL.
	Known bool
	// Upstreams are the servers for other names, in order.
	Upstreams []netip.AddrPort
}

// Counts are counters of a server since its start.
type Counts struct {
	Queries   uint64 `json:"queries"`
	Zone      uint64 `json:"zone"`      // answered from the zone
	Forwarded uint64 `json:"forwarded"` // forwarded to other servers
	Cached    uint64 `json:"cached"`    // answered from the cache
	Failed    uint64 `json:"failed"`    // answered with SERVFAIL
	Refused   uint64 `json:"refused"`   // queries and connections above a limit
	Malformed uint64 `json:"malformed"`
	Panics    uint64 `json:"panics"`
}

// counters has the fields of Counts as atomic counters.
type counters struct {
	queries, zone, forwarded, cached, failed, refused, malformed, panics atomic.Uint64
}

// Server is one server. Make it with New, and run Datagrams and Streams.
type Server struct {
	current atomic.Pointer[current]
	turn    atomic.Uint32
	counts  counters
	limits  Limits
	clients *clients
	forward *forwarder
	panics  panicLog
	log     *slog.Logger
}

// current is the part of a State that answers need.
type current struct {
	known bool
	zone  *dns.Zone // nil: there is no State yet
}

// New returns a server that answers SERVFAIL until Set is called.
func New(limits Limits, log *slog.Logger) *Server {
	s := &Server{limits: limits, clients: newClients(limits), log: log}
	s.forward = newForwarder(limits, &s.counts)
	s.current.Store(&current{})
	return s
}

// Set replaces the state.
func (s *Server) Set(to State) {
	s.current.Store(&current{known: to.Known, zone: dns.NewZone(to.Config, to.Services)})
	s.forward.setServers(to.Upstreams)
}

// Apply makes the next State from the current one. If it returns an error, the current State stays as
// it is. Callers call Set and Apply one after another.
func (s *Server) Apply(c Change) error {
	now := s.current.Load()
	if now.zone == nil {
		return errors.New("apply change: there is no state")
	}
	if c.Records.Len() > MaxRecords {
		return fmt.Errorf("apply change: %d records, of at most %d", c.Records.Len(), MaxRecords)
	}
	zone, err := now.zone.Apply(c.Records, c.Serial)
	if err != nil {
		return fmt.Errorf("apply change: %w", err)
	}
	s.current.Store(&current{known: c.Known, zone: zone})
	s.forward.setServers(c.Upstreams)
	return nil
}

// Counts returns the counters.
func (s *Server) Counts() Counts {
	c := &s.counts
	return Counts{
		Queries: c.queries.Load(), Zone: c.zone.Load(), Forwarded: c.forwarded.Load(), Cached: c.cached.Load(),
		Failed: c.failed.Load(), Refused: c.refused.Load(), Malformed: c.malformed.Load(), Panics: c.panics.Load(),
	}
}

// reply is the answer to a query: an answer of this server, or the message of another server.
type reply struct {
	answer dns.Answer
	relay  []byte        // the message of another server; else nil
	age    time.Duration // since the message came
}

// pack writes the answer, in at most limit bytes.
func (r *reply) pack(q *dns.Query, limit int) ([]byte, error) {
	if r.relay != nil {
		return q.Relay(r.relay, limit, r.age)
	}
	return q.Reply(r.answer, limit)
}

// later waits for other servers, and returns the reply.
type later func(context.Context) reply

// decide answers a query. If it needs other servers, it returns a function that asks them.
func (s *Server) decide(q dns.Query) (reply, later) {
	now := s.current.Load()
	if now.zone == nil {
		return s.failure(), nil
	}
	a := now.zone.Answer(q.Question, s.turn.Add(1))
	switch {
	case a.Forward:
		if msg, age, ok := s.forward.cached(q); ok {
			s.counts.cached.Add(1)
			return reply{relay: msg, age: age}, nil
		}
		return reply{}, s.relayLater(q)
	case !now.known && len(a.Answers) == 0: // the name may be that of an unknown Service
		return s.failure(), nil
	case a.Alias != "":
		return reply{}, s.followLater(q, a)
	}
	s.counts.zone.Add(1)
	return reply{answer: a}, nil
}

// failure returns the answer SERVFAIL.
func (s *Server) failure() reply {
	s.counts.failed.Add(1)
	return reply{answer: dns.Answer{RCode: dnsmessage.RCodeServerFailure}}
}

// relayLater returns a function that answers with the answer of another server.
func (s *Server) relayLater(q dns.Query) later {
	return func(ctx context.Context) reply {
		msg, err := s.forward.resolve(ctx, q)
		if err != nil {
			return s.failure()
		}
		return reply{relay: msg}
	}
}

// followLater returns a function that answers with an alias of the zone, and the answer of another
// server for its target.
func (s *Server) followLater(q dns.Query, a dns.Answer) later {
	return func(ctx context.Context) reply { return s.follow(ctx, q, a) }
}

func (s *Server) follow(ctx context.Context, target dns.Query, a dns.Answer) reply {
	name, err := dnsmessage.NewName(a.Alias)
	if err != nil {
		return s.failure()
	}
	target.Question.Name = name
	msg, age, ok := s.forward.cached(target)
	if ok {
		s.counts.cached.Add(1)
	} else if msg, err = s.forward.resolve(ctx, target); err != nil {
		return s.failure()
	}
	aged, err := target.Relay(msg, len(msg), age)
	if err != nil {
		return s.failure()
	}
	return reply{answer: a.Follow(aged)}
}

// receive parses a query, and returns its reply, or a function that makes the reply later. ok is false
// for a message that gets no answer.
func (s *Server) receive(msg []byte, stream bool) (q dns.Query, now reply, then later, ok bool) {
	s.counts.queries.Add(1)
	q, code, err := dns.ParseQuery(msg)
	switch {
	case err != nil:
		s.counts.malformed.Add(1)
		return q, now, nil, false
	case code != dnsmessage.RCodeSuccess:
		s.counts.malformed.Add(1)
		return q, reply{answer: dns.Answer{RCode: code}}, nil, true
	}
	q.Stream = stream
	now, then = s.decide(q)
	return q, now, then, true
}

// safely runs f, and recovers from a panic: the query then gets no answer.
func (s *Server) safely(f func()) {
	err := panics.ToError(func() error { f(); return nil })
	if p, ok := panics.Of(err); ok {
		s.counts.panics.Add(1)
		if n := s.panics.due(time.Now()); n > 0 {
			s.log.Error("Recovered from a panic in a DNS query", "panic", p.Value, "count", n, "stack", string(p.Stack))
		}
	}
}

// panicEvery is the minimum time between two logged panics: each log has a stack, and clients may
// cause many.
const panicEvery = time.Minute

// panicLog decides which panics are logged.
type panicLog struct {
	mu     sync.Mutex
	logged time.Time
	count  int // since the last logged one
}

// due counts a panic. If it must be logged, due returns the number of panics since the last logged
// one, including this one. If it is too early, due returns 0.
func (p *panicLog) due(now time.Time) (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	if !p.logged.IsZero() && now.Sub(p.logged) < panicEvery {
		return 0
	}
	count = p.count
	p.logged, p.count = now, 0
	return count
}
