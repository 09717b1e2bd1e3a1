package dns

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// query returns a query; edns is the size that it names, 0 for none.
func query(t testing.TB, name string, kind dnsmessage.Type, edns int) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 0xbeef, RecursionDesired: true})
	err := errors.Join(b.StartQuestions(), b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}), b.StartAdditionals())
	if edns > 0 {
		var h dnsmessage.ResourceHeader
		err = errors.Join(err, h.SetEDNS0(edns, 0, true), b.OPTResource(h, dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 10, Data: []byte("12345678")}}}))
	}
	msg, err2 := b.Finish()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return msg
}

func parsed(t testing.TB, msg []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		t.Fatalf("%x: %v", msg, err)
	}
	return m
}

// Malformed messages, and messages that are not queries, get no answer or an error code.
func TestParseQuery_Malformed_GetsItsCodeOrNoAnswer(t *testing.T) {
	good := query(t, "web.default.svc.cluster.local.", dnsmessage.TypeA, 1232)
	edit := func(f func(m []byte) []byte) []byte { return f(append([]byte{}, good...)) }
	for name, c := range map[string]struct {
		msg    []byte
		code   dnsmessage.RCode
		silent bool
	}{
		"good":                 {good, dnsmessage.RCodeSuccess, false},
		"empty":                {nil, 0, true},
		"part of a header":     {good[:11], 0, true},
		"an answer":            {edit(func(m []byte) []byte { m[2] |= 0x80; return m }), 0, true},
		"no question":          {edit(func(m []byte) []byte { m[5] = 0; return m[:12] }), dnsmessage.RCodeFormatError, false},
		"two questions":        {edit(func(m []byte) []byte { m[5] = 2; return m }), dnsmessage.RCodeFormatError, false},
		"65535 questions":      {edit(func(m []byte) []byte { m[4], m[5] = 255, 255; return m }), dnsmessage.RCodeFormatError, false},
		"65535 additional":     {edit(func(m []byte) []byte { m[10], m[11] = 255, 255; return m }), dnsmessage.RCodeFormatError, false},
		"cut name":             {good[:20], dnsmessage.RCodeFormatError, false},
		"cut option":           {good[:len(good)-1], dnsmessage.RCodeFormatError, false},
		"another opcode":       {edit(func(m []byte) []byte { m[2] |= 5 << 3; return m }), dnsmessage.RCodeNotImplemented, false},
		"pointer to itself":    {append(append([]byte{}, good[:12]...), 0xc0, 12, 0, 1, 0, 1), dnsmessage.RCodeFormatError, false},
		"pointers in a circle": {append(append([]byte{}, good[:12]...), 1, 'a', 0xc0, 12, 0, 1, 0, 1), dnsmessage.RCodeFormatError, false},
		"pointer beyond":       {append(append([]byte{}, good[:12]...), 0xff, 0xff, 0, 1, 0, 1), dnsmessage.RCodeFormatError, false},
		"reserved label":       {append(append([]byte{}, good[:12]...), 0x80, 0, 0, 1, 0, 1), dnsmessage.RCodeFormatError, false},
		"dot in a label":       {append(append([]byte{}, good[:12]...), 3, 'a', '.', 'b', 0, 0, 1, 0, 1), dnsmessage.RCodeFormatError, false},
		"other EDNS":           {edit(func(m []byte) []byte { m[len(m)-12-2-3] = 1; return m }), rcodeBadVersion, false},
	} {
		q, code, err := ParseQuery(c.msg)
		if code != c.code || (err != nil) != c.silent {
			t.Errorf("%s: code %v, error %v", name, code, err)
			continue
		}
		if c.silent {
			continue
		}
		msg, err := q.Reply(Answer{RCode: code}, PlainSize)
		if err != nil {
			t.Errorf("%s: no reply: %v", name, err)
			continue
		}
		if m := parsed(t, msg); m.ID != 0xbeef || !m.Response || m.RCode != c.code&0xf {
			t.Errorf("%s: reply %+v", name, m.Header)
		}
	}
}

