package server

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/dns"
)

// Streams answers queries over TCP until the listener is closed or ctx ends.
func (s *Server) Streams(ctx context.Context, l *net.TCPListener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		conn, err := l.AcceptTCP()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // out of file descriptors, or the client has left
			s.counts.refused.Add(1)
			pause(ctx, acceptPause)
			continue
		}
		from := addressOf(conn.RemoteAddr())
		if !s.clients.connect(from, time.Now()) {
			s.counts.refused.Add(1)
			_ = conn.Close()
			continue
		}
		wait.Go(func() {
			defer s.clients.disconnect(from)
			defer func() { _ = conn.Close() }()
			s.safely(func() { s.stream(ctx, conn, from) })
		})
	}
}

// acceptPause is how long Streams waits after an error of Accept.
const acceptPause = 10 * time.Millisecond

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// addressOf returns the address of a peer.
func addressOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}

// stream answers the queries of one connection, one after another.
func (s *Server) stream(ctx context.Context, conn net.Conn, from netip.Addr) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for range s.limits.StreamQueries {
		_ = conn.SetDeadline(time.Now().Add(s.limits.Idle)) // for the whole query: a slow sender does not extend it
		if ctx.Err() != nil {
			return
		}
		msg, err := readMessage(conn, dns.MaxQuery)
		if err != nil {
			return
		}
		if !s.clients.allow(from, byStream, time.Now()) {
			s.counts.refused.Add(1)
			return
		}
		q, reply, later, ok := s.receive(msg, true)
		if !ok {
			return
		}
		if later != nil {
			reply = s.wait(ctx, from, later)
		}
		out, err := reply.pack(&q, math.MaxUint16)
		if err != nil {
			return
		}
		_ = conn.SetWriteDeadline(time.Now().Add(s.limits.Idle))
		if writeMessage(conn, out) != nil {
			return
		}
	}
}

// wait calls later, which waits for other servers, unless too many queries wait for them.
func (s *Server) wait(ctx context.Context, from netip.Addr, later later) reply {
	result, leave := s.clients.enter(from, byStream)
	if result != admitted {
		s.counts.refused.Add(1)
		return s.failure()
	}
	defer leave()
	return later(ctx)
}

// readMessage reads a message after its length.
func readMessage(from io.Reader, limit int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > limit {
		return nil, errors.New("message is too long")
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(from, msg)
	return msg, err
}

// writeMessage writes a message after its length, with one call of Write: some clients read only once.
func writeMessage(to io.Writer, msg []byte) error {
	out := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg)))
	_, err := to.Write(append(out, msg...))
	return err
}
