package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/service"
)

// manyRules returns the rules of Services with 5 endpoints each.
func manyRules(services int) (all [][]service.Rule) {
	for i := range services {
		r := service.Rule{
			Name: fmt.Sprintf("default/s%03d/tcp/p80", i), Protocol: v1.ProtocolTCP, Port: 80,
			Cluster: netip.AddrFrom4([4]byte{10, 96, byte(i), byte(1 + i>>8)}), NodePort: uint16(30000 + i),
		}
		for j := range 5 {
			r.Backends = append(r.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(88 + i>>8), byte(i), byte(j + 2)}), 8080))
		}
		all = append(all, []service.Rule{r})
	}
	return all
}

// with returns lists of rules, in which Service i has these backends.
func with(all [][]service.Rule, i int, backends []netip.AddrPort) [][]service.Rule {
	all = slices.Clone(all)
	all[i] = slices.Clone(all[i])
	all[i][0].Backends = backends
	return all
}

// whole returns all content of the table of IPv4.
func (t *tables) whole() content { return t.fixed[0].with(t.parts, 0) }

// TestNext_ReadinessChange_IsAFewMessagesAboutItsService: the table has 200 Services with 5 endpoints.
// The content of the others is not computed.
func TestNext_ReadinessChange_IsAFewMessagesAboutItsService(t *testing.T) {
	t.Parallel()
	rules := manyRules(200)
	before, first := newTables().next(Desired{Rules: rules})
	if first.fresh != 200 {
		t.Errorf("at first, the content of %d Services is computed", first.fresh)
	}
	after, c := before.next(Desired{Rules: with(rules, 100, rules[100][0].Backends[1:])})
	elements := 0
	for _, o := range c.ops[0] {
		elements += len(o.elements)
		if !strings.Contains(o.name, "/s100/") && o.name != setHairpin {
			t.Errorf("a change of another Service: %+v", o)
		}
	}
	if len(c.ops[0]) != 3 || elements != 1 || len(c.ops[1]) > 0 { // flush, rule, and the pair of the endpoint with itself
		t.Errorf("%d changes with %d elements: %+v; of IPv6: %+v", len(c.ops[0]), elements, c.ops[0], c.ops[1])
	}
	if c.fresh != 1 {
		t.Errorf("the content of %d Services is computed", c.fresh)
	}
	without := slices.Delete(slices.Clone(rules), 3, 4)
	if _, c := after.next(Desired{Rules: without}); c.fresh != 1 { // that of Service 100
		t.Errorf("a Service less: the content of %d Services is computed", c.fresh)
	}
}

// BenchmarkNext_ReadinessChange shows that the time hardly depends on the number of Services.
func BenchmarkNext_ReadinessChange(b *testing.B) {
	for _, n := range []int{20, 200, 1000} {
		b.Run(fmt.Sprint(n, " Services"), func(b *testing.B) {
			rules := manyRules(n)
			all := rules[0][0].Backends
			have, c := newTables().next(Desired{Rules: rules})
			for i := range b.N {
				rules = with(rules, 0, all[i%2:])
				have, c = have.next(Desired{Rules: rules})
			}
			if c.fresh != 1 {
				b.Errorf("the content of %d Services is computed", c.fresh)
			}
		})
	}
}

// TestNext_SharedEndpoint_StaysUntilNoServiceUsesIt: two Services select the same pod.
func TestNext_SharedEndpoint_StaysUntilNoServiceUsesIt(t *testing.T) {
	t.Parallel()
	rules := manyRules(2)
	shared := rules[0][0].Backends[:1]
	for i := range rules {
		rules[i][0].Protocol, rules[i][0].Backends = v1.ProtocolUDP, shared
	}
	have, _ := newTables().next(Desired{Rules: rules})
	for i, left := range []int{0, 1} { // of the endpoints, after each Service has lost it
		rules = with(rules, i, nil)
		next, c := have.next(Desired{Rules: rules})
		gone := 0
		for _, o := range c.ops[0] {
			if o.kind == deleteElements && o.name == setHairpin {
				gone += len(o.elements)
			}
		}
		if gone != left || len(c.departed) != left {
			t.Errorf("%d Services use it no more: %d elements go, %v departs", i+1, gone, c.departed)
		}
		have = next
	}
}

// TestNext_Story_KernelTakesEveryStep: random contents follow each other, and the kernel accepts each
// change: referenced objects exist, and removed objects are not referenced. In the end it has the
// content that a new table would get.
func TestNext_Story_KernelTakesEveryStep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kernel := bare()
		kernel.affinity, kernel.sets = map[string]clientSet{}, map[string]map[string]string{}
		known, last := newTables(), map[int][]service.Rule{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			d := drawDesired(t, last)
			next, c := known.next(d)
			for _, o := range c.ops[0] {
				take(t, &kernel, o)
			}
			if len(c.ops[1]) > 1 { // the rule of the loopback address of IPv6
				t.Fatalf("changes of IPv6: %+v", c.ops[1])
			}
			var parts []*part
			for _, rules := range d.Rules {
				parts = append(parts, newPart(rules, next.clients))
			}
			if left := differences(kernel, fixedOf(d, false).with(parts, 0)); len(left) > 0 {
				t.Fatalf("not what was wanted: %+v", left)
			}
			known = next
		}
	})
}

