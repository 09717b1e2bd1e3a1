package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/test/wait"
)

// limits returns the limits of tests: they differ from the defaults only where a test would wait.
func limits() Limits {
	l := DefaultLimits()
	l.Try, l.Total = 200*time.Millisecond, 2*time.Second
	return l
}

// running is a server on loopback.
type running struct {
	*Server
	at netip.AddrPort // UDP and TCP
}

func start(t *testing.T, l Limits) running {
	t.Helper()
	s := New(l, slog.New(slog.DiscardHandler))
	var udp *net.UDPConn
	var tcp *net.TCPListener
	for udp == nil { // a port that is free for both
		var err error
		if tcp, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
			t.Fatal(err)
		}
		at := tcp.Addr().(*net.TCPAddr)
		if udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: at.IP, Port: at.Port}); err != nil {
			_ = tcp.Close()
			udp = nil
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Datagrams(ctx, udp); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := s.Streams(ctx, tcp); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		wg.Wait()
		_ = udp.Close()
		_ = tcp.Close()
	})
	return running{s, udp.LocalAddr().(*net.UDPAddr).AddrPort()}
}

func state(upstreams ...netip.AddrPort) State {
	return State{
		Config: dns.Config{Domain: "cluster.local", Serial: 1, Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10")}},
		Known:  true, Upstreams: upstreams,
		Services: []*dns.Service{
			{Namespace: "default", Name: "web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.1.1")}, Ports: []dns.Port{{Name: "http", Protocol: "TCP", Number: 80}}},
			{Namespace: "default", Name: "mail", ExternalName: "mail.example.com"},
			many(),
		},
	}
}

// many is a Service with more addresses than fit into a datagram.
func many() *dns.Service {
	s := &dns.Service{Namespace: "default", Name: "many"}
	for i := range 120 {
		s.Endpoints = append(s.Endpoints, dns.Endpoint{Address: netip.AddrFrom4([4]byte{10, 88, 3, byte(i)})})
	}
	return s
}

// query returns a query; edns is the size it names, 0 for none.
func query(t testing.TB, id uint16, name string, kind dnsmessage.Type, edns int) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id, RecursionDesired: true})
	err := errors.Join(b.StartQuestions(), b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}), b.StartAdditionals())
	if edns > 0 {
		var h dnsmessage.ResourceHeader
		err = errors.Join(err, h.SetEDNS0(edns, 0, false), b.OPTResource(h, dnsmessage.OPTResource{}))
	}
	msg, err2 := b.Finish()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return msg
}

// ask sends one query over a socket of its own.
func (r running) ask(t testing.TB, network, name string, kind dnsmessage.Type, edns int) dnsmessage.Message {
	t.Helper()
	conn, err := net.Dial(network, r.at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return askOver(t, conn, query(t, 4242, name, kind, edns))
}

func askOver(t testing.TB, conn net.Conn, msg []byte) dnsmessage.Message {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(wait.Limit))
	_, stream := conn.(*net.TCPConn)
	var err error
	if stream {
		err = writeMessage(conn, msg)
	} else {
		_, err = conn.Write(msg)
	}
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65535)
	n := 0
	if stream {
		buf, err = readMessage(conn, 65535)
		n = len(buf)
	} else {
		n, err = conn.Read(buf)
	}
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	if m.ID != binary.BigEndian.Uint16(msg) || !m.Response {
		t.Fatalf("answer %+v", m.Header)
	}
	return m
}

// addresses returns the addresses in an answer.
func addresses(m dnsmessage.Message) (all []string) {
	for _, r := range m.Answers {
		if a, ok := r.Body.(*dnsmessage.AResource); ok {
			all = append(all, netip.AddrFrom4(a.A).String())
		}
	}
	return all
}

// upstream is another server. Its reply to a query may be nil: none.
type fake struct {
	at    netip.AddrPort
	asked atomic.Int64
}

