// Package nft writes the rules of Services into tables of the kernel's packet filter, nftables.
//
// The table nodectl-services, one for each family, has the rules of Services. Maps find the chain
// of a Service by address, protocol and port. So the number of Services does not slow packets down,
// and a change of a Service needs messages about that Service only. Another table, nodectl-guard,
// protects the loopback addresses of the node.
//
// Each change is one transaction: the kernel applies all of it, or nothing.
package nft

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/service"
)

// Desired is the desired content of the tables.
type Desired struct {
	// Rules are the rules of each Service. A list of rules never changes: one that Apply got before is
	// known by its address in memory, and its rules are not read again.
	Rules [][]service.Rule
	// CIDRs are the ranges of cluster IPs. The node refuses connections to an address of a range
	// that has no rule and is not an address of the node.
	CIDRs []netip.Prefix
	// Links are networks, such as those of a bridge, in which packets between two hosts bypass the
	// packet filter. There, a client would get the reply of an endpoint from the endpoint's own
	// address, and drop it. So the node replaces the client's address by its own (masquerading).
	Links []netip.Prefix
	// Loopback6 means that replies of endpoints reach the loopback address of IPv6, so that it has
	// node ports. Without it, connections to that address stay on the node.
	Loopback6 bool
}

// The tables.
const (
	TableServices = "nodectl-services"
	TableGuard    = "nodectl-guard"
)

// ErrDatagrams means that the rules are in force, but that the kernel may still send UDP datagrams of
// old clients to endpoints that have left.
var ErrDatagrams = errors.New("end UDP connections to endpoints that have left")

// The sets and maps of a table of Services.
const (
	setServices    = "services"      // address, protocol, port → chain
	setNodePorts   = "node-ports"    // protocol, port → chain
	setHairpin     = "hairpin"       // pairs of an endpoint's address with itself
	setClosed      = "closed"        // addresses, protocols and ports without an endpoint
	setClosedPorts = "closed-ports"  // node ports without an endpoint
	chainRange     = "closed-range"  // refuses the other cluster IPs
	chainLinks     = "masquerade-in" // masquerades inside of Links
	chainLoopback  = "loopback"      // ends before node ports for a loopback address that has none
)

// content is content of one table: of a Service, or of all. A nil map is empty.
type content struct {
	chains   map[string][]rule
	affinity map[string]clientSet         // sets of clients
	sets     map[string]map[string]string // by set: the keys, as the kernel has them, and their chains
}

// clientSet is the set of the clients of one endpoint.
type clientSet struct {
	timeout time.Duration // how long each client stays
	size    int           // how many it has at most
}

// Limits of the sets of clients. Packets add clients, and their sources may be forged, so the memory of
// all sets is limited. A client for which a set has no room gets a random endpoint.
const (
	mostClients   = 1 << 16 // of one endpoint
	fewestClients = 1 << 8
	allClients    = 1 << 20
)

// clientsOf returns the sizes of the sets of clients, by the key of the endpoint. A set keeps the size
// that it had before, because a set of another size would have to forget its clients. A new set
// gets an equal share of allClients. If that is too much for all together, the largest sets shrink
// to this share, and no more of them than needed.
func clientsOf(all [][]service.Rule, before map[string]int) map[string]int {
	var keys []string
	for _, rules := range all {
		keys = append(keys, stickyKeys(rules)...)
	}
	share := mostClients
	for share > fewestClients && share*len(keys) > allClients {
		share /= 2
	}
	sizes, sum := make(map[string]int, len(keys)), 0
	for _, key := range keys {
		sizes[key] = cmp.Or(before[key], share)
		sum += sizes[key]
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(sizes[b]-sizes[a], strings.Compare(a, b)) })
	for _, key := range keys {
		if sum <= allClients || sizes[key] <= share {
			break
		}
		sum -= sizes[key] - share
		sizes[key] = share
	}
	return sizes
}

// stickyKeys returns the keys of the endpoints whose clients come back to them.
func stickyKeys(rules []service.Rule) (keys []string) {
	for i := range rules {
		for _, b := range rules[i].Backends {
			if rules[i].Affinity > 0 {
				keys = append(keys, endpointKey(&rules[i], b))
			}
		}
	}
	return keys
}

// endpointKey returns the key of an endpoint of one port of a Service.
func endpointKey(r *service.Rule, at netip.AddrPort) string { return r.Name + "/" + at.String() }

// action is the action of a rule.
type action int