// drawDesired draws the rules of three Services: those of last, or other ones.
func drawDesired(t *rapid.T, last map[int][]service.Rule) Desired {
	var d Desired
	special := rapid.IntRange(0, 3).Draw(t, "Service with node port 30010")
	for i := range 3 {
		if !rapid.Bool().Draw(t, "there") {
			continue
		}
		kept := last[i]
		if len(kept) > 0 && (kept[0].NodePort != 30010 || i == special) && rapid.Bool().Draw(t, "unchanged") {
			d.Rules = append(d.Rules, kept)
			continue
		}
		ports := []int{0, 30000 + i}
		if i == special {
			ports = append(ports, 30010)
		}
		r := service.Rule{
			Name: fmt.Sprintf("default/s%d/tcp/p80", i), Protocol: v1.ProtocolTCP, Port: 80, Cluster: netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}),
			NodePort: uint16(rapid.SampledFrom(ports).Draw(t, "node port")),
			Affinity: rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "affinity"),
		}
		for j := range rapid.IntRange(0, 3).Draw(t, "backends") {
			r.Backends = append(r.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 88, 0, byte(j + 2)}), 8080))
		}
		if rapid.Bool().Draw(t, "external") {
			e := service.External{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
			if rapid.Bool().Draw(t, "ranged") {
				e.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			}
			r.External = []service.External{e}
		}
		last[i] = []service.Rule{r}
		d.Rules = append(d.Rules, last[i])
	}
	return d
}

// take applies one change to a content, as the kernel would.
func take(t *rapid.T, c *content, o op) {
	refers := func(chain string) bool {
		for _, rules := range c.chains {
			for _, r := range rules {
				if slices.Contains(r.chains, chain) {
					return true
				}
			}
		}
		for _, set := range c.sets {
			if slices.Contains(slices.Collect(maps.Values(set)), chain) {
				return true
			}
		}
		return false
	}
	_, chain := c.chains[o.name]
	_, affinity := c.affinity[o.name]
	switch o.kind {
	case addAffinity:
		c.affinity[o.name] = o.clients
	case addChain:
		c.chains[o.name] = nil
	case flushChain:
		c.chains[o.name] = nil
	case addRule:
		for _, to := range o.rule.chains {
			if _, there := c.chains[to]; !there {
				t.Fatalf("rule of %s to %s, which does not exist", o.name, to)
			}
		}
		if _, there := c.affinity[o.rule.set]; o.rule.set != "" && !there {
			t.Fatalf("rule of %s with %s, which does not exist", o.name, o.rule.set)
		}
		c.chains[o.name] = append(c.chains[o.name], o.rule)
	case deleteElements:
		for key := range o.elements {
			if _, there := c.sets[o.name][key]; !there {
				t.Fatalf("%s has no such element", o.name)
			}
			delete(c.sets[o.name], key)
		}
	case addElements:
		for key, to := range o.elements {
			if _, there := c.sets[o.name][key]; there {
				t.Fatalf("%s has the element", o.name)
			}
			if _, there := c.chains[to]; to != "" && !there {
				t.Fatalf("element of %s to %s, which does not exist", o.name, to)
			}
			c.put(o.name, key, to)
		}
	case deleteChain:
		delete(c.chains, o.name)
		if refers(o.name) {
			t.Fatalf("%s is removed, and something refers to it", o.name)
		}
	case deleteAffinity:
		for name, rules := range c.chains {
			if slices.ContainsFunc(rules, func(r rule) bool { return r.set == o.name }) {
				t.Fatalf("%s is removed, and %s refers to it", o.name, name)
			}
		}
		delete(c.affinity, o.name)
	}
	if (o.kind == flushChain || o.kind == addRule || o.kind == deleteChain) && !chain || o.kind == deleteAffinity && !affinity {
		t.Fatalf("%s does not exist", o.name)
	}
}

// TestChainName_LongNames_StayUniqueAndWithinTheKernelsLimit: the kernel takes 255 bytes.
func TestChainName_LongNames_StayUniqueAndWithinTheKernelsLimit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63) + "/" + strings.Repeat("b", 63) + "/tcp/" + strings.Repeat("c", 63) + "/[fd00:0000:0000:0000:0000:0000:0000:0002]:65535"
	a, b := chainName("endpoint", long+"1"), chainName("endpoint", long+"2")
	if a == b || len(a)+len("-4294967295") > 255 || strings.ContainsAny(a, "[]: ") {
		t.Errorf("%q %q", a, b)
	}
}

