package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Keep limits how long an answer of another server is cached, even if its TTL is longer.
const Keep = 30 * time.Second

// Ask returns the query for another server, with an ID that the answer must repeat. Of the client's
// EDNS options it passes on only size and DNSSEC: others, such as the client's network, are private.
func (q Query) Ask(id uint16) ([]byte, error) {
	b := dnsmessage.NewBuilder(make([]byte, 0, PlainSize), dnsmessage.Header{ID: id, RecursionDesired: true, CheckingDisabled: q.NoValidation})
	err := errors.Join(b.StartQuestions(), b.Question(q.Question), b.StartAdditionals())
	if q.EDNS {
		var h dnsmessage.ResourceHeader
		err = errors.Join(err, h.SetEDNS0(q.Size, 0, q.DNSSEC), b.OPTResource(h, dnsmessage.OPTResource{}))
	}
	if err != nil {
		return nil, err
	}
	return b.Finish()
}

// ErrForeign means that a message does not answer this query: it is forged, or answers another one.
var ErrForeign = errors.New("the message does not answer the query")

// Check returns nil if a message answers the query that Ask made with this ID, ErrForeign if it
// answers another one, and any other error if it is malformed.
func (q Query) Check(msg []byte, id uint16) (dnsmessage.Header, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.ID != id || !h.Response || h.OpCode != 0 {
		return h, ErrForeign
	}
	question, err := p.Question()
	if err != nil || question.Type != q.Question.Type || question.Class != q.Question.Class || !q.isAsked(msg[headerSize:]) {
		return h, ErrForeign
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return h, ErrForeign
	}
	if err := errors.Join(p.SkipAllAnswers(), p.SkipAllAuthorities(), p.SkipAllAdditionals()); err != nil {
		return h, fmt.Errorf("malformed answer: %w", err)
	}
	return h, nil
}

// isAsked reports whether the rest of a message begins with the name of the question, without
// compression pointers. Relay overwrites that name.
func (q Query) isAsked(rest []byte) bool {
	for _, label := range labels(q.Question.Name.String()) {
		n := len(label)
		if len(rest) <= n || int(rest[0]) != n || lower(string(rest[1:1+n])) != lower(label) {
			return false
		}
		rest = rest[1+n:]
	}
	return len(rest) > 0 && rest[0] == 0
}

// Key identifies the queries that have the same answer.
func (q Query) Key() string {
	return fmt.Sprint(lower(q.Question.Name.String()), q.Question.Type, q.Question.Class, q.EDNS, q.DNSSEC, q.NoValidation, q.Size, q.Stream)
}

// Relay returns another server's answer, which Check has accepted, as an answer to this query. If it
// is larger than limit, Relay returns the answer of Cut. aged is the time since the answer came.
func (q Query) Relay(msg []byte, limit int, aged time.Duration) ([]byte, error) {
	if len(msg) > limit {
		return q.Cut()
	}
	out := make([]byte, len(msg))
	copy(out, msg)
	binary.BigEndian.PutUint16(out, q.ID)
	out[2] &^= 1 // RD; the client's value follows
	if q.Recursion {
		out[2] |= 1
	}
	out[3] |= 1 << 7 // RA
	asked := q.Question.Name.String()
	for off, label := range labels(asked) { // in the letter case of the client
		copy(out[headerSize+off+1:], label)
	}
	seconds := uint32(aged / time.Second)
	err := eachRecord(out, func(r record) {
		if r.kind == dnsmessage.TypeOPT {
			return
		}
		left := binary.BigEndian.Uint32(out[r.ttl:])
		binary.BigEndian.PutUint32(out[r.ttl:], left-min(left, seconds))
	})
	return out, err
}

// labels yields the labels of a name with their offsets in an uncompressed name. A question's name
// is the first name of its message, so it has no compression pointer.
func labels(name string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		off := 0
		for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
			if label == "" || !yield(off, label) {
				return
			}
			off += len(label) + 1
		}
	}
}

// Life returns how long an answer may be cached: the shortest TTL, at most Keep. It returns zero
// for an answer that must not be cached: it is truncated, reports a failure, or is negative without
// an SOA record.
func Life(msg []byte, h dnsmessage.Header) time.Duration {
	if h.Truncated || h.RCode != dnsmessage.RCodeSuccess && h.RCode != dnsmessage.RCodeNameError {
		return 0
	}
	life, answers, bounded := Keep, 0, false
	err := eachRecord(msg, func(r record) {
		if r.kind == dnsmessage.TypeOPT {
			return
		}
		life = min(life, time.Duration(binary.BigEndian.Uint32(msg[r.ttl:]))*time.Second)
		if r.section == 0 {
			answers++
		}
		if r.section == 1 && r.kind == dnsmessage.TypeSOA && r.length >= 4 {
			bounded = true // the last number of an SOA record is the TTL of negative answers
			life = min(life, time.Duration(binary.BigEndian.Uint32(msg[r.data+r.length-4:]))*time.Second)
		}
	})
	negative := answers == 0 || h.RCode == dnsmessage.RCodeNameError
	if err != nil || negative && !bounded {
		return 0
	}
	return life
}

// headerSize is the size of a message's header.
const headerSize = 12

// record is the place of a record in a message.
type record struct {
	section           int // 0: answers, 1: authority, 2: additional
	kind              dnsmessage.Type
	ttl, data, length int
}

var errCut = errors.New("message ends within a record")

// eachRecord calls visit for each record of a message. It follows no compression pointers.
func eachRecord(msg []byte, visit func(record)) error {
	if len(msg) < headerSize {
		return errCut
	}
	count := func(section int) int { return int(binary.BigEndian.Uint16(msg[4+2*section:])) }
	off, err := headerSize, error(nil)
	for range count(0) {
		if off, err = skipName(msg, off); err != nil || off+4 > len(msg) {
			return errCut
		}
		off += 4
	}
	for section := range 3 {
		for range count(section + 1) {
			if off, err = skipName(msg, off); err != nil || off+10 > len(msg) {
				return errCut
			}
			r := record{section: section, kind: dnsmessage.Type(binary.BigEndian.Uint16(msg[off:])), ttl: off + 4, data: off + 10}
			r.length = int(binary.BigEndian.Uint16(msg[off+8:]))
			if off = r.data + r.length; off > len(msg) {
				return errCut
			}
			visit(r)
		}
	}
	return nil
}

// skipName returns the offset after a name.
func skipName(msg []byte, off int) (int, error) {
	for off < len(msg) {
		n := int(msg[off])
		switch {
		case n == 0:
			return off + 1, nil
		case n >= 0xc0: // a pointer ends a name
			return off + 2, nil
		case n >= 0x40:
			return off, errCut
		}
		off += 1 + n
	}
	return off, errCut
}

// Follow adds the answer of another server to an answer that ends in an alias.
func (a Answer) Follow(msg []byte) Answer {
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		return Answer{RCode: dnsmessage.RCodeServerFailure}
	}
	out := a
	out.RCode, out.Alias, out.Authoritative, out.Truncated = m.RCode, "", false, m.Truncated
	out.Answers = append(append([]dnsmessage.Resource{}, a.Answers...), known(m.Answers)...)
	out.Authority = known(m.Authorities)
	return out
}

// known returns the records that Reply can write.
func known(all []dnsmessage.Resource) []dnsmessage.Resource {
	var out []dnsmessage.Resource
	for _, r := range all {
		if r.Header.Type != dnsmessage.TypeOPT {
			out = append(out, r)
		}
	}
	return out
}