const (
	toBackend    action = iota // connect to backends[0], or to one of backends at random
	toChain                    // continue in one of chains at random
	toRemembered               // continue in chains[0] if set contains the client
	remember                   // add the client to set
	admit                      // continue in chains[0] if the client is in a network
	drop
	refuse     // refuse connections to a network
	masquerade // put the node's address in place of the client's, inside of a network
	stay       // do not translate connections to a network
)

// rule is one rule of a chain.
type rule struct {
	do       action
	backends []netip.AddrPort
	chains   []string
	set      string
	network  netip.Prefix
}

func (r rule) equal(o rule) bool {
	return r.do == o.do && r.set == o.set && r.network == o.network && slices.Equal(r.backends, o.backends) && slices.Equal(r.chains, o.chains)
}

// bare returns the content of a new table.
func bare() content {
	return content{chains: map[string][]rule{chainRange: nil, chainLinks: nil, chainLoopback: nil}}
}

// fixedOf returns the content of the table of one family that belongs to no Service.
func fixedOf(d Desired, v6 bool) content {
	c := bare()
	for _, p := range d.CIDRs {
		if p.Addr().Is6() == v6 {
			c.chains[chainRange] = append(c.chains[chainRange], rule{do: refuse, network: p})
		}
	}
	for _, p := range d.Links {
		if p.Addr().Is6() == v6 {
			c.chains[chainLinks] = append(c.chains[chainLinks], rule{do: masquerade, network: p})
		}
	}
	if v6 && !d.Loopback6 {
		c.chains[chainLoopback] = []rule{{do: stay, network: loopback6()}}
	}
	return c
}

// put adds an element to a set.
func (c *content) put(set, key, chain string) {
	if c.sets == nil {
		c.sets = make(map[string]map[string]string)
	}
	if c.sets[set] == nil {
		c.sets[set] = make(map[string]string)
	}
	c.sets[set][key] = chain
}

// add adds one port of one Service. clients are the sizes of clientsOf.
func (c *content) add(r *service.Rule, clients map[string]int) {
	proto := protocolNumber(r.Protocol)
	if len(r.Backends) == 0 {
		for _, e := range r.External {
			c.put(setClosed, frontendKey(e.Addr, proto, r.Port), "")
		}
		if r.NodePort != 0 {
			c.put(setClosedPorts, portKey(proto, r.NodePort), "")
		}
		return // the rules of the range refuse connections to its cluster IP
	}
	if c.chains == nil {
		c.chains = make(map[string][]rule)
	}
	chain := chainName("service", r.Name)
	c.put(setServices, frontendKey(r.Cluster, proto, r.Port), chain)
	for _, e := range r.External {
		c.put(setServices, frontendKey(e.Addr, proto, r.Port), c.external(r, e, chain))
	}
	if r.NodePort != 0 {
		c.put(setNodePorts, portKey(proto, r.NodePort), chain)
	}
	for _, b := range r.Backends {
		c.put(setHairpin, pairKey(b.Addr()), "")
	}
	if r.Affinity == 0 {
		c.chains[chain] = []rule{{do: toBackend, backends: r.Backends}}
		return
	}
	c.sticky(r, chain, clients)
}

// external returns the chain of an external address. It is the chain of the Service, or a chain
// before it that admits only some clients.
func (c *content) external(r *service.Rule, e service.External, to string) string {
	if e.Sources == nil {
		return to
	}
	var rules []rule
	for _, p := range e.Sources {
		if p.Addr().Is6() == e.Addr.Is6() {
			rules = append(rules, rule{do: admit, network: p, chains: []string{to}})
		}
	}
	chain := chainName("external", r.Name)
	c.chains[chain] = append(rules, rule{do: drop})
	return chain
}

// sticky adds the chains of a Service whose clients keep their endpoints. The name of a set contains its
// timeout and size, because the kernel cannot change these of an existing set.
func (c *content) sticky(r *service.Rule, chain string, clients map[string]int) {
	var rules []rule
	var all []string
	if c.affinity == nil {
		c.affinity = make(map[string]clientSet)
	}
	for _, b := range r.Backends {
		key := endpointKey(r, b)
		to, size := chainName("endpoint", key), clients[key]
		set := fmt.Sprintf("%s-%d-%d", chainName("clients", key), int(r.Affinity.Seconds()), size)
		c.affinity[set] = clientSet{r.Affinity, size}
		c.chains[to] = []rule{{do: remember, set: set}, {do: toBackend, backends: []netip.AddrPort{b}}}
		rules = append(rules, rule{do: toRemembered, set: set, chains: []string{to}})
		all = append(all, to)
	}
	c.chains[chain] = append(rules, rule{do: toChain, chains: all})
}