// TestDeparted_PendingEndpoints_StayUntilTheyAreEndpointsAgain: endpoints that leave are added.
func TestDeparted_PendingEndpoints_StayUntilTheyAreEndpointsAgain(t *testing.T) {
	t.Parallel()
	at := netip.MustParseAddrPort
	a, b, c, d := at("10.88.0.2:53"), at("10.88.0.3:53"), at("10.88.0.4:53"), at("10.88.0.5:53")
	pending := map[netip.AddrPort]bool{a: true, b: true}
	if got := departed(pending, []netip.AddrPort{c, d}, uses[netip.AddrPort]{b: 1, d: 2}); !maps.Equal(got, map[netip.AddrPort]bool{a: true, c: true}) {
		t.Errorf("%v", got)
	}
	if got := departed(nil, nil, uses[netip.AddrPort]{b: 1}); len(got) > 0 {
		t.Errorf("a new table: %v", got)
	}
}

// TestContentOf_ManyEndpointsWithAffinity_ClientsAreBounded: a pod that forges addresses fills the sets of
// clients. They do not take the memory of the node, and a change of readiness does not replace them.
//
// Shows: D1
func TestContentOf_ManyEndpointsWithAffinity_ClientsAreBounded(t *testing.T) {
	t.Parallel()
	desired := func(services, endpoints int) (d Desired) {
		for i := range services {
			r := service.Rule{Name: fmt.Sprintf("default/s%d/tcp/", i), Protocol: v1.ProtocolTCP, Port: 80, Cluster: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Affinity: 3 * time.Hour}
			for j := range endpoints {
				r.Backends = append(r.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 88, byte(j >> 8), byte(j)}), 8080))
			}
			d.Rules = append(d.Rules, []service.Rule{r})
		}
		return d
	}
	newContent := func(d Desired) content {
		n, _ := newTables().next(d)
		return n.whole()
	}
	for _, n := range [][2]int{{1, 1}, {1, 5}, {20, 5}, {200, 5}, {40, 100}} {
		sum, least := 0, mostClients
		for _, c := range newContent(desired(n[0], n[1])).affinity {
			sum += c.size
			least = min(least, c.size)
		}
		if sum > allClients || least < fewestClients {
			t.Errorf("%d Services with %d endpoints: %d clients in all, %d of one", n[0], n[1], sum, least)
		}
	}
	for name, c := range newContent(desired(1, 1)).affinity {
		if c.size != mostClients {
			t.Errorf("%s has %d clients", name, c.size)
		}
	}
	d := desired(200, 5)
	before, _ := newTables().next(d)
	d.Rules = with(d.Rules, 7, d.Rules[7][0].Backends[:4])
	if _, c := before.next(d); len(c.ops[0]) > 20 || c.fresh != 1 {
		t.Errorf("one endpoint less: %d changes, the content of %d Services is computed", len(c.ops[0]), c.fresh)
	}
}

// TestClientsOf_ServicesComeOneByOne_EachChangesFewSets: the sets of other Services keep their clients,
// except for those that have to shrink so that all fit. No order of changes exceeds the limit of all
// clients, however the number of endpoints grows and falls.
//
// Shows: D1
func TestClientsOf_ServicesComeOneByOne_EachChangesFewSets(t *testing.T) {
	t.Parallel()
	var d Desired
	known, have, renamed := newTables(), bare(), 0
	for i := range 100 {
		r := service.Rule{Name: fmt.Sprintf("default/s%d/tcp/", i), Protocol: v1.ProtocolTCP, Port: 80, Cluster: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Affinity: time.Hour}
		for j := range 4 {
			r.Backends = append(r.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 88, byte(i), byte(j)}), 8080))
		}
		d.Rules = append(d.Rules, []service.Rule{r})
		known, _ = known.next(d)
		next, kept := known.whole(), 0
		for name := range have.affinity {
			if _, there := next.affinity[name]; there {
				kept++
			}
		}
		renamed += len(have.affinity) - kept
		sum := 0
		for _, c := range next.affinity {
			sum += c.size
		}
		if len(next.affinity) != 4*(i+1) || sum > allClients {
			t.Fatalf("%d Services: %d sets for %d clients", i+1, len(next.affinity), sum)
		}
		if lost := len(have.affinity) - kept; lost > 32 {
			t.Errorf("Service %d renames %d sets of %d", i, lost, len(have.affinity))
		}
		have = next
	}
	if renamed > 2*len(have.affinity) {
		t.Errorf("%d sets were renamed in all, of %d", renamed, len(have.affinity))
	}
	smaller, _ := known.next(Desired{Rules: d.Rules[:50]})
	for name := range smaller.whole().affinity {
		if _, there := have.affinity[name]; !there {
			t.Errorf("%s is new after Services have left", name)
		}
	}
}
