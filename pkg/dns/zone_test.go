package dns

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

var update = flag.Bool("update", false, "rewrite the goldens")

func ips(all ...string) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// shop has Services of every kind.
func shop() (Config, []*Service) {
	http := Port{Name: "http", Protocol: "TCP", Number: 80}
	c := Config{
		Domain: "cluster.local", Servers: ips("10.96.0.10"), Serial: 7,
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("fd00:96::/108")},
	}
	return c, []*Service{
		{Namespace: "default", Name: "web", ClusterIPs: ips("10.96.12.34", "fd00:96::1234"), Ports: []Port{http, {Protocol: "TCP", Number: 81}, {Name: "dns", Protocol: "UDP", Number: 53}}},
		{Namespace: "default", Name: "db", Ports: []Port{{Name: "sql", Protocol: "TCP", Number: 5432}}, Endpoints: []Endpoint{
			{Address: netip.MustParseAddr("10.88.0.5"), Hostname: "db-0", Ports: []Port{{Name: "sql", Protocol: "TCP", Number: 15432}}},
			{Address: netip.MustParseAddr("10.88.0.6"), Hostname: "db-1"},
			{Address: netip.MustParseAddr("fd00:88::6"), Hostname: "db-1"},
			{Address: netip.MustParseAddr("10.88.0.7")},
			{Address: netip.MustParseAddr("fd00:88::7")},
		}},
		{Namespace: "default", Name: "idle"},
		{Namespace: "default", Name: "mail", ExternalName: "Mail.Example.COM"},
		{Namespace: "default", Name: "alias", ExternalName: "web.default.svc.cluster.local"},
		{Namespace: "default", Name: "dbalias", ExternalName: "idle.default.svc.cluster.local."},
		{Namespace: "default", Name: "round", ExternalName: "about.default.svc.cluster.local"},
		{Namespace: "default", Name: "about", ExternalName: "round.default.svc.cluster.local"},
		{Namespace: "far", Name: "host", Ports: []Port{http}, Endpoints: []Endpoint{{Address: netip.MustParseAddr("192.0.2.7"), Hostname: "node"}}},
		{Namespace: "far", Name: "long", ExternalName: strings.Repeat("x", 64) + ".example"},
	}
}

// text shows an answer as a line of each record.
func text(a Answer) string {
	if a.Forward {
		return "  forward\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "  %s", strings.TrimPrefix(a.RCode.String(), "RCode"))
	if a.Alias != "" {
		fmt.Fprintf(&b, ", then %s elsewhere", a.Alias)
	}
	b.WriteString("\n")
	for _, section := range []struct {
		name string
		of   []dnsmessage.Resource
	}{{"answer", a.Answers}, {"authority", a.Authority}, {"additional", a.Additional}} {
		for _, r := range section.of {
			fmt.Fprintf(&b, "    %s: %s %d %s %s\n", section.name, r.Header.Name, r.Header.TTL, strings.TrimPrefix(r.Header.Type.String(), "Type"), data(r.Body))
		}
	}
	return b.String()
}

func data(body dnsmessage.ResourceBody) string {
	switch r := body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(r.A).String()
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(r.AAAA).String()
	case *dnsmessage.CNAMEResource:
		return r.CNAME.String()
	case *dnsmessage.PTRResource:
		return r.PTR.String()
	case *dnsmessage.NSResource:
		return r.NS.String()
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("%d %d %d %s", r.Priority, r.Weight, r.Port, r.Target)
	case *dnsmessage.TXTResource:
		return fmt.Sprintf("%q", r.TXT)
	case *dnsmessage.SOAResource:
		return fmt.Sprintf("%s %s %d, %d s", r.NS, r.MBox, r.Serial, r.MinTTL)
	}
	return fmt.Sprintf("%T", body)
}

var kinds = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "SRV": dnsmessage.TypeSRV, "PTR": dnsmessage.TypePTR, "TXT": dnsmessage.TypeTXT,
	"CNAME": dnsmessage.TypeCNAME, "SOA": dnsmessage.TypeSOA, "NS": dnsmessage.TypeNS, "MX": dnsmessage.TypeMX, "ANY": dnsmessage.TypeALL,
	"AXFR": dnsmessage.TypeAXFR,
}

func ask(name, kind string) dnsmessage.Question {
	return dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kinds[kind], Class: dnsmessage.ClassINET}
}