func upstreamServer(t *testing.T, reply func(q dnsmessage.Message) *dnsmessage.Message) *fake {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{at: conn.LocalAddr().(*net.UDPAddr).AddrPort()}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			f.asked.Add(1)
			var q dnsmessage.Message
			if err := q.Unpack(buf[:n]); err != nil {
				t.Errorf("asked by a malformed query: %v", err)
				continue
			}
			if a := reply(q); a != nil {
				msg, err := a.Pack()
				if err != nil {
					t.Error(err)
				}
				_, _ = conn.WriteToUDPAddrPort(msg, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return f
}

// address answers each query with one address.
func address(q dnsmessage.Message) *dnsmessage.Message {
	q.Response, q.Additionals = true, nil
	q.Answers = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 60},
		Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}},
	}}
	return &q
}

func silent(dnsmessage.Message) *dnsmessage.Message { return nil }

// Go's resolver, as in a pod, resolves a short name by the search list, a name outside the cluster,
// and no unknown name.
func TestServer_GoResolver_FindsNamesOfBothKinds(t *testing.T) {
	up := upstreamServer(t, func(q dnsmessage.Message) *dnsmessage.Message {
		if q.Questions[0].Type != dnsmessage.TypeA {
			q.Response = true
			return &q
		}
		return address(q)
	})
	s := start(t, limits())
	s.Set(state(up.at))
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, s.at.String())
	}}
	for name, want := range map[string]string{
		"web.default.svc.cluster.local.": "[10.96.1.1]", "WEB.default.svc.cluster.local.": "[10.96.1.1]", "www.example.com.": "[192.0.2.1]", "mail.default.svc.cluster.local.": "[192.0.2.1]",
	} {
		got, err := r.LookupHost(t.Context(), name)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v, want %s", name, got, err, want)
		}
	}
	if all, err := r.LookupHost(t.Context(), "many.default.svc.cluster.local."); err != nil || len(all) != 120 { // over TCP
		t.Errorf("%d addresses, %v", len(all), err)
	}
	if _, srv, err := r.LookupSRV(t.Context(), "http", "tcp", "web.default.svc.cluster.local."); err != nil || len(srv) != 1 || srv[0].Port != 80 || srv[0].Target != "web.default.svc.cluster.local." {
		t.Errorf("SRV: %v, %v", srv, err)
	}
	if names, err := r.LookupAddr(t.Context(), "10.96.1.1"); err != nil || fmt.Sprint(names) != "[web.default.svc.cluster.local.]" {
		t.Errorf("PTR: %v, %v", names, err)
	}
	_, err := r.LookupHost(t.Context(), "none.default.svc.cluster.local.")
	if lost, ok := errors.AsType[*net.DNSError](err); !ok || !lost.IsNotFound || lost.IsTemporary {
		t.Errorf("a name that does not exist: %v", err)
	}
}

// No query for a name of the cluster reaches another server.
func TestServer_NamesOfTheCluster_AreNotAskedOfOthers(t *testing.T) {
	up := upstreamServer(t, address)
	s := start(t, limits())
	s.Set(state(up.at))
	for _, name := range []string{"none.default.svc.cluster.local.", "x.CLUSTER.local.", "7.7.96.10.in-addr.arpa.", "web.default.svc.cluster.local."} {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypePTR, dnsmessage.TypeMX, dnsmessage.TypeALL, 999} {
			s.ask(t, "udp", name, kind, 0)
			s.ask(t, "tcp", name, kind, 1232)
		}
	}
	if n := up.asked.Load(); n != 0 {
		t.Errorf("another server was asked %d times", n)
	}
}