// loopback and loopback6 are the loopback addresses of the families.
func loopback() netip.Prefix  { return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8) }
func loopback6() netip.Prefix { return netip.PrefixFrom(netip.IPv6Loopback(), 128) }

// longestName is below the kernel's limit for the names of chains and sets, with room for a suffix.
const longestName = 200

// chainName returns a name that ends with a hash, so that it stays unique after truncation.
func chainName(kind, of string) string {
	sum := sha256.Sum256([]byte(of))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '/' || r == '.' {
			return r
		}
		return '_'
	}, of)
	return kind + "-" + base32.StdEncoding.EncodeToString(sum[:5]) + "/" + readable[:min(len(readable), longestName)]
}

func protocolNumber(p v1.Protocol) byte {
	switch p {
	case v1.ProtocolUDP:
		return 17
	case v1.ProtocolSCTP:
		return 132
	}
	return 6
}

// The keys of elements. The kernel pads each part to 4 bytes.

func frontendKey(addr netip.Addr, proto byte, port uint16) string {
	return string(addr.AsSlice()) + portKey(proto, port)
}

func portKey(proto byte, port uint16) string {
	var b [8]byte
	b[0] = proto
	binary.BigEndian.PutUint16(b[4:], port)
	return string(b[:])
}

func pairKey(addr netip.Addr) string { return string(addr.AsSlice()) + string(addr.AsSlice()) }

// opKind is the kind of an op.
type opKind int

const (
	addAffinity opKind = iota
	addChain
	flushChain
	addRule
	deleteElements
	addElements
	deleteChain
	deleteAffinity
)

// op is one change of a table. It is one message to the kernel, or three for an addRule with
// several backends or chains.
type op struct {
	kind     opKind
	name     string // of the chain or set
	rule     rule
	clients  clientSet
	elements map[string]string
}

// differences returns the changes that lead from one content to another, in an order that the
// kernel accepts: an object is added before the first reference to it, and removed after the last
// one.
func differences(before, after content) []op {
	var ops []op
	for _, name := range slices.Sorted(maps.Keys(after.affinity)) {
		if _, there := before.affinity[name]; !there {
			ops = append(ops, op{kind: addAffinity, name: name, clients: after.affinity[name]})
		}
	}
	names := slices.Sorted(maps.Keys(after.chains))
	for _, name := range names {
		if _, there := before.chains[name]; !there {
			ops = append(ops, op{kind: addChain, name: name})
		}
	}
	for _, name := range names {
		rules, old := after.chains[name], before.chains[name]
		if slices.EqualFunc(rules, old, rule.equal) {
			continue
		}
		if len(old) > 0 {
			ops = append(ops, op{kind: flushChain, name: name})
		}
		for _, r := range rules {
			ops = append(ops, op{kind: addRule, name: name, rule: r})
		}
	}
	ops = append(ops, elementChanges(before, after)...)
	var gone []string
	for name := range before.chains {
		if _, there := after.chains[name]; !there {
			gone = append(gone, name)
		}
	}
	slices.SortFunc(gone, func(a, b string) int { return cmp.Or(depth(a)-depth(b), strings.Compare(a, b)) })
	for _, name := range gone {
		ops = append(ops, op{kind: deleteChain, name: name})
	}
	for _, name := range slices.Sorted(maps.Keys(before.affinity)) {
		if _, there := after.affinity[name]; !there {
			ops = append(ops, op{kind: deleteAffinity, name: name})
		}
	}
	return ops
}

// depth orders chains: a chain refers only to chains of greater depth.
func depth(chain string) int {
	switch kind, _, _ := strings.Cut(chain, "-"); kind {
	case "external":
		return 0
	case "service":
		return 1
	}
	return 2
}

// elementChanges returns the changes of elements. In each set, removals come first.
func elementChanges(before, after content) []op {
	var ops []op
	for _, set := range []string{setClosed, setClosedPorts, setHairpin, setNodePorts, setServices} {
		gone, fresh := map[string]string{}, map[string]string{}
		old, now := before.sets[set], after.sets[set]
		for key, chain := range old {
			if to, there := now[key]; !there || to != chain {
				gone[key] = chain
			}
		}
		for key, chain := range now {
			if was, there := old[key]; !there || was != chain {
				fresh[key] = chain
			}
		}
		if len(gone) > 0 {
			ops = append(ops, op{kind: deleteElements, name: set, elements: gone})
		}
		if len(fresh) > 0 {
			ops = append(ops, op{kind: addElements, name: set, elements: fresh})
		}
	}
	return ops
}