// An answer over UDP is no longer than its client accepts, and has the TC bit if it is truncated.
func TestReply_ManyAddresses_AreCutToTheClientsSize(t *testing.T) {
	c, _ := shop()
	many := Service{Namespace: "n", Name: "s"}
	for i := range 200 {
		many.Endpoints = append(many.Endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 88, 1, byte(i)}), Hostname: "h"})
	}
	z := NewZone(c, []*Service{&many})
	for edns, limit := range map[int]int{0: 512, 600: 512, 1232: 1232, 65535: 1232} {
		q, code, err := ParseQuery(query(t, "s.n.svc.cluster.local.", dnsmessage.TypeA, edns))
		if code != 0 || err != nil || q.Size != limit || q.EDNS != (edns > 0) {
			t.Fatalf("%d: %+v, %v, %v", edns, q, code, err)
		}
		msg, err := q.Reply(z.Answer(q.Question, 0), q.Size)
		if err != nil {
			t.Fatal(err)
		}
		m := parsed(t, msg)
		if len(msg) > limit || len(msg) < limit-32 || !m.Truncated || len(m.Answers) < 10 {
			t.Errorf("%d: %d bytes, %d answers, cut: %v", edns, len(msg), len(m.Answers), m.Truncated)
		}
		if has := len(m.Additionals) == 1 && m.Additionals[0].Header.Type == dnsmessage.TypeOPT; has != (edns > 0) {
			t.Errorf("%d: additional records %v", edns, m.Additionals)
		}
		whole, err := q.Reply(z.Answer(q.Question, 0), 65535)
		if m := parsed(t, whole); err != nil || m.Truncated || len(m.Answers) != 200 {
			t.Errorf("over TCP: %d answers, cut: %v, %v", len(m.Answers), m.Truncated, err)
		}
	}
}

// Additional records are left out before answers are.
func TestReply_TooLong_LeavesOutAdditionalFirst(t *testing.T) {
	c, _ := shop()
	s := Service{Namespace: "n", Name: "s", Ports: []Port{{Name: "p", Protocol: "TCP", Number: 1}}}
	for i := range 12 {
		s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 88, 1, byte(i)})})
	}
	q, _, _ := ParseQuery(query(t, "_p._tcp.s.n.svc.cluster.local.", dnsmessage.TypeSRV, 0))
	a := NewZone(c, []*Service{&s}).Answer(q.Question, 0)
	msg, err := q.Reply(a, 820)
	if m := parsed(t, msg); err != nil || len(m.Answers) != 12 || len(m.Additionals) != 0 || m.Truncated {
		t.Errorf("%d answers, %d additional, cut: %v, %v", len(m.Answers), len(m.Additionals), m.Truncated, err)
	}
}

// answer returns another server's answer to a query.
func answer(t testing.TB, q Query, id uint16, ttls ...uint32) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q.Question},
	}
	for i, ttl := range ttls {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Question.Name, Class: dnsmessage.ClassINET, TTL: ttl},
			Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, byte(i)}},
		})
	}
	if len(ttls) == 0 {
		m.RCode = dnsmessage.RCodeNameError
		m.Authorities = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: root, Class: dnsmessage.ClassINET, TTL: 900},
			Body:   &dnsmessage.SOAResource{NS: root, MBox: root, MinTTL: 20},
		}}
	}
	msg, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// Only the answer to exactly this question counts.