// Until the Services are known, the answer for their names is SERVFAIL, which clients do not cache.
// Other names are resolved.
func TestServer_ServicesUnknown_Fails(t *testing.T) {
	up := upstreamServer(t, address)
	s := start(t, limits())
	if m := s.ask(t, "udp", "web.default.svc.cluster.local.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("without a state: %v", m.RCode)
	}
	unknown := state(up.at)
	unknown.Known, unknown.Services = false, nil
	s.Set(unknown)
	if m := s.ask(t, "udp", "web.default.svc.cluster.local.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("before the Services are known: %v", m.RCode)
	}
	if m := s.ask(t, "udp", "example.com.", dnsmessage.TypeA, 0); fmt.Sprint(addresses(m)) != "[192.0.2.1]" {
		t.Errorf("another name: %v", m)
	}
	some := state(up.at)
	some.Known = false
	s.Set(some)
	if m := s.ask(t, "udp", "many.default.svc.cluster.local.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeSuccess || len(m.Answers) == 0 {
		t.Errorf("a Service that is known before all are: %v", m.RCode)
	}
	if m := s.ask(t, "udp", "missing.default.svc.cluster.local.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("a name that may be that of another Service: %v", m.RCode)
	}
}

// A long answer is truncated over UDP, to the size of the client, and complete over TCP.
func TestServer_LongAnswer_IsCutOverUDPOnly(t *testing.T) {
	s := start(t, limits())
	s.Set(state())
	for edns, most := range map[int]int{0: 32, 4096: 77} {
		m := s.ask(t, "udp", "many.default.svc.cluster.local.", dnsmessage.TypeA, edns)
		if !m.Truncated || len(m.Answers) == 0 || len(m.Answers) > most {
			t.Errorf("EDNS %d: %d answers, cut: %v", edns, len(m.Answers), m.Truncated)
		}
	}
	if m := s.ask(t, "tcp", "many.default.svc.cluster.local.", dnsmessage.TypeA, 0); m.Truncated || len(m.Answers) != 120 {
		t.Errorf("TCP: %d answers, cut: %v", len(m.Answers), m.Truncated)
	}
}

// A server that does not answer delays the first query, and comes last afterwards.
func TestForward_DeadServer_IsRemembered(t *testing.T) {
	dead, live := upstreamServer(t, silent), upstreamServer(t, address)
	s := start(t, limits())
	s.Set(state(dead.at, live.at))
	for i := range 5 {
		if m := s.ask(t, "udp", fmt.Sprintf("n%d.example.com.", i), dnsmessage.TypeA, 0); fmt.Sprint(addresses(m)) != "[192.0.2.1]" {
			t.Fatalf("query %d: %+v", i, m.Header)
		}
	}
	if n := dead.asked.Load(); n != 1 {
		t.Errorf("the dead server was asked %d times", n)
	}
}

// If no server answers, or all fail, the client gets that failure. A server's own failure leads to the
// next one.
func TestForward_AllFail_IsServerFailure(t *testing.T) {
	fails := func(q dnsmessage.Message) *dnsmessage.Message {
		q.Response, q.RCode = true, dnsmessage.RCodeRefused
		return &q
	}
	refusing := upstreamServer(t, fails)
	gone, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	closed := gone.LocalAddr().(*net.UDPAddr).AddrPort()
	_ = gone.Close()
	dead := upstreamServer(t, silent)
	for name, servers := range map[string][]netip.AddrPort{"none": nil, "dead": {dead.at}, "closed": {closed}} {
		l := limits()
		l.Try, l.Total = 50*time.Millisecond, 300*time.Millisecond
		s := start(t, l)
		s.Set(state(servers...))
		if m := s.ask(t, "udp", "example.com.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeServerFailure {
			t.Errorf("%s: %v", name, m.RCode)
		}
		if m := s.ask(t, "udp", "mail.default.svc.cluster.local.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeServerFailure {
			t.Errorf("%s, by an alias: %v", name, m.RCode)
		}
	}
	s := start(t, limits())
	s.Set(state(refusing.at, closed))
	if m := s.ask(t, "udp", "example.com.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeRefused {
		t.Errorf("the only answer is a server's own failure: %v", m.RCode)
	}
	live := upstreamServer(t, address)
	s.Set(state(refusing.at, live.at))
	if m := s.ask(t, "udp", "other.example.com.", dnsmessage.TypeA, 0); fmt.Sprint(addresses(m)) != "[192.0.2.1]" {
		t.Errorf("the next server was not asked: %+v", m.Header)
	}
}

