package dns

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// maxAliases is how many aliases an answer follows.
const maxAliases = 8

// Answer is the answer to one question.
type Answer struct {
	RCode                          dnsmessage.RCode
	Answers, Authority, Additional []dnsmessage.Resource
	// Forward means that other servers answer this question.
	Forward bool
	// Alias is the target of the last alias in Answers if other servers must resolve it, else "".
	Alias string
	// Authoritative means that the answer comes from this zone. Truncated means that the answer of
	// another server was truncated.
	Authoritative, Truncated bool
}

// Answer answers a question. turn rotates the addresses of a name; callers increment it for each
// question.
func (z *Zone) Answer(q dnsmessage.Question, turn uint32) Answer {
	name := lower(q.Name.String())
	zone, own := z.domain, isBelow(name, z.domain)
	if !own {
		zone, own = z.ownReverse(name)
	}
	switch {
	case !own && z.nodes[name] == nil:
		return Answer{Forward: true}
	case q.Class != dnsmessage.ClassINET && q.Class != dnsmessage.ClassANY:
		return Answer{RCode: dnsmessage.RCodeRefused}
	case q.Type == dnsmessage.TypeAXFR || q.Type == typeIXFR:
		return Answer{RCode: dnsmessage.RCodeRefused}
	case q.Type == dnsmessage.TypeALL: // RFC 8482 allows an answer without records of the zone
		return Answer{RCode: dnsmessage.RCodeNotImplemented}
	case !own && len(z.nodes[name].pointers) == 0: // a name above the reverse name of an endpoint
		return Answer{Forward: true}
	}
	return z.answer(q, name, zone, turn)
}

// typeIXFR is the type of an incremental transfer of a zone, which dnsmessage lacks.
const typeIXFR dnsmessage.Type = 251

// answer answers a question about a name in a zone of this server. It follows aliases within the
// cluster's domain.
func (z *Zone) answer(q dnsmessage.Question, name, zone string, turn uint32) Answer {
	a := Answer{Authoritative: true}
	owner := q.Name // in the letter case of the question
	for range maxAliases {
		at := z.find(name)
		if at == nil && name == zone { // a reverse zone without records
			at = &node{}
		}
		if at == nil {
			a.RCode, a.Authority = dnsmessage.RCodeNameError, z.soa(zone)
			return a
		}
		if at.alias == "" || q.Type == dnsmessage.TypeCNAME {
			z.records(&a, at, owner, zone, q.Type, turn)
			if len(a.Answers) == 0 || at.alias == "" && !hasType(a.Answers, q.Type) {
				a.Authority = z.soa(zone)
			}
			return a
		}
		to := mustName(at.alias)
		a.Answers = append(a.Answers, resource(owner, &dnsmessage.CNAMEResource{CNAME: to}))
		if !isBelow(at.alias, z.domain) {
			a.Alias = at.alias
			return a
		}
		owner, name = to, at.alias
	}
	return Answer{RCode: dnsmessage.RCodeServerFailure, Authoritative: true} // a cycle of aliases
}

// find returns the node of a name, or nil for a name that does not exist. As the specification
// requires, every name in the form of a pod's name exists, even without such a pod.
func (z *Zone) find(name string) *node {
	if at := z.nodes[name]; at != nil {
		return at
	}
	rest, below := strings.CutSuffix(name, ".pod."+z.domain)
	if !below {
		return nil
	}
	host, namespace, ok := strings.Cut(rest, ".")
	switch {
	case !ok:
		return &node{} // a namespace
	case strings.Contains(namespace, "."):
		return nil
	}
	if ip, err := netip.ParseAddr(strings.ReplaceAll(host, "-", ".")); err == nil {
		return &node{addresses: []netip.Addr{ip}}
	}
	if ip, err := netip.ParseAddr(strings.ReplaceAll(host, "-", ":")); err == nil && ip.Zone() == "" {
		return &node{addresses: []netip.Addr{ip}}
	}
	return nil
}

// records appends the records of one type.
func (z *Zone) records(a *Answer, at *node, owner dnsmessage.Name, zone string, kind dnsmessage.Type, turn uint32) {
	switch kind {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA:
		a.Answers = append(a.Answers, addresses(owner, at.addresses, kind, turn)...)
	case dnsmessage.TypeCNAME:
		if at.alias != "" {
			a.Answers = append(a.Answers, resource(owner, &dnsmessage.CNAMEResource{CNAME: mustName(at.alias)}))
		}
	case dnsmessage.TypePTR:
		for _, p := range at.pointers {
			a.Answers = append(a.Answers, resource(owner, &dnsmessage.PTRResource{PTR: mustName(p)}))
		}
	case dnsmessage.TypeSRV:
		z.targets(a, at, owner, turn)
	case dnsmessage.TypeTXT:
		if at.text != "" {
			a.Answers = append(a.Answers, resource(owner, &dnsmessage.TXTResource{TXT: []string{at.text}}))
		}
	case dnsmessage.TypeSOA:
		if strings.EqualFold(owner.String(), zone) {
			a.Answers = append(a.Answers, z.soa(zone)...)
		}
	case dnsmessage.TypeNS:
		if at.servers {
			a.Answers = append(a.Answers, resource(owner, &dnsmessage.NSResource{NS: mustName(z.server())}))
			a.Additional = append(a.Additional, z.addressesOf(z.server())...)
		}
	}
}

