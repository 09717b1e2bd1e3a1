package agent

import (
	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/service"
)

// zoneOf converts Services into the form of the DNS server.
func zoneOf(views []*service.View) []dns.Service {
	all := make([]dns.Service, 0, len(views))
	for _, v := range views {
		s := dns.Service{Namespace: v.Namespace, Name: v.Name, ExternalName: v.ExternalName, ClusterIPs: v.ClusterIPs}
		if s.ExternalName == "" && len(s.ClusterIPs) == 0 && !v.Headless { // it has no cluster IP yet
			continue
		}
		for _, p := range v.Ports {
			s.Ports = append(s.Ports, dns.Port{Name: p.Name, Protocol: string(p.Protocol), Number: p.Port})
		}
		if v.Headless {
			s.Endpoints = endpointsOf(v)
		}
		all = append(all, s)
	}
	return all
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