// Answers are cached for the time of their TTL, also negative ones. The cache is emptied for
// another set of servers.
func TestForward_AnswersAndAbsence_AreKept(t *testing.T) {
	up := upstreamServer(t, func(q dnsmessage.Message) *dnsmessage.Message {
		if !strings.HasPrefix(q.Questions[0].Name.String(), "no") {
			return address(q)
		}
		root := dnsmessage.MustNewName(".")
		q.Response, q.RCode, q.Additionals = true, dnsmessage.RCodeNameError, nil
		q.Authorities = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: root, Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.SOAResource{NS: root, MBox: root, MinTTL: 60}}}
		return &q
	})
	s := start(t, limits())
	s.Set(state(up.at))
	for range 3 {
		if m := s.ask(t, "udp", "www.example.com.", dnsmessage.TypeA, 0); fmt.Sprint(addresses(m)) != "[192.0.2.1]" {
			t.Errorf("%v", m)
		}
		if m := s.ask(t, "udp", "WWW.example.com.", dnsmessage.TypeA, 0); m.Questions[0].Name.String() != "WWW.example.com." {
			t.Errorf("another case: %v", m.Questions)
		}
		if m := s.ask(t, "udp", "no.example.com.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeNameError {
			t.Errorf("absent: %v", m.RCode)
		}
	}
	if n := up.asked.Load(); n != 2 {
		t.Errorf("the server was asked %d times, not 2", n)
	}
	other := upstreamServer(t, address)
	s.Set(state(other.at))
	s.ask(t, "udp", "www.example.com.", dnsmessage.TypeA, 0)
	if n := other.asked.Load(); n != 1 {
		t.Errorf("the new server was asked %d times, not once", n)
	}
}

// Answers with another ID or question, such as an attacker's guesses, are dropped, and the right
// answer after them counts.
func TestForward_SpoofedAnswers_AreDropped(t *testing.T) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ids, ports := make(map[uint16]bool), make(map[uint16]bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if err := q.Unpack(buf[:n]); err != nil {
				t.Error(err)
				return
			}
			ids[q.ID], ports[from.Port()] = true, true
			evil := address(q)
			evil.Answers[0].Body = &dnsmessage.AResource{A: [4]byte{203, 0, 113, 66}}
			for _, edit := range []func(m *dnsmessage.Message){
				func(m *dnsmessage.Message) { m.ID++ },
				func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("evil.example.com.") },
				func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeAAAA },
				func(m *dnsmessage.Message) { m.Response = false },
				func(m *dnsmessage.Message) { m.Questions = nil },
				func(*dnsmessage.Message) {}, // the right one
			} {
				m := *evil
				m.Questions = slices.Clone(evil.Questions)
				right := m.ID
				edit(&m)
				if m.ID == right && len(m.Questions) == 1 && m.Response && m.Questions[0] == evil.Questions[0] {
					m = *address(q)
				}
				msg, err := m.Pack()
				if err != nil {
					t.Error(err)
				}
				_, _ = conn.WriteToUDPAddrPort(msg, from)
			}
		}
	})
	l := limits()
	l.Try, l.Total = wait.Limit, wait.Limit // a machine that is busy asks no server twice
	s := start(t, l)
	s.Set(state(conn.LocalAddr().(*net.UDPAddr).AddrPort()))
	for i := range 8 {
		m := s.ask(t, "udp", fmt.Sprintf("n%d.example.com.", i), dnsmessage.TypeA, 0)
		if fmt.Sprint(addresses(m)) != "[192.0.2.1]" {
			t.Errorf("query %d: %+v %v", i, m.Header, addresses(m))
		}
	}
	_ = conn.Close()
	wg.Wait()
	if len(ids) < 7 || len(ports) < 2 { // of eight: two equal IDs in a row are one run in thousands
		t.Errorf("IDs %v, ports %v", ids, ports)
	}
}

