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

// manyRules returns the rules of 200 Services with 5 endpoints each.
func manyRules() []service.Rule {
	var all []service.Rule
	for i := range 200 {
		r := service.Rule{
			Name: fmt.Sprintf("default/s%03d/tcp/p80", i), Protocol: v1.ProtocolTCP, Port: 80,
			Cluster: netip.AddrFrom4([4]byte{10, 96, byte(i), 1}), NodePort: uint16(30000 + i),
		}
		for j := range 5 {
			r.Backends = append(r.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 88, byte(i), byte(j + 2)}), 8080))
		}
		all = append(all, r)
	}
	return all
}

// TestDifferences_ReadinessChange_IsAFewMessagesAboutItsService: the table has 200 Services with 5
// endpoints.
func TestDifferences_ReadinessChange_IsAFewMessagesAboutItsService(t *testing.T) {
	t.Parallel()
	before := newContent(Desired{Rules: manyRules()})
	rules := manyRules()
	rules[100].Backends = rules[100].Backends[1:]
	ops := differences(before, newContent(Desired{Rules: rules}, &before))
	elements := 0
	for _, o := range ops {
		elements += len(o.elements)
		if !strings.Contains(o.name, "/s100/") && o.name != setHairpin {
			t.Errorf("a change of another Service: %+v", o)
		}
	}
	if len(ops) != 3 || elements != 1 { // flush, rule, and the pair of the endpoint with itself
		t.Errorf("%d changes with %d elements: %+v", len(ops), elements, ops)
	}
}

// TestDifferences_Story_KernelTakesEveryStep: random contents follow each other, and the kernel
// accepts each change: referenced objects exist, and removed objects are not referenced.
func TestDifferences_Story_KernelTakesEveryStep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		have := empty()
		var known *content
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			want := newContent(drawDesired(t), known)
			for _, o := range differences(have, want) {
				take(t, &have, o)
			}
			known = &want
			if again := differences(have, want); len(again) > 0 {
				t.Fatalf("not what was wanted: %+v", again)
			}
		}
	})
}

func drawDesired(t *rapid.T) Desired {
	var d Desired
	for i := range 3 {
		if !rapid.Bool().Draw(t, "there") {
			continue
		}
		r := service.Rule{
			Name: fmt.Sprintf("default/s%d/tcp/p80", i), Protocol: v1.ProtocolTCP, Port: 80, Cluster: netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}),
			NodePort: uint16(rapid.SampledFrom([]int{0, 30000 + i, 30010}).Draw(t, "node port")),
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
		d.Rules = append(d.Rules, r)
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
			c.sets[o.name][key] = to
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
	set := func(of ...netip.AddrPort) map[netip.AddrPort]bool {
		all := map[netip.AddrPort]bool{}
		for _, one := range of {
			all[one] = true
		}
		return all
	}
	old, now, none := &content{datagrams: set(c, d)}, &content{datagrams: set(b, d)}, &content{}
	if got := departed(set(a, b), [2]*content{old, nil}, [2]*content{now, none}); !maps.Equal(got, set(a, c)) {
		t.Errorf("%v", got)
	}
	if got := departed(nil, [2]*content{}, [2]*content{now, none}); len(got) > 0 {
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
			d.Rules = append(d.Rules, r)
		}
		return d
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
	before, d := newContent(desired(200, 5)), desired(200, 5)
	d.Rules[7].Backends = d.Rules[7].Backends[:4]
	if n := len(differences(before, newContent(d, &before))); n > 20 {
		t.Errorf("one endpoint less: %d changes", n)
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
	have, renamed := newContent(d), 0
	for i := range 100 {
		r := service.Rule{Name: fmt.Sprintf("default/s%d/tcp/", i), Protocol: v1.ProtocolTCP, Port: 80, Cluster: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Affinity: time.Hour}
		for j := range 4 {
			r.Backends = append(r.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 88, byte(i), byte(j)}), 8080))
		}
		d.Rules = append(d.Rules, r)
		next, kept := newContent(d, &have), 0
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
	smaller := Desired{Rules: d.Rules[:50]}
	for name := range newContent(smaller, &have).affinity {
		if _, there := have.affinity[name]; !there {
			t.Errorf("%s is new after Services have left", name)
		}
	}
}

// newContent returns the content of the table of IPv4 that follows another one.
func newContent(d Desired, before ...*content) content {
	return contentOf(d, false, clientsOf(d.Rules, [2]*content{slices.Concat(before, []*content{nil})[0]}))
}
