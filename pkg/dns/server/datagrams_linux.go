package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodectl/nodectl/pkg/dns"
)

// Datagrams answers queries over UDP until the connection is closed or ctx ends. ctx ends
// waiting answers, too.
func (s *Server) Datagrams(ctx context.Context, conn *net.UDPConn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	d := &datagrams{server: s, conn: conn, batch: newBatch()}
	defer d.waiting.Wait()
	// The function returns false to wait for more queries. The poller also reports queries that come
	// before the wait, so after a batch that is not full, receive need not be called again.
	err = raw.Read(func(fd uintptr) bool {
		for d.batch.receive(fd) {
			d.answer(ctx)
			d.batch.send(fd, conn)
			if ctx.Err() != nil { // all received queries have their answers
				return true
			}
			if d.batch.received < batchSize {
				break
			}
			runtime.Gosched() // a stream of full batches must not block other goroutines
		}
		return false
	})
	if ctx.Err() != nil && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		return nil
	}
	return err
}

// datagrams are the queries over one connection.
type datagrams struct {
	server  *Server
	conn    *net.UDPConn
	batch   *batch
	waiting sync.WaitGroup // for answers of other servers
}

// answer answers the queries of a batch.
func (d *datagrams) answer(ctx context.Context) {
	now := time.Now()
	for i := range d.batch.received {
		msg, from, ok := d.batch.query(i)
		if !ok {
			continue
		}
		allowed := d.server.clients.allow(from.Addr(), byDatagram, now)
		if !allowed {
			d.server.counts.refused.Add(1)
			if !d.server.clients.allow(from.Addr(), cut, now) {
				continue
			}
		}
		d.server.safely(func() {
			var out []byte
			if allowed {
				out = d.one(ctx, msg, from)
			} else {
				out = overLimit(msg)
			}
			if out != nil {
				d.batch.reply(i, out)
			}
		})
	}
}

// overLimit returns the answer to a query above the limit. It has the TC bit, so the client asks over
// TCP. It is no larger than the query. So a pod whose address another pod forges still gets answers.
func overLimit(msg []byte) []byte {
	q, code, err := dns.ParseQuery(msg)
	if err != nil || code != dnsmessage.RCodeSuccess {
		return nil
	}
	out, err := q.Cut()
	if err != nil {
		return nil
	}
	return out
}

// one returns the answer to one query, or starts a goroutine that answers it once other servers have
// answered.
func (d *datagrams) one(ctx context.Context, msg []byte, from netip.AddrPort) []byte {
	s := d.server
	q, now, then, ok := s.receive(msg, false)
	switch {
	case !ok:
		return nil
	case then == nil:
		return packed(&q, now)
	}
	result, leave := s.clients.enter(from.Addr(), byDatagram)
	switch result {
	case tooManyUnproven:
		s.counts.refused.Add(1)
		return overLimit(msg)
	case tooMany:
		s.counts.refused.Add(1)
		return packed(&q, s.failure())
	case admitted:
		d.wait(ctx, q, then, from, leave)
	}
	return nil
}

// wait sends the answer to a query once other servers have answered.
func (d *datagrams) wait(ctx context.Context, q dns.Query, then later, from netip.AddrPort, leave func()) {
	d.waiting.Go(func() {
		defer leave()
		d.server.safely(func() {
			if out := packed(&q, then(ctx)); out != nil {
				_, _ = d.conn.WriteToUDPAddrPort(out, from) // after an error, the client asks again
			}
		})
	})
}

// packed returns the message of a reply, or nil after an error.
func packed(q *dns.Query, r reply) []byte {
	out, err := r.pack(q, q.Size)
	if err != nil {
		return nil
	}
	return out
}