// Equal waiting queries share one question: several open questions would be easier to guess.
func TestForward_EqualQueries_AreOneQuestion(t *testing.T) {
	asked, release := make(chan struct{}, 64), make(chan struct{})
	up := upstreamServer(t, func(q dnsmessage.Message) *dnsmessage.Message {
		asked <- struct{}{}
		<-release
		return address(q)
	})
	l := limits()
	l.Try, l.Total = wait.Limit, wait.Limit
	s := start(t, l)
	s.Set(state(up.at))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if m := s.ask(t, "udp", "www.example.com.", dnsmessage.TypeA, 0); fmt.Sprint(addresses(m)) != "[192.0.2.1]" {
				t.Errorf("%v", m)
			}
		})
	}
	<-asked
	wait.Until(t, "all queries were read", func() (uint64, bool) { n := s.Counts().Queries; return n, n >= 20 })
	close(release)
	wg.Wait()
	if n := up.asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
}

// Malformed messages over UDP and TCP do not stop the server, and it never answers a response.
func TestServer_MalformedMessages_ServerGoesOn(t *testing.T) {
	s := start(t, limits())
	s.Set(state())
	conn, err := net.Dial("udp", s.at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	good := query(t, 4242, "web.default.svc.cluster.local.", dnsmessage.TypeA, 1232)
	isAnswer := slices.Clone(good)
	isAnswer[2] |= 0x80
	loop := append(slices.Clone(good[:12]), 0xc0, 12, 0, 1, 0, 1)
	for _, msg := range [][]byte{{}, {0}, good[:11], isAnswer, make([]byte, 5000)} {
		if _, err := conn.Write(msg); err != nil {
			t.Fatal(err)
		}
	}
	if m := askOver(t, conn, loop); m.RCode != dnsmessage.RCodeFormatError { // the first answer of all
		t.Errorf("a name that points to itself: %v", m.RCode)
	}
	if m := askOver(t, conn, good); fmt.Sprint(addresses(m)) != "[10.96.1.1]" {
		t.Errorf("%v", m)
	}
	for _, bytes := range [][]byte{{0}, {0, 5, 1}, {0xff, 0xff}, append([]byte{0, 11}, good[:11]...)} {
		tcp, err := net.Dial("tcp", s.at.String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = tcp.Write(bytes)
		_ = tcp.(*net.TCPConn).CloseWrite()
		_ = tcp.SetDeadline(time.Now().Add(wait.Limit))
		if n, err := tcp.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%x has an answer", bytes)
		}
		_ = tcp.Close()
	}
	if m := s.ask(t, "tcp", "web.default.svc.cluster.local.", dnsmessage.TypeA, 0); fmt.Sprint(addresses(m)) != "[10.96.1.1]" {
		t.Errorf("%v", m)
	}
}

// dialFrom connects from another address of loopback, which is another client.
func dialFrom(t testing.TB, network, from string, to netip.AddrPort) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := d.Dial(network, to.String())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// A client that floods loses queries, and another client gets answers.
func TestServer_FloodOfOneClient_OthersAreAnswered(t *testing.T) {
	l := limits()
	l.Rate, l.Burst = 1, 50
	s := start(t, l)
	s.Set(state())
	flood := dialFrom(t, "udp", "127.0.0.66", s.at)
	defer flood.Close()
	msg := query(t, 1, "web.default.svc.cluster.local.", dnsmessage.TypeA, 0)
	wait.Until(t, "the flood is cut", func() (uint64, bool) {
		for range 200 {
			_, _ = flood.Write(msg)
		}
		n := s.Counts().Refused
		return n, n > 100
	})
	other := dialFrom(t, "udp", "127.0.0.67", s.at)
	defer other.Close()
	// The flood may fill the socket's buffer for a moment; a resolver asks again, too.
	answers := make(chan []byte, 1)
	go func() {
		buf := make([]byte, 512)
		n, _ := other.Read(buf)
		answers <- buf[:n]
	}()
	again := query(t, 2, "web.default.svc.cluster.local.", dnsmessage.TypeA, 0)
	wait.Until(t, "the other client is answered", func() (uint64, bool) {
		_, _ = other.Write(again)
		return s.Counts().Queries, len(answers) > 0
	})
	var m dnsmessage.Message
	if err := m.Unpack(<-answers); err != nil || fmt.Sprint(addresses(m)) != "[10.96.1.1]" {
		t.Errorf("%v %v", m, err)
	}
}

// A pod that forges the address of another one uses up the rate of its datagrams. The other one still
// gets its answers, over TCP. An answer that is no larger than its query refers it there.
func TestServer_FloodInTheNameOfAnother_ThatOneIsAnsweredOverTCP(t *testing.T) {
	const victim = "127.0.0.66"
	l := limits()
	l.Rate, l.Burst = 0, 6
	s := start(t, l)
	s.Set(state())
	forged := dialFrom(t, "udp", victim, s.at)
	defer forged.Close()
	msg := query(t, 1, "web.default.svc.cluster.local.", dnsmessage.TypeA, 0)
	for range l.Burst {
		if m := askOver(t, forged, msg); m.Truncated || len(m.Answers) != 1 {
			t.Fatalf("below the limit: %v", m)
		}
	}
	if m := askOver(t, forged, msg); !m.Truncated || m.RCode != dnsmessage.RCodeSuccess || len(m.Answers)+len(m.Authorities)+len(m.Additionals) != 0 {
		t.Errorf("above the limit: %v", m)
	}
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialFrom(t, network[:3], victim, s.at), nil
	}}
	if got, err := r.LookupHost(t.Context(), "web.default.svc.cluster.local."); err != nil || fmt.Sprint(got) != "[10.96.1.1]" {
		t.Errorf("the victim: %v, %v", got, err)
	}
	if n := s.Counts().Refused; n < 2 {
		t.Errorf("%d queries were above the limit", n)
	}
	wait.Until(t, "these answers have a limit, too", func() (uint64, bool) {
		_, _ = forged.Write(msg)
		n := s.Counts().Refused
		return n, n > 2*cutFactor*uint64(l.Burst)
	})
	other := dialFrom(t, "udp", "127.0.0.67", s.at)
	defer other.Close()
	if m := askOver(t, other, msg); fmt.Sprint(addresses(m)) != "[10.96.1.1]" {
		t.Errorf("a third one: %v", m)
	}
}

