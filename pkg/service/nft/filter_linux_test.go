package nft

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/service"
)

func addrs(t *testing.T, list ...string) (out []netip.Addr) {
	t.Helper()
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// apply makes the rules of a Service with these backends, as the balancer does.
func (n *node) apply(d Desired, backends ...string) int {
	n.t.Helper()
	messages := 0
	n.do(func() error {
		routes, err := Routes()
		if err != nil {
			return err
		}
		if _, err := Prepare(routes, addrs(n.t, backends...)); err != nil {
			return err
		}
		if err := n.filter.Guard(); err != nil {
			return err
		}
		for _, p := range d.CIDRs {
			if err := Serve(p, true); err != nil {
				return err
			}
		}
		messages, err = n.filter.Apply(d)
		return err
	})
	return messages
}

// webRule is a Service web at 10.96.0.7:80 and node port 30080.
func webRule(backends ...string) service.Rule {
	r := service.Rule{Name: "default/web/tcp/http", Protocol: v1.ProtocolTCP, Port: 80, Cluster: netip.MustParseAddr("10.96.0.7"), NodePort: 30080}
	for _, b := range backends {
		r.Backends = append(r.Backends, netip.MustParseAddrPort(b))
	}
	return r
}

func desired(rules ...service.Rule) Desired {
	return Desired{Rules: [][]service.Rule{rules}, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Links: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")}}
}

const refused = "connection refused"

// TestFilter_Service_IsReachedFromEverywhere: from the node, from pods, from outside, from the
// endpoint itself, by cluster IP, node port, external IP and loopback address; the endpoints see
// the client's address if its replies pass the node.
func TestFilter_Service_IsReachedFromEverywhere(t *testing.T) {
	n := newNode(t)
	web, client, outside := n.pod("web", "10.88.0.2"), n.pod("client", "10.88.0.3"), n.outside()
	n.sysctl("bridge/bridge-nf-call-iptables", "0")
	web.serve("web", 8080)
	outside.ip("route", "add", "10.96.0.0/16", "via", "192.0.2.1")
	outside.ip("route", "add", "203.0.113.5/32", "via", "192.0.2.1")
	client.ip("route", "add", "203.0.113.5/32", "via", "10.88.0.1")
	r := webRule("10.88.0.2:8080")
	r.External = []service.External{{Addr: netip.MustParseAddr("203.0.113.5")}}
	n.apply(desired(r), "10.88.0.2")
	n.ip("addr", "add", "10.96.0.10/32", "dev", "lo") // as a DNS server of the node has it
	n.serve("dns", 5353)
	for _, c := range []struct {
		from     *place
		to, want string
	}{
		{client, "10.96.0.7:80", "web 10.88.0.1"}, // their replies would pass the node by
		{client, "10.88.0.1:30080", "web 10.88.0.1"},
		{client, "203.0.113.5:80", "web 10.88.0.1"},
		{web, "10.96.0.7:80", "web 10.88.0.1"}, // hairpin
		{n.place, "10.96.0.7:80", "web 10.88.0.1"},
		{n.place, "127.0.0.1:30080", "web 10.88.0.1"},
		{n.place, "192.0.2.1:30080", "web 192.0.2.1"},
		{outside, "192.0.2.1:30080", "web 192.0.2.9"},
		{outside, "10.96.0.7:80", "web 192.0.2.9"},
		{outside, "203.0.113.5:80", "web 192.0.2.9"},
		{client, "10.96.0.10:5353", "dns 10.88.0.3"},
		{client, "10.96.0.7:81", refused},
		{n.place, "10.96.0.8:80", refused},
		{outside, "10.96.0.8:80", refused},
	} {
		own := c.from == n.place && c.to == "10.96.0.7:80"
		if got := c.from.connect(c.to); got != c.want && (!own || !strings.HasPrefix(got, "web ")) {
			t.Errorf("from %s to %s: %q, want %q", c.from.name, c.to, got, c.want)
		}
	}
}

// TestServe_Route_IsNoOverlapOfItself: other routes are overlaps, and Serve removes its route
// again.
func TestServe_Route_IsNoOverlapOfItself(t *testing.T) {
	n := newNode(t)
	cidr := netip.MustParsePrefix("10.96.0.0/16")
	own := func() (found bool) {
		n.do(func() error {
			routes, err := Routes()
			for _, r := range routes {
				found = found || r.Own && r.To == cidr
			}
			if r, overlaps := Overlap(routes, cidr); overlaps {
				t.Errorf("overlaps %+v", r)
			}
			if _, overlaps := Overlap(routes, netip.MustParsePrefix("10.88.0.0/15")); !overlaps {
				t.Errorf("the network of pods is not found in %+v", routes)
			}
			return err
		})
		return found
	}
	for _, on := range []bool{true, true, false, false} { // twice is no error
		n.do(func() error { return Serve(cidr, on) })
		if got := own(); got != on {
			t.Errorf("route: %t, want %t", got, on)
		}
	}
}

// TestFilter_BridgePassesThePacketFilter_PodsKeepTheirAddresses: with br_netfilter, nothing is
// masqueraded between pods.
func TestFilter_BridgePassesThePacketFilter_PodsKeepTheirAddresses(t *testing.T) {
	n := newNode(t)
	web, client := n.pod("web", "10.88.0.2"), n.pod("client", "10.88.0.3")
	n.sysctl("bridge/bridge-nf-call-iptables", "1")
	n.ip("link", "set", "vweb", "type", "bridge_slave", "hairpin", "on") // as the CNI plugin does
	web.serve("web", 8080)
	d := desired(webRule("10.88.0.2:8080"))
	d.Links = nil
	n.apply(d, "10.88.0.2")
	if got := client.connect("10.96.0.7:80"); got != "web 10.88.0.3" {
		t.Errorf("from another pod: %q", got)
	}
	if got := web.connect("10.96.0.7:80"); got != "web 10.88.0.1" {
		t.Errorf("from the endpoint: %q", got)
	}
}

// TestFilter_Endpoints_ShareConnectionsAndLeave: connections go to all endpoints; one that is removed
// gets none; without any, connections are refused; a change is a few messages.
func TestFilter_Endpoints_ShareConnectionsAndLeave(t *testing.T) {
	n := newNode(t)
	client := n.pod("client", "10.88.0.9")
	for i := range 3 {
		n.pod(fmt.Sprint("w", i), fmt.Sprintf("10.88.0.%d", i+2)).serve(fmt.Sprint("w", i), 8080)
	}
	all := []string{"10.88.0.2:8080", "10.88.0.3:8080", "10.88.0.4:8080"}
	n.apply(desired(webRule(all...)), "10.88.0.2")
	seen := func() (names []string) {
		for range 40 {
			name, _, _ := strings.Cut(client.connect("10.96.0.7:80"), " ")
			names = append(names, name)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	if got := seen(); !slices.Equal(got, []string{"w0", "w1", "w2"}) {
		t.Errorf("three endpoints: %v", got)
	}
	if m := n.apply(desired(webRule(all...)), "10.88.0.2"); m != 0 {
		t.Errorf("nothing has changed, and %d messages were sent", m)
	}
	if m := n.apply(desired(webRule(all[:2]...)), "10.88.0.2"); m == 0 || m > 5 {
		t.Errorf("one endpoint less: %d messages", m)
	}
	if got := seen(); !slices.Equal(got, []string{"w0", "w1"}) {
		t.Errorf("two endpoints: %v", got)
	}
	n.apply(desired(webRule()), "10.88.0.2")
	for _, to := range []string{"10.96.0.7:80", "10.88.0.1:30080"} {
		if got := client.connect(to); got != refused {
			t.Errorf("no endpoint, %s: %q", to, got)
		}
	}
	n.apply(desired(webRule(all[2:]...)), "10.88.0.2")
	if got := seen(); !slices.Equal(got, []string{"w2"}) {
		t.Errorf("another endpoint: %v", got)
	}
	n.do(n.filter.Remove)
	if got := client.connect("10.88.0.1:30080"); got != refused {
		t.Errorf("after Remove: %q", got)
	}
	n.do(n.filter.Remove) // nothing is left: no error
}

// TestFilter_PacketOutsideOfTheWindow_ConnectionGoesOn: conntrack does not translate such a packet of an
// endpoint. Without a rule, the client's machine gets it from the endpoint's own address, and resets the
// connection.
func TestFilter_PacketOutsideOfTheWindow_ConnectionGoesOn(t *testing.T) {
	n := newNode(t)
	web, outside := n.pod("web", "10.88.0.2"), n.outside()
	outside.ip("route", "add", "10.96.0.0/16", "via", "192.0.2.1")
	outside.ip("route", "add", "10.88.0.0/16", "via", "192.0.2.1")
	n.apply(desired(webRule("10.88.0.2:8080")), "10.88.0.2")
	for _, from := range []*place{n.place, outside} {
		served, opened := web.open(8080, from, "10.96.0.7:80")
		web.sendStray(served)
		for _, ends := range [][2]*net.TCPConn{{served, opened}, {opened, served}, {served, opened}} {
			got := make([]byte, 1)
			if _, err := ends[0].Write([]byte("x")); err != nil {
				t.Fatalf("from %s: %v", from.name, err)
			}
			if _, err := ends[1].Read(got); err != nil {
				t.Fatalf("from %s: %v", from.name, err)
			}
		}
		_ = served.SetLinger(0) // so that nothing keeps the port
		served.Close()
	}
}

// TestFilter_Affinity_ClientKeepsItsEndpoint: it keeps it even after another endpoint leaves.
func TestFilter_Affinity_ClientKeepsItsEndpoint(t *testing.T) {
	n := newNode(t)
	client := n.pod("client", "10.88.0.9")
	for i := range 3 {
		n.pod(fmt.Sprint("w", i), fmt.Sprintf("10.88.0.%d", i+2)).serve(fmt.Sprint("w", i), 8080)
	}
	sticky := func(backends ...string) Desired {
		r := webRule(backends...)
		r.Affinity = time.Hour
		return desired(r)
	}
	all := []string{"10.88.0.2:8080", "10.88.0.3:8080", "10.88.0.4:8080"}
	n.apply(sticky(all...), "10.88.0.2")
	first := client.connect("10.96.0.7:80")
	if !strings.HasPrefix(first, "w") {
		t.Fatalf("got %q", first)
	}
	stays := func() {
		t.Helper()
		for range 20 {
			if got := client.connect("10.96.0.7:80"); got != first {
				t.Fatalf("%q after %q", got, first)
			}
		}
	}
	stays()
	mine := slices.IndexFunc(all, func(b string) bool { return b == "10.88.0."+fmt.Sprint(first[1]-'0'+2)+":8080" })
	other := slices.Delete(slices.Clone(all), (mine+1)%3, (mine+1)%3+1)
	n.apply(sticky(other...), "10.88.0.2")
	stays()
	n.apply(sticky(slices.Delete(slices.Clone(all), mine, mine+1)...), "10.88.0.2")
	if got := client.connect("10.96.0.7:80"); got == first || !strings.HasPrefix(got, "w") {
		t.Errorf("its endpoint has left: %q", got)
	}
}

// TestFilter_UDP_EndpointLeaves_ClientGetsAnotherOne: a client that goes on sending by one socket does
// not stay with an endpoint that has left.
func TestFilter_UDP_EndpointLeaves_ClientGetsAnotherOne(t *testing.T) {
	n := newNode(t)
	client := n.pod("client", "10.88.0.9")
	for i := range 2 {
		n.pod(fmt.Sprint("w", i), fmt.Sprintf("10.88.0.%d", i+2)).serve(fmt.Sprint("w", i), 8080)
	}
	datagrams := func(backends ...string) Desired {
		r := webRule(backends...)
		r.Protocol = v1.ProtocolUDP
		return desired(r)
	}
	n.apply(datagrams("10.88.0.2:8080"), "10.88.0.2")
	ask, end := client.datagrams("10.96.0.7:80")
	defer end()
	for range 3 {
		if got := ask(); got != "w0 10.88.0.1" {
			t.Fatalf("first endpoint: %q", got)
		}
	}
	n.apply(datagrams("10.88.0.3:8080"), "10.88.0.2")
	if got := ask(); got != "w1 10.88.0.1" {
		t.Errorf("after it has left: %q", got)
	}
}

// TestFilter_IPv6_Service_IsReachedFromPods: pods reach it as with IPv4, with and without affinity.
func TestFilter_IPv6_Service_IsReachedFromPods(t *testing.T) {
	n := newNode(t)
	n.sysctl("ipv6/conf/all/forwarding", "1")
	n.sysctl("bridge/bridge-nf-call-ip6tables", "0")
	n.ip("addr", "add", "fd00:88::1/64", "dev", "br0", "nodad")
	pods := map[string]*place{}
	for i, name := range []string{"w0", "w1", "client"} {
		p := n.pod(name, fmt.Sprintf("10.88.0.%d", i+2))
		p.ip("addr", "add", fmt.Sprintf("fd00:88::%d/64", i+2), "dev", "eth0", "nodad")
		p.ip("route", "add", "default", "via", "fd00:88::1")
		pods[name] = p
	}
	pods["w0"].serve("w0", 8080)
	pods["w1"].serve("w1", 8080)
	for _, affinity := range []time.Duration{0, time.Hour} {
		r := webRule("[fd00:88::2]:8080", "[fd00:88::3]:8080")
		r.Cluster, r.Affinity = netip.MustParseAddr("fd00:96::7"), affinity
		r.External = []service.External{{Addr: netip.MustParseAddr("fd00:99::7"), Sources: []netip.Prefix{netip.MustParsePrefix("fd00:88::/64")}}}
		closed := service.Rule{Name: "default/closed/tcp/p80", Protocol: v1.ProtocolTCP, Port: 80, Cluster: netip.MustParseAddr("fd00:96::8"), NodePort: 30081}
		n.do(func() error {
			_, err := n.filter.Apply(Desired{
				Rules: [][]service.Rule{{r}, {closed}}, CIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:96::/112")}, Links: []netip.Prefix{netip.MustParsePrefix("fd00:88::/64")},
			})
			return err
		})
		for _, to := range []string{"[fd00:96::7]:80", "[fd00:88::1]:30080", "[fd00:99::7]:80"} {
			if got := pods["client"].connect(to); got != "w0 fd00:88::1" && got != "w1 fd00:88::1" {
				t.Errorf("affinity %s, %s: %q", affinity, to, got)
			}
		}
		if got := pods["w0"].connect("[fd00:96::7]:80"); got != "w0 fd00:88::1" && got != "w1 fd00:88::1" {
			t.Errorf("from an endpoint: %q", got)
		}
		if got := pods["client"].connect("[fd00:88::1]:30081"); got != refused {
			t.Errorf("without an endpoint: %q", got)
		}
	}
}

// newNode6 makes a node with IPv6, whose bridge has the address fd00:88::1.
func newNode6(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.sysctl("ipv6/conf/all/forwarding", "1")
	n.sysctl("bridge/bridge-nf-call-ip6tables", "0")
	n.ip("addr", "add", "fd00:88::1/64", "dev", "br0", "nodad")
	return n
}

// pod6 makes a pod with addresses of both families.
func (n *node) pod6(name string, number int) *place {
	n.t.Helper()
	p := n.pod(name, fmt.Sprintf("10.88.0.%d", number))
	p.ip("addr", "add", fmt.Sprintf("fd00:88::%d/64", number), "dev", "eth0", "nodad")
	p.ip("route", "add", "default", "via", "fd00:88::1")
	return p
}

// loopback6 prepares the devices of endpoints, and reports whether [::1] works.
func (n *node) loopback6(backends ...string) (works bool) {
	n.t.Helper()
	n.do(func() error {
		routes, err := Routes()
		if err != nil {
			return err
		}
		works, err = Loopback6(routes, addrs(n.t, backends...))
		return err
	})
	return works
}

// TestFilter_IPv6_LoopbackAddress_HasNodePorts: a client of the node reaches an endpoint by [::1], over TCP
// and UDP, and gets no answer of an endpoint once that is off.
func TestFilter_IPv6_LoopbackAddress_HasNodePorts(t *testing.T) {
	n := newNode6(t)
	n.pod6("web", 2).serve("web", 8080)
	apply := func(on bool) {
		t.Helper()
		tcp := webRule("[fd00:88::2]:8080")
		tcp.Cluster = netip.MustParseAddr("fd00:96::7")
		udp := tcp
		udp.Name, udp.Protocol, udp.NodePort = "default/web/udp/http", v1.ProtocolUDP, 30081
		n.do(func() error {
			_, err := n.filter.Apply(Desired{Rules: [][]service.Rule{{tcp, udp}}, Loopback6: on})
			return err
		})
	}
	apply(false)
	if got := n.connect("[::1]:30080"); got != refused {
		t.Errorf("before: %q", got)
	}
	for range 2 { // twice is no error
		if !n.loopback6("fd00:88::2", "10.88.0.2") {
			t.Fatal("[::1] does not work")
		}
	}
	apply(true)
	if got := n.connect("[::1]:30080"); got != "web fd00:88::1" {
		t.Errorf("TCP: %q", got)
	}
	ask, end := n.datagrams("[::1]:30081")
	defer end()
	if got := ask(); got != "web fd00:88::1" {
		t.Errorf("UDP: %q", got)
	}
	if got := n.connect("[fd00:88::1]:30080"); got != "web fd00:88::1" {
		t.Errorf("by another address: %q", got)
	}
	apply(false)
	if got := n.connect("[::1]:30080"); got != refused {
		t.Errorf("after: %q", got)
	}
	n.do(func() error {
		routes, err := Routes()
		if err != nil {
			return err
		}
		if err := RestoreLoopback6(routes); err != nil {
			return err
		}
		routes, err = Routes()
		if slices.Contains(routes, Route{To: loopback6(), Device: "br0"}) {
			t.Errorf("the route is left: %+v", routes)
		}
		return err
	})
}

// TestLoopback6_BridgePassesThePacketFilter_IsOff: the kernel would drop the replies.
func TestLoopback6_BridgePassesThePacketFilter_IsOff(t *testing.T) {
	n := newNode6(t)
	n.pod6("web", 2)
	n.sysctl("bridge/bridge-nf-call-ip6tables", "1")
	if n.loopback6("fd00:88::2") {
		t.Error("[::1] is said to work")
	}
	if !n.loopback6("10.88.0.2") {
		t.Error("an endpoint without IPv6 turns it off")
	}
}

// TestLoopback6_PodDoesNotReachLoopbackOfTheNode: the route by which replies reach [::1] lets no packet of a
// pod in.
//
// Shows: D1
func TestLoopback6_PodDoesNotReachLoopbackOfTheNode(t *testing.T) {
	n := newNode6(t)
	attacker := n.pod6("attacker", 6)
	n.serve("secret", 9090)
	n.loopback6("fd00:88::6")
	attacker.ip("addr", "del", "::1/128", "dev", "lo")
	attacker.ip("route", "add", "::1/128", "via", "fd00:88::1", "dev", "eth0", "src", "fd00:88::6")
	if got := n.connect("[::1]:9090"); got != "secret ::1" {
		t.Fatalf("the node itself: %q", got)
	}
	if got := attacker.connect("[fd00:88::1]:9090"); got != "secret fd00:88::6" {
		t.Fatalf("the pod, by another address: %q", got)
	}
	for _, passes := range []string{"0", "1"} {
		n.sysctl("bridge/bridge-nf-call-ip6tables", passes)
		if got := attacker.connect("[::1]:9090"); strings.HasPrefix(got, "secret") {
			t.Errorf("bridge-nf-call-ip6tables %s: the pod reached a loopback address of the node: %q", passes, got)
		}
	}
}

// TestFilter_SourceRanges_AdmitOneClient: the other one gets no answer.
func TestFilter_SourceRanges_AdmitOneClient(t *testing.T) {
	n := newNode(t)
	web, outside := n.pod("web", "10.88.0.2"), n.outside()
	web.serve("web", 8080)
	for sources, want := range map[string]string{"192.0.2.9/32": "web 192.0.2.9", "198.51.100.0/24": "resource temporarily unavailable|operation now in progress"} {
		r := webRule("10.88.0.2:8080")
		r.External = []service.External{{Addr: netip.MustParseAddr("192.0.2.1"), Sources: []netip.Prefix{netip.MustParsePrefix(sources)}}}
		n.apply(desired(r), "10.88.0.2")
		if got := outside.connect("192.0.2.1:80"); got == "" || !strings.Contains(want, got) {
			t.Errorf("%s: %q, want %q", sources, got, want)
		}
	}
}

// TestGuard_CVE_2020_8558_PodDoesNotReachLoopbackOfTheNode: with route_localnet, as host ports and
// node ports on 127.0.0.1 have it, a pod reaches a service on 127.0.0.1 of the node, unless the guard
// is there.
//
// Shows: D1
func TestGuard_CVE_2020_8558_PodDoesNotReachLoopbackOfTheNode(t *testing.T) {
	n := newNode(t)
	attacker := n.pod("attacker", "10.88.0.6")
	n.serve("secret", 8080)
	n.sysctl("ipv4/conf/br0/route_localnet", "1")
	attacker.sysctl("ipv4/conf/eth0/route_localnet", "1")
	attacker.sysctl("ipv4/conf/all/rp_filter", "0")
	attacker.ip("addr", "del", "127.0.0.1/8", "dev", "lo")
	attacker.ip("route", "add", "127.0.0.1/32", "via", "10.88.0.1", "src", "10.88.0.6")
	if got := attacker.connect("127.0.0.1:8080"); got != "secret 10.88.0.6" {
		t.Fatalf("the attack does not work without the guard, so the test shows nothing: %q", got)
	}
	n.do(n.filter.Guard)
	if got := attacker.connect("127.0.0.1:8080"); strings.HasPrefix(got, "secret") {
		t.Errorf("the pod reached a loopback address of the node: %q", got)
	}
	if got := n.connect("127.0.0.1:8080"); got != "secret 127.0.0.1" {
		t.Errorf("the node itself: %q", got)
	}
}

// TestFilter_Watch_NoticesChangesOfOthersAlone: a flush is noticed and restored; the filter's own
// changes are not noticed.
func TestFilter_Watch_NoticesChangesOfOthersAlone(t *testing.T) {
	n := newNode(t)
	web, client := n.pod("web", "10.88.0.2"), n.pod("client", "10.88.0.3")
	web.serve("web", 8080)
	n.apply(desired(webRule("10.88.0.2:8080")), "10.88.0.2")
	changed := make(chan struct{}, 100)
	ctx, stop := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan struct{})
	go n.run(func() error {
		ended <- n.filter.watch(ctx, func() { changed <- struct{}{} }, func() { t.Error("a kube-proxy is noticed") }, func() { close(ready) })
		return nil
	})
	<-ready
	for range 10 { // twenty transactions of its own
		n.apply(desired(webRule()), "10.88.0.2")
		n.apply(desired(webRule("10.88.0.2:8080")), "10.88.0.2")
	}
	other := New()
	defer other.Close()
	n.do(other.Remove) // as another program does
	<-changed
	if got := client.connect("10.96.0.7:80"); got == "web 10.88.0.1" {
		t.Fatalf("the rules are still there: %q", got)
	}
	n.filter.Forget()
	n.apply(desired(webRule("10.88.0.2:8080")), "10.88.0.2")
	if got := client.connect("10.96.0.7:80"); got != "web 10.88.0.1" {
		t.Errorf("after the restoration: %q", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if left := len(changed); left >= 4 { // of the other one's transaction, which has four messages
		t.Errorf("%d more notices: the filter's own changes were noticed", left)
	}
}

// TestFilter_Watch_NoticesAKubeProxyThatStartsLater: its table or its chain, in each mode that uses
// nftables. Other tables and chains are not noticed, and neither is a kube-proxy that adds rules.
func TestFilter_Watch_NoticesAKubeProxyThatStartsLater(t *testing.T) {
	n := newNode(t)
	n.apply(desired(webRule("10.88.0.2:8080")), "10.88.0.2")
	proxied := make(chan struct{}, 100)
	ctx, stop := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan struct{})
	go n.run(func() error {
		ended <- n.filter.watch(ctx, func() { t.Error("a change of rules is noticed") }, func() { proxied <- struct{}{} }, func() { close(ready) })
		return nil
	})
	<-ready
	other := New()
	defer other.Close()
	add := func(name string, chains ...string) {
		n.do(func() error {
			return other.transaction(func(m *message) {
				made := &table{message: m, name: name, family: familyOf(false)}
				made.create()
				for _, chain := range chains {
					made.chain(chain, nil)
				}
			})
		})
	}
	add("nat", "POSTROUTING", "KUBE-MARK-MASQ")
	add("filter", "KUBE-SERVICES")
	add("mine", "kube-proxy")
	add("nat", "KUBE-SERVICES")
	<-proxied
	add("kube-proxy")
	<-proxied
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if left := len(proxied); left > 0 {
		t.Errorf("%d more notices", left)
	}
}

// TestFilter_Proxy_NamesWhatAKubeProxyHas: its table, or its chains.
func TestFilter_Proxy_NamesWhatAKubeProxyHas(t *testing.T) {
	n := newNode(t)
	n.apply(desired(webRule("10.88.0.2:8080")), "10.88.0.2")
	proxy := func() (found string) {
		n.do(func() (err error) {
			found, err = n.filter.Proxy()
			return err
		})
		return found
	}
	if got := proxy(); got != "" {
		t.Errorf("of none: %q", got)
	}
	n.do(func() error {
		return n.filter.transaction(func(m *message) {
			(&table{message: m, name: "kube-proxy", family: familyOf(false)}).create()
		})
	})
	if got := proxy(); got != "table ip kube-proxy" {
		t.Errorf("its table: %q", got)
	}
	n.do(func() error {
		return n.filter.transaction(func(m *message) {
			t := &table{message: m, name: "nat", family: familyOf(false)}
			t.create()
			t.chain("KUBE-SERVICES", nil)
		})
	})
	if got := proxy(); got != "chain KUBE-SERVICES in table ip nat, table ip kube-proxy" {
		t.Errorf("got %q", got)
	}
}