func TestCheck_AnswerOfAnother_IsForeign(t *testing.T) {
	q, _, _ := ParseQuery(query(t, "www.Example.com.", dnsmessage.TypeA, 0))
	good := answer(t, q, 77, 30)
	edit := func(f func(m []byte)) []byte {
		m := append([]byte{}, good...)
		f(m)
		return m
	}
	for name, c := range map[string]struct {
		msg     []byte
		foreign bool
		broken  bool
	}{
		"good":                             {good, false, false},
		"another case":                     {edit(func(m []byte) { m[13] = 'W' }), false, false},
		"another ID":                       {edit(func(m []byte) { m[1]++ }), true, false},
		"a query":                          {edit(func(m []byte) { m[2] &= 0x7f }), true, false},
		"another name":                     {edit(func(m []byte) { m[13] = 'x' }), true, false},
		"another type":                     {edit(func(m []byte) { m[12+17+1] = 28 }), true, false},
		"another class":                    {edit(func(m []byte) { m[12+17+3] = 3 }), true, false},
		"two questions":                    {edit(func(m []byte) { m[5] = 2 }), true, false},
		"no question":                      {edit(func(m []byte) { m[5] = 0 }), true, false},
		"cut":                              {good[:len(good)-1], false, true},
		"nothing":                          {nil, true, false},
		"a pointer as the question's name": {append(append(append([]byte{}, good[:12]...), 0xc0, 18, 0, 1, 0, 1), []byte("\x03www\x07Example\x03com\x00")...), true, false},
	} {
		_, err := q.Check(c.msg, 77)
		if errors.Is(err, ErrForeign) != c.foreign || (err != nil) != (c.foreign || c.broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The TTLs of a cached answer fall, and the answer has the ID, the letters' case and the flags of
// its client.
func TestRelay_KeptAnswer_IsTheClientsAndAges(t *testing.T) {
	asked, _, _ := ParseQuery(query(t, "www.example.com.", dnsmessage.TypeA, 0))
	msg := answer(t, asked, 77, 30, 3)
	later, _, _ := ParseQuery(query(t, "WWW.eXample.com.", dnsmessage.TypeA, 0))
	out, err := later.Relay(msg, 512, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	m := parsed(t, out)
	if m.ID != 0xbeef || m.Questions[0].Name.String() != "WWW.eXample.com." || !m.RecursionDesired || !m.RecursionAvailable {
		t.Errorf("%+v %v", m.Header, m.Questions)
	}
	if m.Answers[0].Header.TTL != 25 || m.Answers[1].Header.TTL != 0 {
		t.Errorf("TTLs %d, %d", m.Answers[0].Header.TTL, m.Answers[1].Header.TTL)
	}
	if again := parsed(t, msg); again.Answers[0].Header.TTL != 30 || again.ID != 77 {
		t.Error("the kept answer was changed")
	}
	cut, err := later.Relay(msg, 40, 0)
	if m := parsed(t, cut); err != nil || !m.Truncated || len(m.Answers) != 0 || len(m.Questions) != 1 {
		t.Errorf("too long: %+v, %v", m, err)
	}
}

// The records of an answer decide how long it is cached, up to a limit.
func TestLife_Answer_AsItsRecordsSay(t *testing.T) {
	q, _, _ := ParseQuery(query(t, "www.example.com.", dnsmessage.TypeA, 0))
	header := func(msg []byte) dnsmessage.Header { return parsed(t, msg).Header }
	for name, c := range map[string]struct {
		msg  []byte
		edit func(h *dnsmessage.Header)
		want time.Duration
	}{
		"short":                               {answer(t, q, 1, 30, 4), nil, 4 * time.Second},
		"long":                                {answer(t, q, 1, 86400), nil, Keep},
		"zero":                                {answer(t, q, 1, 0), nil, 0},
		"negative":                            {answer(t, q, 1), nil, 20 * time.Second},
		"cut":                                 {answer(t, q, 1, 30), func(h *dnsmessage.Header) { h.Truncated = true }, 0},
		"failure":                             {answer(t, q, 1, 30), func(h *dnsmessage.Header) { h.RCode = dnsmessage.RCodeServerFailure }, 0},
		"negative that does not say how long": {answer(t, q, 1, 30), func(h *dnsmessage.Header) { h.RCode = dnsmessage.RCodeNameError }, 0},
	} {
		h := header(c.msg)
		if c.edit != nil {
			c.edit(&h)
		}
		if got := Life(c.msg, h); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// An alias leads to the answer of another server.
func TestFollow_ExternalName_HasTheAnswersOfItsTarget(t *testing.T) {
	z := NewZone(shop())
	q, _, _ := ParseQuery(query(t, "mail.default.svc.cluster.local.", dnsmessage.TypeA, 0))
	a := z.Answer(q.Question, 0)
	target := q
	target.Question.Name = dnsmessage.MustNewName(a.Alias)
	whole := a.Follow(answer(t, target, 1, 60))
	if got := text(whole); !strings.Contains(got, "mail.default.svc.cluster.local. 5 CNAME mail.example.com.") || !strings.Contains(got, "mail.example.com. 60 A 192.0.2.0") || whole.Alias != "" {
		t.Errorf("%s", got)
	}
	if none := a.Follow(answer(t, target, 1)); none.RCode != dnsmessage.RCodeNameError || len(none.Answers) != 1 || len(none.Authority) != 1 {
		t.Errorf("%s", text(none))
	}
	if broken := a.Follow([]byte("x")); broken.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("%s", text(broken))
	}
}

// No message of a client or another server causes a panic, and each reply can be read by a parser.
func FuzzMessages(f *testing.F) {
	seed := query(f, "web.default.svc.cluster.local.", dnsmessage.TypeA, 1232)
	f.Add(seed)
	f.Add(query(f, "_sql._tcp.db.default.svc.cluster.local.", dnsmessage.TypeSRV, 0))
	f.Add(query(f, "5.0.88.10.in-addr.arpa.", dnsmessage.TypePTR, 512))
	f.Add(query(f, "mail.default.svc.cluster.local.", dnsmessage.TypeAAAA, 512))
	f.Add(query(f, "example.com.", dnsmessage.TypeMX, 0))
	q, _, _ := ParseQuery(query(f, "www.example.com.", dnsmessage.TypeA, 0))
	f.Add(answer(f, q, 77, 30, 3))
	f.Add(answer(f, q, 77))
	f.Add(append(append([]byte{}, seed[:12]...), 0xc0, 12, 0, 1, 0, 1))
	f.Add(append(append([]byte{}, seed[:12]...), 1, 'a', 0xc0, 12, 0, 1, 0, 1))
	z := NewZone(shop())
	f.Fuzz(func(t *testing.T, msg []byte) {
		if q, code, err := ParseQuery(msg); err == nil {
			a := Answer{RCode: code}
			if code == dnsmessage.RCodeSuccess {
				a = z.Answer(q.Question, 3)
				if _, err := q.Ask(7); err != nil {
					t.Fatalf("cannot ask: %v", err)
				}
			}
			for _, limit := range []int{PlainSize, EDNSSize, 65535} {
				out, err := q.Reply(a, limit)
				if err != nil || len(out) > limit {
					t.Fatalf("reply of %d bytes to %d: %v", len(out), limit, err)
				}
				parsed(t, out)
			}
		}
		if len(msg) < 2 {
			return
		}
		h, err := q.Check(msg, binary.BigEndian.Uint16(msg))
		if err != nil {
			return
		}
		if life := Life(msg, h); life < 0 || life > Keep {
			t.Fatalf("kept for %s", life)
		}
		if out, err := q.Relay(msg, 65535, time.Second); err == nil && len(out) != len(msg) {
			t.Fatalf("relayed %d bytes as %d", len(msg), len(out))
		}
		follow := Answer{Answers: []dnsmessage.Resource{resource(q.Question.Name, &dnsmessage.CNAMEResource{CNAME: q.Question.Name})}}.Follow(msg)
		if out, err := q.Reply(follow, PlainSize); err == nil && len(out) > PlainSize {
			t.Fatalf("reply of %d bytes", len(out))
		}
	})
}