// The zone of a shop answers as the specification requires, also about missing names. Each line of
// the golden file that is not indented is a question.
func TestZone_Shop_AnswersAsSpecified(t *testing.T) {
	z := NewZone(shop())
	file := filepath.Join("testdata", "answers.txt")
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	questions := 0
	for line := range strings.Lines(string(golden)) {
		switch fields := strings.Fields(line); {
		case strings.HasPrefix(line, " "):
			continue
		case len(fields) == 0 || strings.HasPrefix(line, "#"):
			got.WriteString(line)
		default:
			questions++
			got.WriteString(line + text(z.Answer(ask(fields[0], fields[1]), 0)))
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if questions < 40 {
		t.Errorf("only %d questions", questions)
	}
	if got.String() != string(golden) {
		t.Errorf("got\n%s\nwant\n%s", got.String(), golden)
	}
}

// Each answer starts with another address.
func TestZone_SeveralAddresses_RotateInTurn(t *testing.T) {
	c, _ := shop()
	z := NewZone(c, []*Service{{Namespace: "n", Name: "s", Endpoints: []Endpoint{{Address: ips("10.88.0.1")[0]}, {Address: ips("10.88.0.2")[0]}, {Address: ips("10.88.0.3")[0]}}}})
	first := make(map[string]int)
	for turn := range uint32(6) {
		a := z.Answer(ask("s.n.svc.cluster.local.", "A"), turn)
		if len(a.Answers) != 3 {
			t.Fatalf("turn %d: %s", turn, text(a))
		}
		first[data(a.Answers[0].Body)]++
	}
	if len(first) != 3 || first["10.88.0.1"] != 2 {
		t.Errorf("first addresses: %v", first)
	}
}

// Pods with hostNetwork share an address. Each answer has it once.
func TestZone_EndpointsShareAnAddress_AnswersHaveItOnce(t *testing.T) {
	c, _ := shop()
	e := Endpoint{Address: ips("192.0.2.7")[0], Hostname: "node"}
	z := NewZone(c, []*Service{{Namespace: "n", Name: "s", Endpoints: []Endpoint{e, {Address: e.Address}, e}}})
	for name, want := range map[string]int{"s.n.svc.cluster.local.": 1, "node.s.n.svc.cluster.local.": 1, "192-0-2-7.s.n.svc.cluster.local.": 1} {
		if a := z.Answer(ask(name, "A"), 0); len(a.Answers) != want {
			t.Errorf("%s: %s", name, text(a))
		}
	}
	if a := z.Answer(ask("7.2.0.192.in-addr.arpa.", "PTR"), 0); len(a.Answers) != 2 {
		t.Errorf("the address has other names: %s", text(a))
	}
}

// A name of the cluster, or of an address of an own range, is never for other servers, whatever
// Services there are.
func TestZone_NamesOfTheCluster_AreNeverForwarded(t *testing.T) {
	c, services := shop()
	for _, z := range []*Zone{NewZone(c, nil), NewZone(c, services)} {
		for _, name := range []string{
			"cluster.local.", "CLUSTER.LOCAL.", "x.cluster.local.", "a.b.c.d.e.cluster.LOCAL.", "web.default.svc.cluster.local.", "1-2-3-4.x.pod.cluster.local.",
			"1.0.96.10.in-addr.arpa.", "96.10.in-addr.arpa.", "255.255.111.10.IN-ADDR.arpa.", "x.1.0.96.10.in-addr.arpa.", "9.9.88.10.in-addr.arpa.",
			"0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa.",
		} {
			for kind := range kinds {
				if a := z.Answer(ask(name, kind), 1); a.Forward || a.Alias != "" && kind != "A" && isBelow(a.Alias, "cluster.local.") {
					t.Errorf("%s %s is forwarded", name, kind)
				}
			}
		}
		for _, name := range []string{
			".", "com.", "local.", "example.com.", "cluster.local.example.", "xcluster.local.", "web.default.svc.", "10.in-addr.arpa.", "1.0.112.10.in-addr.arpa.", "1.0.0.127.in-addr.arpa.",
			"in-addr.arpa.", "256.0.96.10.in-addr.arpa.example.", "01.0.112.10.in-addr.arpa.", "2.192.in-addr.arpa.",
		} {
			if a := z.Answer(ask(name, "A"), 1); !a.Forward {
				t.Errorf("%s is not forwarded: %s", name, text(a))
			}
		}
	}
}

func TestDefaultServer_Range_IsTheTenthAddress(t *testing.T) {
	for network, want := range map[string]string{"10.96.0.0/16": "10.96.0.10", "10.96.7.9/12": "10.96.0.10", "fd00:96::/108": "fd00:96::a", "10.96.0.0/29": "none", "10.96.0.0/28": "10.96.0.10"} {
		ip, ok := DefaultServer(netip.MustParsePrefix(network))
		if got := ip.String(); ok && got != want || !ok && want != "none" {
			t.Errorf("%s: %s, %v, want %s", network, got, ok, want)
		}
	}
}

// The servers of a file, as glibc reads it: at most three, and never this server itself.
func TestUpstreams_ResolverFile_AsTheResolverReadsIt(t *testing.T) {
	own := ips("10.96.0.10")
	for file, want := range map[string]string{
		"": "[127.0.0.1:53]",
		"nameserver 127.0.0.53\noptions edns0\nsearch x\n":                                                         "[127.0.0.53:53]",
		"# nameserver 1.1.1.1\nnameserver 10.96.0.10\nnameserver 192.0.2.1\n":                                      "[192.0.2.1:53]",
		"nameserver 10.96.0.10\n":                                                                                  "[]",
		"nameserver 192.0.2.1\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver 192.0.2.4":                "[192.0.2.1:53 [fe80::1%eth0]:53]",
		"nameserver ::ffff:192.0.2.1\nnameserver nonsense\nnameserver\nnameserver 0.0.0.0\nnameserver 192.0.2.2\n": "[192.0.2.1:53 192.0.2.2:53]",
	} {
		if got := fmt.Sprint(Upstreams(file, own)); got != want {
			t.Errorf("%q: %s, want %s", file, got, want)
		}
	}
}

func TestReverse_EveryAddress_IsItsOwn(t *testing.T) {
	for _, a := range ips("0.0.0.0", "10.96.0.10", "255.255.255.255", "::", "fd00:96::a", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") {
		network, ok := reverseNetwork(reverseName(a))
		if !ok || network != netip.PrefixFrom(a, a.BitLen()) {
			t.Errorf("%s: %s is %s, %v", a, reverseName(a), network, ok)
		}
	}
	for _, name := range []string{"in-addr.arpa.", "ip6.arpa.", "256.in-addr.arpa.", "-1.in-addr.arpa.", "01.in-addr.arpa.", "1.2.3.4.5.in-addr.arpa.", "g.ip6.arpa.", "10.ip6.arpa.", strings.Repeat("0.", 33) + "ip6.arpa."} {
		if network, ok := reverseNetwork(name); ok {
			t.Errorf("%s is %s", name, network)
		}
	}
}

// Zones of other sizes of ranges answer for exactly their addresses.
func TestZone_RangeWithinALabel_HasAZoneForEachValue(t *testing.T) {
	c := Config{Domain: "cluster.local", Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("192.0.2.64/26"), netip.MustParsePrefix("fd00::/62")}}
	z := NewZone(c, nil)
	for name, want := range map[string]string{
		"1.2.111.10.in-addr.arpa.": "111.10.in-addr.arpa.", "96.10.in-addr.arpa.": "96.10.in-addr.arpa.", "1.2.112.10.in-addr.arpa.": "", "10.in-addr.arpa.": "",
		"127.2.0.192.in-addr.arpa.": "127.2.0.192.in-addr.arpa.", "128.2.0.192.in-addr.arpa.": "", "2.0.192.in-addr.arpa.": "",
		"3.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.": "3.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", "4.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.": "",
	} {
		if got, ok := z.ownReverse(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, ok, want)
		}
	}
	if all := slices.Collect(func(yield func(string) bool) {
		for name := range z.nodes {
			if !yield(name) {
				return
			}
		}
	}); len(all) != 6 {
		t.Errorf("an empty zone has %d names: %v", len(all), all)
	}
}