// A pod that sends from changing addresses uses up the share of clients whose addresses may be forged.
// Another client is referred to connections, and is answered over UDP again after the first one.
//
// Shows: D1
func TestServer_FloodFromChangingAddresses_OthersAreAnswered(t *testing.T) {
	const client = "127.0.0.67"
	l := limits()
	l.Rate, l.Burst = 0, 100
	s := start(t, l)
	s.Set(state())
	msg := query(t, 1, "web.default.svc.cluster.local.", dnsmessage.TypeA, 0)
	for i := range unprovenFactor * l.Burst {
		forged := dialFrom(t, "udp", fmt.Sprintf("127.%d.%d.1", 1+i>>8, i&0xff), s.at)
		if m := askOver(t, forged, msg); m.Truncated || len(m.Answers) != 1 {
			t.Fatalf("query %d, within the share of unproven clients: %v", i, m)
		}
		_ = forged.Close()
	}
	udp := dialFrom(t, "udp", client, s.at)
	defer udp.Close()
	if m := askOver(t, udp, msg); !m.Truncated {
		t.Errorf("a new client during the flood: %v", m)
	}
	tcp := dialFrom(t, "tcp", client, s.at)
	defer tcp.Close()
	for _, conn := range []net.Conn{tcp, udp} {
		if m := askOver(t, conn, msg); m.Truncated || fmt.Sprint(addresses(m)) != "[10.96.1.1]" {
			t.Errorf("%s: %v", conn.LocalAddr().Network(), m)
		}
	}
	forged := dialFrom(t, "udp", "127.9.9.9", s.at)
	defer forged.Close()
	if m := askOver(t, forged, msg); !m.Truncated {
		t.Errorf("another forged address: %v", m)
	}
}

