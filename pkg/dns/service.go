package dns

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Service has the fields of a Service on which its names depend. It never changes.
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

// Equal reports whether two Services have the same fields.
func (s *Service) Equal(o *Service) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.ExternalName == o.ExternalName &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, Endpoint.equal)
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.Address == o.Address && e.Hostname == o.Hostname && (e.Ports == nil) == (o.Ports == nil) && slices.Equal(e.Ports, o.Ports)
}

// compareNames compares two Services by their names. Letter case has no meaning in DNS names.
func compareNames(a, b *Service) int {
	return cmp.Or(strings.Compare(lower(a.Namespace), lower(b.Namespace)), strings.Compare(lower(a.Name), lower(b.Name)))
}

// Sort sorts Services by their names, as Difference expects them. It drops all but the first Service
// of a name.
func Sort(services []*Service) []*Service {
	slices.SortStableFunc(services, compareNames)
	return slices.CompactFunc(services, func(a, b *Service) bool { return compareNames(a, b) == 0 })
}

// records returns the valid records of a Service in a canonical domain, sorted and without
// repetition. No other Service has one of them.
func (s *Service) records(domain string) []Record {
	if s == nil || !isLabel(s.Name) || !isLabel(s.Namespace) { // with a dot, it could have a name of another namespace
		return nil
	}
	w := recorder{domain: domain, name: canonical(s.Name + "." + s.Namespace + ".svc." + domain)}
	switch {
	case s.ExternalName != "":
		w.add(Record{Owner: w.name, Alias: canonical(s.ExternalName)})
	case len(s.ClusterIPs) > 0:
		for _, ip := range s.ClusterIPs {
			w.address(w.name, ip.Unmap())
			w.pointer(ip.Unmap(), w.name)
		}
		for _, p := range s.Ports {
			w.port(p, w.name)
		}
	default:
		w.endpoints(s)
	}
	slices.SortFunc(w.records, Record.compare)
	return slices.Compact(w.records)
}

// recorder makes the records of one Service.
type recorder struct {
	domain, name string // of the zone and of the Service
	records      []Record
}

// add adds a record, unless it is invalid.
func (w *recorder) add(r Record) {
	if r.isValid(w.domain) {
		w.records = append(w.records, r)
	}
}

// endpoints adds the records of a headless Service. The name of a Service without an endpoint does
// not exist.
func (w *recorder) endpoints(s *Service) {
	for _, e := range s.Endpoints {
		ip := e.Address.Unmap()
		if !ip.IsValid() {
			continue
		}
		w.address(w.name, ip)
		host := e.Hostname
		if !isLabel(host) {
			host = dashed(ip)
		}
		host = canonical(host + "." + w.name)
		w.address(host, ip)
		w.pointer(ip, host)
		ports := e.Ports
		if ports == nil {
			ports = s.Ports
		}
		for _, p := range ports {
			w.port(p, host)
		}
	}
}

// dashed returns the name of an endpoint without a host name. As in CoreDNS, it is the address with
// dashes.
func dashed(ip netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.WithZone("").String())
}

func (w *recorder) address(owner string, ip netip.Addr) { w.add(Record{Owner: owner, Address: ip}) }

// pointer adds the PTR record from an address to a name.
func (w *recorder) pointer(ip netip.Addr, to string) {
	if ip.IsValid() {
		w.add(Record{Owner: reverseName(ip), Pointer: to})
	}
}

// port adds the SRV record of a named port.
func (w *recorder) port(p Port, host string) {
	if p.Name != "" && p.Protocol != "" {
		w.add(Record{Owner: canonical("_" + p.Name + "._" + p.Protocol + "." + w.name), Host: host, Port: p.Number})
	}
}