// A Service gets no name of another namespace, whatever its name, its namespace and the host names of its
// pods are.
//
// Shows: D1
func TestZone_NamesWithDots_ReachNoOtherNamespace(t *testing.T) {
	victim := &Service{Namespace: "shop", Name: "db", Endpoints: []Endpoint{{Address: netip.MustParseAddr("10.88.0.1"), Hostname: "db-0"}}}
	evil := netip.MustParseAddr("10.88.0.66")
	z := NewZone(Config{Domain: "cluster.local"}, []*Service{
		{Namespace: "db.shop", Name: "db-0", ClusterIPs: []netip.Addr{evil}},
		{Namespace: "shop.svc.cluster.local", Name: "db", ClusterIPs: []netip.Addr{evil}},
		{Namespace: "evil", Name: "db.shop.svc.cluster.local", ClusterIPs: []netip.Addr{evil}},
		{Namespace: "evil", Name: "x", Endpoints: []Endpoint{{Address: evil, Hostname: "db.shop.svc.cluster.local."}}},
		{Namespace: "evil", Name: "alias", ExternalName: "db.shop.svc.cluster.local"},
		victim,
	})
	for _, name := range []string{"db.shop.svc.cluster.local.", "db-0.db.shop.svc.cluster.local."} {
		a := z.Answer(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}, 0)
		if len(a.Answers) != 1 {
			t.Errorf("%s: %d answers", name, len(a.Answers))
			continue
		}
		if got, is := a.Answers[0].Body.(*dnsmessage.AResource); !is || got.A != [4]byte{10, 88, 0, 1} {
			t.Errorf("%s: %v", name, a.Answers[0].Body)
		}
	}
	if got, is := z.nodes["10-88-0-66.x.evil.svc.cluster.local."]; !is || len(got.addresses) != 1 {
		t.Error("an endpoint with an unusual host name has no name of its address")
	}
}