// A client with many queries that wait for a dead server, and many connections, leaves room for
// others.
func TestServer_OneClientWaitsALot_OthersAreAnswered(t *testing.T) {
	l := limits()
	l.Try, l.Total, l.ClientWaiting, l.ClientConnections = wait.Limit, wait.Limit, 8, 4
	dead := upstreamServer(t, silent)
	s := start(t, l)
	s.Set(state(dead.at))
	greedy := dialFrom(t, "udp", "127.0.0.66", s.at)
	defer greedy.Close()
	for i := range 20 {
		if _, err := greedy.Write(query(t, uint16(i), fmt.Sprintf("n%d.example.com.", i), dnsmessage.TypeA, 0)); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "queries over the limit have failed", func() (uint64, bool) { n := s.Counts().Failed; return n, n == 12 })
	var open []net.Conn
	for range 10 {
		open = append(open, dialFrom(t, "tcp", "127.0.0.66", s.at))
	}
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	wait.Until(t, "connections over the limit were closed", func() (uint64, bool) { n := s.Counts().Refused; return n, n == 12+6 })
	for _, network := range []string{"udp", "tcp"} {
		other := dialFrom(t, network, "127.0.0.67", s.at)
		if m := askOver(t, other, query(t, 2, "web.default.svc.cluster.local.", dnsmessage.TypeA, 0)); fmt.Sprint(addresses(m)) != "[10.96.1.1]" {
			t.Errorf("%s: %v", network, m)
		}
		_ = other.Close()
	}
}

// A connection that sends nothing, or one byte at a time, ends.
func TestStreams_IdleConnection_IsClosed(t *testing.T) {
	l := limits()
	l.Idle = 50 * time.Millisecond
	s := start(t, l)
	s.Set(state())
	for _, first := range [][]byte{nil, {0}, {0, 12, 1}} {
		conn := dialFrom(t, "tcp", "127.0.0.1", s.at)
		_, _ = conn.Write(first)
		_ = conn.SetDeadline(time.Now().Add(wait.Limit))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %x: %d bytes, %v", first, n, err)
		}
		_ = conn.Close()
	}
}

// One connection serves several queries.
func TestStreams_SeveralQueries_OneConnection(t *testing.T) {
	s := start(t, limits())
	s.Set(state())
	conn := dialFrom(t, "tcp", "127.0.0.1", s.at)
	defer conn.Close()
	for id := range uint16(5) {
		if m := askOver(t, conn, query(t, id, "web.default.svc.cluster.local.", dnsmessage.TypeA, 0)); fmt.Sprint(addresses(m)) != "[10.96.1.1]" {
			t.Errorf("%v", m)
		}
	}
}

// glibc and musl ask for both families at once over one socket, and wait for two answers. An answer
// without addresses of a family is an answer, too.
func TestServer_BothFamiliesOverOneSocket_BothAreAnswered(t *testing.T) {
	s := start(t, limits())
	s.Set(state())
	conn := dialFrom(t, "udp", "127.0.0.1", s.at)
	defer conn.Close()
	for id, kind := range map[uint16]dnsmessage.Type{1: dnsmessage.TypeA, 2: dnsmessage.TypeAAAA} {
		if _, err := conn.Write(query(t, id, "web.default.svc.cluster.local.", kind, 0)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[uint16]string)
	for range 2 {
		_ = conn.SetDeadline(time.Now().Add(wait.Limit))
		buf := make([]byte, 512)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		var m dnsmessage.Message
		if err := m.Unpack(buf[:n]); err != nil {
			t.Fatal(err)
		}
		got[m.ID] = fmt.Sprint(m.RCode, " ", addresses(m), " ", len(m.Authorities))
	}
	if got[1] != "RCodeSuccess [10.96.1.1] 0" || got[2] != "RCodeSuccess [] 1" {
		t.Errorf("%v", got)
	}
}
