// Package dns answers questions about the names of Services, by Kubernetes' specification of
// DNS-based service discovery, version 1.1.0. It parses and writes DNS messages, and decides which
// names other servers have to resolve.
//
// NewZone makes a zone from Services, Zone.Answer answers one question, ParseQuery parses a query
// and Query.Reply writes the answer. Package dns/server has the sockets.
//
// Difference returns the records in which the zones of two lists of Services differ, and Zone.Apply
// makes one zone from the other by them.
//
// Questions about the cluster's domain, or about addresses of the cluster's own ranges, never go to
// other servers.
package dns

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// SchemaVersion is the version of the specification that answers follow.
const SchemaVersion = "1.1.0"

// ttl is the time to live of all records of the zone, and of negative answers, in seconds. It is
// CoreDNS' default, and short, so that clients soon see new endpoints.
const ttl = 5

// Config configures a zone; its Services are an argument of NewZone.
type Config struct {
	// Domain is the domain of the cluster, without a dot at its end.
	Domain string
	// Ranges are the networks whose reverse zones this server answers: of Services and pods.
	Ranges []netip.Prefix
	// Servers are the addresses of the DNS server.
	Servers []netip.Addr
	// Serial is the zone's serial number.
	Serial uint32
}

// Zone has the DNS records of a list of Services. It is immutable.
type Zone struct {
	config Config
	domain string           // lower case, with a dot at its end
	nodes  map[string]*node // by name in lower case: every name that exists, even without records
	// authority is the SOA record for negative answers about the domain.
	authority []dnsmessage.Resource
}

// node has the records of one name. Each list is sorted, and has no element twice.
type node struct {
	addresses []netip.Addr
	alias     string // with a dot at its end
	targets   []target
	pointers  []string
	text      string
	servers   bool // this is the name of the zone, which has an NS record
	fixed     bool // the name exists without a Service
	below     int  // how many names are directly below this one
}

// target is one SRV record.
type target struct {
	name string
	port uint16
}

// NewZone makes a zone. It leaves out records with invalid DNS names.
func NewZone(c Config, services []*Service) *Zone {
	z := &Zone{config: c, domain: canonical(c.Domain), nodes: make(map[string]*node)}
	z.authority = slices.Clip(z.newSOA(z.domain))
	e := edit{Zone: z}
	e.fix(z.domain).servers = true
	e.fix("svc." + z.domain)
	e.fix("pod." + z.domain)
	e.fix("dns-version." + z.domain).text = SchemaVersion
	server := e.fix(z.server())
	for _, a := range c.Servers {
		server.addresses, _ = set(server.addresses, a.Unmap(), true, netip.Addr.Compare)
	}
	for _, s := range services {
		for _, r := range s.records(z.domain) {
			e.add(r) // it ignores a record that it has
		}
	}
	return z
}

// server returns the name of the name server.
func (z *Zone) server() string { return "ns.dns." + z.domain }

// Has returns the number of names in the zone.
func (z *Zone) Has() int { return len(z.nodes) }

// canonical returns a name in lower case, with a dot at its end.
func canonical(name string) string {
	return lower(strings.TrimSuffix(name, ".")) + "."
}

// lower returns a name in lower case. It changes only ASCII letters.
func lower(name string) string {
	if !strings.ContainsFunc(name, func(r rune) bool { return 'A' <= r && r <= 'Z' }) {
		return name
	}
	b := []byte(name)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// parent returns the name above a name, "" for the root.
func parent(name string) string {
	_, above, _ := strings.Cut(name, ".")
	return above
}

// Limits of names in messages, by RFC 1035: of a name with its dots, and of a label.
const (
	maxName  = 254
	maxLabel = 63
)

// isName reports whether a canonical name fits into a message.
func isName(name string) bool {
	if name == "." {
		return true
	}
	label := 0
	for i := range len(name) {
		switch {
		case name[i] != '.':
			label++
			continue
		case label == 0 || label > maxLabel:
			return false
		}
		label = 0
	}
	return label == 0 && name != "" && len(name) <= maxName
}

// isBelow reports whether a canonical name is the name of a zone, or below it.
func isBelow(name, zone string) bool {
	return name == zone || strings.HasSuffix(name, "."+zone)
}

// isLabel reports whether a name is one label.
func isLabel(name string) bool { return name != "" && !strings.Contains(name, ".") }
