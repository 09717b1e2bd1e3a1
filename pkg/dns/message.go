package dns

import (
	"cmp"
	"errors"

	"golang.org/x/net/dns/dnsmessage"
)

// Sizes of messages over UDP.
const (
	// PlainSize is the largest message to a client without EDNS.
	PlainSize = 512
	// EDNSSize is the largest message over UDP: it fits into one packet on every network.
	EDNSSize = 1232
)

// MaxQuery is the largest accepted query.
const MaxQuery = 4096

// rcodeBadVersion is BADVERS, the answer to another version of EDNS than 0.
const rcodeBadVersion dnsmessage.RCode = 16

// root is the owner name of the OPT record (EDNS).
var root = dnsmessage.MustNewName(".")

// Query is a query of a client.
type Query struct {
	ID                      uint16
	Question                dnsmessage.Question
	Recursion, NoValidation bool
	EDNS                    bool // the client supports EDNS0
	DNSSEC                  bool // the client requests DNSSEC records (the DO bit)
	Size                    int  // the maximum size of an answer over UDP: PlainSize or EDNSSize
	Stream                  bool // it came over TCP
}

// errNoQuery is the error for a message that gets no answer. Answering a response could start a
// loop between two servers.
var errNoQuery = errors.New("no query")

// ParseQuery parses a query. If it returns an error, the caller sends no answer. If the returned code
// is not success, the caller answers with that code.
func ParseQuery(msg []byte) (Query, dnsmessage.RCode, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return Query{}, 0, errNoQuery
	}
	q := Query{ID: h.ID, Recursion: h.RecursionDesired, NoValidation: h.CheckingDisabled, Size: PlainSize}
	q.Question.Name = root
	if h.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, nil
	}
	question, err := p.Question()
	if err != nil {
		return q, dnsmessage.RCodeFormatError, nil
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return q, dnsmessage.RCodeFormatError, nil
	}
	q.Question = question
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, nil
	}
	return q.extended(&p)
}

// extended reads the OPT record (EDNS) among the additional records of a query.
func (q Query) extended(p *dnsmessage.Parser) (Query, dnsmessage.RCode, error) {
	for {
		h, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, dnsmessage.RCodeSuccess, nil
		}
		if err != nil || p.SkipAdditional() != nil || h.Type == dnsmessage.TypeOPT && (q.EDNS || h.Name != root) {
			return q, dnsmessage.RCodeFormatError, nil
		}
		if h.Type != dnsmessage.TypeOPT {
			continue
		}
		q.EDNS, q.DNSSEC = true, h.TTL&(1<<15) != 0
		if int(h.Class) >= EDNSSize {
			q.Size = EDNSSize
		}
		if h.TTL>>16&0xff != 0 {
			return q, rcodeBadVersion, nil
		}
	}
}

// Reply writes an answer of at most limit bytes. It leaves out additional records first. If not all
// answers fit, it writes the first ones, and sets the TC bit: the client then asks over TCP.
func (q Query) Reply(a Answer, limit int) ([]byte, error) {
	msg, err := q.pack(a, len(a.Answers), true)
	if err != nil || len(msg) <= limit {
		return msg, err
	}
	for n := len(a.Answers); n >= 0; n-- {
		if msg, err = q.pack(a, n, false); err != nil || len(msg) <= limit {
			return msg, err
		}
		// Leave out about as many answers as the message is too long.
		n = min(n, n*limit/len(msg)+1)
	}
	return q.pack(Answer{RCode: a.RCode}, -1, false)
}

// Cut writes an answer without records, with the TC bit: the client then asks over TCP.
func (q Query) Cut() ([]byte, error) { return q.pack(Answer{}, -1, false) }

// pack writes an answer with the first n of its records, and sets the TC bit if records are missing.
// With n below zero, it writes none and always sets the TC bit.
func (q Query) pack(a Answer, n int, additional bool) ([]byte, error) {
	b := dnsmessage.NewBuilder(make([]byte, 0, PlainSize), dnsmessage.Header{
		ID: q.ID, Response: true, Authoritative: a.Authoritative, Truncated: a.Truncated || n < len(a.Answers),
		RecursionDesired: q.Recursion, RecursionAvailable: true, CheckingDisabled: q.NoValidation, RCode: a.RCode & 0xf,
	})
	b.EnableCompression()
	err := b.StartQuestions()
	if q.Question.Type != 0 {
		err = cmp.Or(err, b.Question(q.Question))
	}
	err = cmp.Or(err, b.StartAnswers(), addAll(&b, a.Answers[:max(n, 0)]), b.StartAuthorities(), addAll(&b, a.Authority), b.StartAdditionals())
	if additional {
		err = cmp.Or(err, addAll(&b, a.Additional))
	}
	if q.EDNS {
		err = cmp.Or(err, q.addOPT(&b, a.RCode))
	}
	if err != nil {
		return nil, err
	}
	return b.Finish()
}

// addAll adds records, and returns the first error.
func addAll(b *dnsmessage.Builder, all []dnsmessage.Resource) (err error) {
	for i := range all {
		err = cmp.Or(err, add(b, &all[i]))
	}
	return err
}

// addOPT adds the record of EDNS.
func (q Query) addOPT(b *dnsmessage.Builder, code dnsmessage.RCode) error {
	var h dnsmessage.ResourceHeader
	if err := h.SetEDNS0(EDNSSize, code, q.DNSSEC); err != nil {
		return err
	}
	return b.OPTResource(h, dnsmessage.OPTResource{})
}

// add adds a record of any type.
func add(b *dnsmessage.Builder, r *dnsmessage.Resource) error {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		return b.AResource(r.Header, *body)
	case *dnsmessage.AAAAResource:
		return b.AAAAResource(r.Header, *body)
	case *dnsmessage.CNAMEResource:
		return b.CNAMEResource(r.Header, *body)
	case *dnsmessage.PTRResource:
		return b.PTRResource(r.Header, *body)
	case *dnsmessage.SRVResource:
		return b.SRVResource(r.Header, *body)
	case *dnsmessage.TXTResource:
		return b.TXTResource(r.Header, *body)
	case *dnsmessage.SOAResource:
		return b.SOAResource(r.Header, *body)
	case *dnsmessage.NSResource:
		return b.NSResource(r.Header, *body)
	case *dnsmessage.MXResource:
		return b.MXResource(r.Header, *body)
	case *dnsmessage.SVCBResource:
		return b.SVCBResource(r.Header, *body)
	case *dnsmessage.HTTPSResource:
		return b.HTTPSResource(r.Header, *body)
	case *dnsmessage.UnknownResource:
		return b.UnknownResource(r.Header, *body)
	}
	return nil // addOPT adds the OPT record
}
