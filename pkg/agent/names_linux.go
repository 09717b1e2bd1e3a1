package agent

import (
	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/service"
)

// serviceNames converts Services into the form of the DNS server. A Service whose names stay the same
// keeps its pointer, so that a comparison of two lists sees only the others.
type serviceNames struct {
	known map[pod.Key]named
}

// named is a Service in both forms.
type named struct {
	view    *service.View
	service *dns.Service // nil: it has no names
}

// of returns the Services that have names, sorted as dns.Sort does it.
func (n *serviceNames) of(views []*service.View) []*dns.Service {
	known, all := make(map[pod.Key]named, len(views)), make([]*dns.Service, 0, len(views))
	for _, v := range views {
		key := pod.Key{Namespace: v.Namespace, Name: v.Name}
		before := n.known[key]
		if before.view != v {
			now := dnsService(v)
			if now == nil || before.service == nil || !now.Equal(before.service) {
				before.service = now
			}
			before.view = v
		}
		known[key] = before
		if before.service != nil {
			all = append(all, before.service)
		}
	}
	n.known = known
	return dns.Sort(all)
}

// dnsService converts a Service into the form of the DNS server. It returns nil for a Service that has
// no cluster IP yet.
func dnsService(v *service.View) *dns.Service {
	s := &dns.Service{Namespace: v.Namespace, Name: v.Name, ExternalName: v.ExternalName, ClusterIPs: v.ClusterIPs}
	if s.ExternalName == "" && len(s.ClusterIPs) == 0 && !v.Headless {
		return nil
	}
	for _, p := range v.Ports {
		s.Ports = append(s.Ports, dns.Port{Name: p.Name, Protocol: string(p.Protocol), Number: p.Port})
	}
	if v.Headless {
		s.Endpoints = endpointsOf(v)
	}
	return s
}

// endpointsOf returns the endpoints to which the name of a headless Service resolves.
func endpointsOf(v *service.View) []dns.Endpoint {
	var all []dns.Endpoint
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if !e.Published() {
			continue
		}
		of := dns.Endpoint{Address: e.Addr, Hostname: e.Hostname, Ports: []dns.Port{}}
		for _, p := range e.Ports {
			of.Ports = append(of.Ports, dns.Port{Name: p.Name, Protocol: string(p.Protocol), Number: p.Port})
		}
		all = append(all, of)
	}
	return all
}
