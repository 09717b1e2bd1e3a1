package nft

import (
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/service"
)

// tables is the content of the tables of both families: a fixed part, and a part for each Service. No
// two Services have the same address and port, but they may have the same endpoints.
type tables struct {
	fixed   [2]content
	parts   []*part        // in the order of Desired
	clients map[string]int // the sizes of clientsOf
	// hairpin and datagrams have the endpoints that Services use: their elements of setHairpin, by
	// family, and the endpoints of UDP ports.
	hairpin   [2]uses[string]
	datagrams uses[netip.AddrPort]
}

// part is the content for the rules of one Service.
type part struct {
	rules     []service.Rule
	of        [2]content // by family
	datagrams []netip.AddrPort
	clients   map[string]int // the sizes of the sets of clients, by the key of the endpoint; nil without affinity
}

func newPart(rules []service.Rule, clients map[string]int) *part {
	p := &part{rules: rules}
	if len(stickyOf([][]service.Rule{rules})) > 0 {
		p.clients = make(map[string]int)
		for _, key := range stickyKeys(rules) {
			p.clients[key] = clients[key]
		}
	}
	for i := range rules {
		r := &rules[i]
		p.of[familyIndex(r.Cluster.Is6())].add(r, clients)
		if r.Protocol == v1.ProtocolUDP {
			p.datagrams = append(p.datagrams, r.Backends...)
		}
	}
	return p
}

func familyIndex(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// Same reports whether two lists of rules are the same one in memory.
func Same(a, b []service.Rule) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// newTables returns the tables as they are after their creation.
func newTables() *tables {
	return &tables{fixed: [2]content{bare(), bare()}, hairpin: [2]uses[string]{{}, {}}, datagrams: uses[netip.AddrPort]{}}
}

// change is the difference between two versions of the tables.
type change struct {
	ops   [2][]op
	fresh int // the number of Services whose content was computed
	// departed are the endpoints of UDP ports that have left.
	departed []netip.AddrPort
}

// next returns the tables that follow, and how they differ. It computes the content of Services with
// other rules, and takes the rest over from t, which is not valid any more.
func (t *tables) next(d Desired) (*tables, change) {
	n := &tables{fixed: [2]content{fixedOf(d, false), fixedOf(d, true)}, clients: t.clients, hairpin: t.hairpin, datagrams: t.datagrams}
	if !slices.EqualFunc(t.sticky(), stickyOf(d.Rules), Same) {
		n.clients = clientsOf(d.Rules, t.clients)
	}
	gone, fresh := n.fill(t.parts, d.Rules)
	c := change{fresh: len(fresh)}
	for i := range c.ops {
		before, after := t.fixed[i].with(gone, i), n.fixed[i].with(fresh, i)
		was, is := n.hairpin[i].move(keysOf(gone, i), keysOf(fresh, i))
		before.sets[setHairpin], after.sets[setHairpin] = elementsOf(was), elementsOf(is)
		c.ops[i] = differences(before, after)
	}
	was, is := n.datagrams.move(datagramsOf(gone), datagramsOf(fresh))
	for at := range was {
		if !is[at] {
			c.departed = append(c.departed, at)
		}
	}
	return n, c
}

// fill sets the parts for the rules of all Services. It returns the parts of before that go, and those
// that are new.
func (t *tables) fill(before []*part, all [][]service.Rule) (gone, fresh []*part) {
	stays := func(p *part, rules []service.Rule) bool { return Same(p.rules, rules) && p.fits(t.clients) }
	rest := make(map[*service.Rule]*part) // of before, without those that stay in their place
	for i, p := range before {
		if len(p.rules) > 0 && (i >= len(all) || !stays(p, all[i])) {
			rest[&p.rules[0]] = p
		}
	}
	t.parts = make([]*part, len(all))
	for i, rules := range all {
		if i < len(before) && stays(before[i], rules) {
			t.parts[i] = before[i]
			continue
		}
		if len(rules) > 0 {
			if p := rest[&rules[0]]; p != nil && stays(p, rules) {
				delete(rest, &rules[0])
				t.parts[i] = p
				continue
			}
		}
		t.parts[i] = newPart(rules, t.clients)
		fresh = append(fresh, t.parts[i])
	}
	return slices.Collect(maps.Values(rest)), fresh
}

// fits reports whether the sets of clients still have their sizes.
func (p *part) fits(clients map[string]int) bool {
	for key, size := range p.clients {
		if clients[key] != size {
			return false
		}
	}
	return true
}

// sticky returns the rules of the Services with session affinity.
func (t *tables) sticky() (out [][]service.Rule) {
	for _, p := range t.parts {
		if p.clients != nil {
			out = append(out, p.rules)
		}
	}
	return out
}

// stickyOf returns the lists of rules with session affinity.
func stickyOf(all [][]service.Rule) (out [][]service.Rule) {
	for _, rules := range all {
		if len(rules) > 0 && rules[0].Affinity > 0 { // all ports of a Service have it, or none
			out = append(out, rules)
		}
	}
	return out
}

// keysOf returns the elements of setHairpin in these parts, of one family.
func keysOf(parts []*part, family int) (out []string) {
	for _, p := range parts {
		out = slices.AppendSeq(out, maps.Keys(p.of[family].sets[setHairpin]))
	}
	return out
}

func datagramsOf(parts []*part) (out []netip.AddrPort) {
	for _, p := range parts {
		out = append(out, p.datagrams...)
	}
	return out
}

// elementsOf returns keys as the elements of a set.
func elementsOf(keys map[string]bool) map[string]string {
	out := make(map[string]string, len(keys))
	for key := range keys {
		out[key] = ""
	}
	return out
}

// with returns a content together with that of parts, of one family.
func (c content) with(parts []*part, family int) content {
	out := content{chains: maps.Clone(c.chains), affinity: map[string]clientSet{}, sets: map[string]map[string]string{}}
	for _, p := range parts {
		of := &p.of[family]
		maps.Copy(out.chains, of.chains)
		maps.Copy(out.affinity, of.affinity)
		for set, elements := range of.sets {
			for key, chain := range elements {
				out.put(set, key, chain)
			}
		}
	}
	return out
}

// departed returns the endpoints of UDP ports that have left: those that are pending, and others, except
// those that a Service uses now.
func departed(pending map[netip.AddrPort]bool, others []netip.AddrPort, now uses[netip.AddrPort]) map[netip.AddrPort]bool {
	gone := make(map[netip.AddrPort]bool, len(pending)+len(others))
	maps.Copy(gone, pending)
	for _, at := range others {
		gone[at] = true
	}
	maps.DeleteFunc(gone, func(at netip.AddrPort, _ bool) bool { return now[at] > 0 })
	return gone
}

// uses counts the users of keys.
type uses[K comparable] map[K]int

// move takes keys from users and gives keys to others. Of all these keys, it returns those that were in
// use, and those that are now.
func (u uses[K]) move(gone, came []K) (was, is map[K]bool) {
	was, is = make(map[K]bool), make(map[K]bool)
	for _, key := range slices.Concat(gone, came) {
		if u[key] > 0 {
			was[key] = true
		}
	}
	for _, key := range came {
		u[key]++
	}
	for _, key := range gone {
		if u[key]--; u[key] == 0 {
			delete(u, key)
		}
	}
	for _, key := range slices.Concat(gone, came) {
		if u[key] > 0 {
			is[key] = true
		}
	}
	return was, is
}
