package service

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Pod has the fields of a pod on which endpoints depend. A Pod that is an input of Decide never changes.
type Pod struct {
	Namespace, Name     string
	Labels              map[string]string
	Hostname, Subdomain string
	// Addrs are the addresses of the pod. A pod without addresses is not an endpoint.
	Addrs []netip.Addr
	// Ready is the pod's condition Ready. Terminating means that the pod stops. Ended means that its
	// phase is Succeeded or Failed, so that it is not an endpoint.
	Ready, Terminating, Ended bool
	Ports                     []EndpointPort // the named ports of its containers
}

// Key returns the key of the pod.
func (p *Pod) Key() pod.Key { return pod.Key{Namespace: p.Namespace, Name: p.Name} }

// Equal reports whether two pods give the same endpoints.
func (p Pod) Equal(o Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.Hostname == o.Hostname && p.Subdomain == o.Subdomain &&
		p.Ready == o.Ready && p.Terminating == o.Terminating && p.Ended == o.Ended &&
		maps.Equal(p.Labels, o.Labels) && slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.Ports, o.Ports)
}

// PodOf returns the fields of a pod that endpoints need. status is the newest status. terminating
// means that the pod has left the desired set, or that the node stops it.
func PodOf(p *v1.Pod, status *v1.PodStatus, terminating bool) Pod {
	out := Pod{
		Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Hostname: p.Spec.Hostname, Subdomain: p.Spec.Subdomain,
		Terminating: terminating || p.DeletionTimestamp != nil, Ports: namedPorts(&p.Spec),
	}
	if status == nil {
		return out
	}
	out.Ended = pod.IsPhaseTerminal(status.Phase)
	for _, c := range status.Conditions {
		if c.Type == v1.PodReady {
			out.Ready = c.Status == v1.ConditionTrue
		}
	}
	addrs := status.PodIPs
	if len(addrs) == 0 && status.PodIP != "" {
		addrs = []v1.PodIP{{IP: status.PodIP}}
	}
	for _, ip := range addrs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out.Addrs = append(out.Addrs, a.Unmap())
		}
	}
	return out
}

// namedPorts returns the named ports of the regular containers, then of the sidecars. Kubernetes
// searches for the name of a target port in this order.
func namedPorts(spec *v1.PodSpec) []EndpointPort {
	var out []EndpointPort
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.Name != "" && p.ContainerPort > 0 && p.ContainerPort <= maxPort {
				out = append(out, EndpointPort{p.Name, cmp.Or(p.Protocol, v1.ProtocolTCP), uint16(p.ContainerPort)})
			}
		}
	}
	for i := range spec.Containers {
		add(&spec.Containers[i])
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return out
}

const maxPort = 65535

// index finds pods by one of their labels, so that the time for a Service depends on the number of
// its own pods.
type index map[label][]*Pod

type label struct{ namespace, key, value string }

func newIndex(pods []*Pod) index {
	x := make(index, 2*len(pods))
	for _, p := range pods {
		for k, v := range p.Labels {
			at := label{p.Namespace, k, v}
			x[at] = append(x[at], p)
		}
	}
	return x
}

// selected returns the pods that a Service selects.
func (x index) selected(s *v1.Service) []*Pod {
	var fewest []*Pod
	first := true
	for k, v := range s.Spec.Selector {
		if of := x[label{s.Namespace, k, v}]; first || len(of) < len(fewest) {
			fewest, first = of, false
		}
	}
	var out []*Pod
	for _, p := range fewest {
		if selects(s, p) {
			out = append(out, p)
		}
	}
	return out
}

// selects reports whether a Service selects a pod. As in Kubernetes, an empty selector selects no
// pods.
func selects(s *v1.Service, p *Pod) bool {
	for k, v := range s.Spec.Selector {
		if have, there := p.Labels[k]; !there || have != v {
			return false
		}
	}
	return len(s.Spec.Selector) > 0 && p.Namespace == s.Namespace && s.Spec.Type != v1.ServiceTypeExternalName
}

// endpointsOf returns the endpoints of a Service in these families, sorted by address.
func endpointsOf(s *v1.Service, pods []*Pod, families []bool) []Endpoint {
	var out []Endpoint
	for _, p := range pods {
		if p.Ended {
			continue
		}
		for _, addr := range p.Addrs {
			if !slices.Contains(families, addr.Is6()) {
				continue
			}
			e := Endpoint{
				Addr: addr, Namespace: p.Namespace, Pod: p.Name, Serving: p.Ready, Terminating: p.Terminating,
				Ready: s.Spec.PublishNotReadyAddresses || p.Ready && !p.Terminating,
			}
			if p.Hostname != "" && p.Subdomain == s.Name {
				e.Hostname = p.Hostname
			}
			for i := range s.Spec.Ports {
				if port, found := targetOf(&s.Spec.Ports[i], p); found {
					e.Ports = append(e.Ports, EndpointPort{s.Spec.Ports[i].Name, s.Spec.Ports[i].Protocol, port})
				}
			}
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int {
		return cmp.Or(a.Addr.Compare(b.Addr), strings.Compare(a.Pod, b.Pod))
	})
	return out
}

// targetOf returns the port of a pod to which a port of a Service leads.
func targetOf(p *v1.ServicePort, of *Pod) (port uint16, found bool) {
	if p.TargetPort.Type == intstr.Int {
		n := int(p.TargetPort.IntVal)
		if n == 0 {
			n = int(p.Port)
		}
		return uint16(n), n > 0 && n <= maxPort
	}
	for _, named := range of.Ports {
		if named.Name == p.TargetPort.StrVal && named.Protocol == cmp.Or(p.Protocol, v1.ProtocolTCP) {
			return named.Port, true
		}
	}
	return 0, false
}

// backends returns the endpoints of one port and family that get connections. These are the ready
// endpoints or, if there are none, the terminating endpoints that still serve.
func backends(endpoints []Endpoint, p *v1.ServicePort, v6 bool) []netip.AddrPort {
	var ready, terminating []netip.AddrPort
	for i := range endpoints {
		e := &endpoints[i]
		if e.Addr.Is6() != v6 {
			continue
		}
		for _, port := range e.Ports {
			if port.Name != p.Name || port.Protocol != p.Protocol {
				continue
			}
			at := netip.AddrPortFrom(e.Addr, port.Port)
			switch {
			case e.Ready:
				ready = append(ready, at)
			case e.Serving && e.Terminating:
				terminating = append(terminating, at)
			}
		}
	}
	if len(ready) == 0 {
		ready = terminating
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}
