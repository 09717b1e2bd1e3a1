// Package dns answers questions about the names of Services, by Kubernetes' specification of
// DNS-based service discovery, version 1.1.0. It parses and writes DNS messages, and decides which
// names other servers have to resolve.
//
// NewZone makes a zone from Services, Zone.Answer answers one question, ParseQuery parses a query
// and Query.Reply writes the answer. Package dns/server has the sockets.
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

// Service has the fields of a Service on which its names depend.
type Service struct {
	Namespace    string       `json:"namespace"`
	Name         string       `json:"name"`
	ExternalName string       `json:"externalName,omitempty"`
	ClusterIPs   []netip.Addr `json:"clusterIPs,omitempty"` // empty for a headless Service
	Ports        []Port       `json:"ports,omitempty"`
	Endpoints    []Endpoint   `json:"endpoints,omitempty"` // the ready endpoints of a headless Service
}

// Port is a port of a Service or endpoint. A port without a name has no records.
type Port struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"` // TCP, UDP, SCTP
	Number   uint16 `json:"number"`
}

// Endpoint is one address of a headless Service.
type Endpoint struct {
	Address  netip.Addr `json:"address"`
	Hostname string     `json:"hostname,omitempty"` // "": the name is made from the address
	Ports    []Port     `json:"ports"`              // nil: the ports of the Service
}

// Zone has the DNS records of a list of Services. It is immutable.
type Zone struct {
	config Config
	domain string           // lower case, with a dot at its end
	nodes  map[string]*node // by name in lower case: every name that exists, even without records
	// authority is the SOA record for negative answers about the domain.
	authority []dnsmessage.Resource
}

// node has the records of one name.
type node struct {
	addresses []netip.Addr
	alias     string // with a dot at its end
	targets   []target
	pointers  []string
	text      string
	servers   bool // this is the name of the zone, which has an NS record
}

// target is one SRV record.
type target struct {
	name string
	port uint16
}

// NewZone makes a zone. It leaves out records with invalid DNS names.
func NewZone(c Config, services []Service) *Zone {
	z := &Zone{config: c, domain: canonical(c.Domain), nodes: make(map[string]*node)}
	z.authority = slices.Clip(z.newSOA(z.domain))
	z.at(z.domain).servers = true
	z.at("svc." + z.domain)
	z.at("pod." + z.domain)
	z.at("dns-version." + z.domain).text = SchemaVersion
	server := z.at(z.server())
	for _, a := range c.Servers {
		server.addresses = append(server.addresses, a.Unmap())
	}
	for _, s := range services {
		z.add(s)
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

// at returns the node of a name. It adds the node and the nodes of the names above it. For an
// invalid name it returns a node that no question finds.
func (z *Zone) at(name string) *node {
	if !isName(name) {
		return &node{}
	}
	found := z.nodes[name]
	if found == nil {
		found = &node{}
		z.nodes[name] = found
	}
	for above := parent(name); above != "" && z.nodes[above] == nil && (isBelow(above, z.domain) || isReverse(above)); above = parent(above) {
		z.nodes[above] = &node{}
	}
	return found
}

// parent returns the name above a name, "" for the root.
func parent(name string) string {
	_, above, _ := strings.Cut(name, ".")
	return above
}

// isName reports whether a canonical name fits into a message.
func isName(name string) bool {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return false
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{})
	return b.StartQuestions() == nil && b.Question(dnsmessage.Question{Name: n}) == nil
}

// isBelow reports whether a canonical name is the name of a zone, or below it.
func isBelow(name, zone string) bool {
	return name == zone || strings.HasSuffix(name, "."+zone)
}

// isLabel reports whether a name is one label.
func isLabel(name string) bool { return name != "" && !strings.Contains(name, ".") }

// add adds the records of a Service.
func (z *Zone) add(s Service) {
	name := canonical(s.Name + "." + s.Namespace + ".svc." + z.domain)
	switch {
	case !isLabel(s.Name) || !isLabel(s.Namespace): // with a dot, it could have a name of another namespace
	case s.ExternalName != "":
		if to := canonical(s.ExternalName); isName(to) {
			z.at(name).alias = to
		}
	case len(s.ClusterIPs) > 0:
		at := z.at(name)
		for _, ip := range s.ClusterIPs {
			at.addresses = append(at.addresses, ip.Unmap())
			z.point(ip, name)
		}
		for _, p := range s.Ports {
			z.serve(p, name, name, p.Number)
		}
	default:
		z.addEndpoints(s, name)
	}
}

// addEndpoints adds the records of a headless Service. The name of a Service without an endpoint
// does not exist.
func (z *Zone) addEndpoints(s Service, name string) {
	for _, e := range s.Endpoints {
		if !e.Address.IsValid() {
			continue
		}
		ip := e.Address.Unmap()
		at := z.at(name)
		at.addresses = append(at.addresses, ip)
		host := e.Hostname
		if !isLabel(host) {
			host = dashed(ip)
		}
		host = canonical(host + "." + name)
		of := z.at(host)
		of.addresses = append(of.addresses, ip)
		z.point(ip, host)
		ports := e.Ports
		if ports == nil {
			ports = s.Ports
		}
		for _, p := range ports {
			z.serve(p, name, host, p.Number)
		}
	}
}

// dashed returns the name of an endpoint without a host name. As in CoreDNS, it is the address with
// dashes.
func dashed(ip netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.WithZone("").String())
}

// point adds the PTR record from an address to a name.
func (z *Zone) point(ip netip.Addr, to string) {
	at := z.at(reverseName(ip))
	for _, p := range at.pointers {
		if p == to {
			return
		}
	}
	at.pointers = append(at.pointers, to)
}

// serve adds the SRV record of a named port.
func (z *Zone) serve(p Port, service, host string, number uint16) {
	if p.Name == "" || p.Protocol == "" {
		return
	}
	at := z.at(canonical("_" + p.Name + "._" + p.Protocol + "." + service))
	t := target{host, number}
	for _, other := range at.targets { // a host with several addresses has one SRV record
		if other == t {
			return
		}
	}
	at.targets = append(at.targets, t)
}