// targets appends SRV records, and the addresses of their hosts.
func (z *Zone) targets(a *Answer, at *node, owner dnsmessage.Name, turn uint32) {
	hosts := make(map[string]bool)
	for _, t := range rotated(at.targets, turn) {
		// The weights of one answer add up to about 100, as CoreDNS' do.
		weight := uint16(max(1, 100/len(at.targets)))
		a.Answers = append(a.Answers, resource(owner, &dnsmessage.SRVResource{Priority: 0, Weight: weight, Port: t.port, Target: mustName(t.name)}))
		if !hosts[t.name] {
			hosts[t.name] = true
			a.Additional = append(a.Additional, z.addressesOf(t.name)...)
		}
	}
}

// addressesOf returns the address records of a name of the zone.
func (z *Zone) addressesOf(name string) []dnsmessage.Resource {
	at := z.nodes[name]
	if at == nil {
		return nil
	}
	owner := mustName(name)
	return append(addresses(owner, at.addresses, dnsmessage.TypeA, 0), addresses(owner, at.addresses, dnsmessage.TypeAAAA, 0)...)
}

// addresses returns the address records of one type.
func addresses(owner dnsmessage.Name, all []netip.Addr, kind dnsmessage.Type, turn uint32) []dnsmessage.Resource {
	n := 0
	for _, ip := range all {
		if ip.Is4() == (kind == dnsmessage.TypeA) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	of := make([]dnsmessage.Resource, 0, n)
	for _, ip := range all {
		switch {
		case ip.Is4() && kind == dnsmessage.TypeA:
			of = append(of, resource(owner, &dnsmessage.AResource{A: ip.As4()}))
		case ip.Is6() && kind == dnsmessage.TypeAAAA:
			of = append(of, resource(owner, &dnsmessage.AAAAResource{AAAA: ip.As16()}))
		}
	}
	return rotated(of, turn)
}

// rotated returns the list rotated by turn elements.
func rotated[T any](list []T, turn uint32) []T {
	if len(list) < 2 {
		return list
	}
	first := int(turn % uint32(len(list)))
	return slices.Concat(list[first:], list[:first])
}

// soa returns the SOA record for negative answers. It has the time for which clients may cache them.
// Callers must not change it.
func (z *Zone) soa(zone string) []dnsmessage.Resource {
	if zone == z.domain {
		return z.authority
	}
	return z.newSOA(zone)
}

func (z *Zone) newSOA(zone string) []dnsmessage.Resource {
	return []dnsmessage.Resource{resource(mustName(zone), &dnsmessage.SOAResource{
		NS: mustName(z.server()), MBox: mustName("hostmaster." + z.domain), Serial: z.config.Serial,
		Refresh: 7200, Retry: 1800, Expire: 86400, MinTTL: ttl,
	})}
}

// resource makes a record; dnsmessage sets its type when it packs it.
func resource(owner dnsmessage.Name, body dnsmessage.ResourceBody) dnsmessage.Resource {
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET, TTL: ttl, Type: typeOf(body)}, Body: body}
}

// typeOf returns the type of a record that this zone makes.
func typeOf(body dnsmessage.ResourceBody) dnsmessage.Type {
	switch body.(type) {
	case *dnsmessage.AResource:
		return dnsmessage.TypeA
	case *dnsmessage.AAAAResource:
		return dnsmessage.TypeAAAA
	case *dnsmessage.CNAMEResource:
		return dnsmessage.TypeCNAME
	case *dnsmessage.PTRResource:
		return dnsmessage.TypePTR
	case *dnsmessage.SRVResource:
		return dnsmessage.TypeSRV
	case *dnsmessage.TXTResource:
		return dnsmessage.TypeTXT
	case *dnsmessage.NSResource:
		return dnsmessage.TypeNS
	}
	return dnsmessage.TypeSOA
}

// hasType reports whether a record of a type is among records.
func hasType(all []dnsmessage.Resource, kind dnsmessage.Type) bool {
	return slices.ContainsFunc(all, func(r dnsmessage.Resource) bool { return r.Header.Type == kind })
}

// mustName returns a name that NewZone has checked. It returns the root instead of an invalid name.
func mustName(name string) dnsmessage.Name {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return dnsmessage.MustNewName(".")
	}
	return n
}
