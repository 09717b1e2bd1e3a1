package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"

	"github.com/nodectl/nodectl/pkg/pod"
)

// portRange is a range of ports of the node, both ends included.
type portRange struct{ first, last int }

// checkService returns a problem for each thing in a Service that the rule does not allow. Node ports
// and external addresses take ports and addresses of the node, as host ports of pods do. So under a
// Pod Security level that forbids host ports, none is allowed unless the rule lists it.
func (r *rule) checkService(o *pod.Object, s *v1.Service) []pod.Problem {
	open := r.level.Level == api.LevelPrivileged || anyOf(r.exempt, o.Namespace)
	var problems []pod.Problem
	if s.Spec.Type == v1.ServiceTypeNodePort || s.Spec.Type == v1.ServiceTypeLoadBalancer {
		problems = r.checkNodePorts(s, open)
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer || len(s.Spec.ExternalIPs) > 0 {
		problems = append(problems, r.checkPorts(s, open)...)
	}
	external := r.externalIPs
	if external == nil && !open {
		external = &[]netip.Prefix{}
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer && (r.balancers == nil && external != nil || r.balancers != nil && !*r.balancers) {
		problems = append(problems, r.refusal("spec.type", "type LoadBalancer", "it takes ports of the node's own addresses", "a rule allows it with loadBalancers: true"))
	}
	if external == nil {
		return problems
	}
	for i, text := range s.Spec.ExternalIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil || !slices.ContainsFunc(*external, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) }) {
			problems = append(problems, r.refusal(fmt.Sprintf("spec.externalIPs[%d]", i), "external IP "+quote(text), "no range of externalIPs contains it", allowedRanges(*external)))
		}
	}
	return problems
}

// checkNodePorts checks the node ports of a Service. One that the node chooses may be any.
func (r *rule) checkNodePorts(s *v1.Service, open bool) []pod.Problem {
	ports := r.portsOfNode(open)
	if ports == nil {
		return nil
	}
	var problems []pod.Problem
	for i, p := range s.Spec.Ports {
		path := fmt.Sprintf("spec.ports[%d].nodePort", i)
		switch {
		case p.NodePort == 0 && s.Spec.Type == v1.ServiceTypeLoadBalancer && s.Spec.AllocateLoadBalancerNodePorts != nil && !*s.Spec.AllocateLoadBalancerNodePorts:
		case p.NodePort == 0:
			problems = append(problems, r.refusal(path, "a node port that the node chooses", "nodePorts lists those that are allowed", allowedPorts(*ports)))
		case !contains(*ports, p.NodePort):
			problems = append(problems, r.refusal(path, "node port "+strconv.Itoa(int(p.NodePort)), "no range of nodePorts contains it", allowedPorts(*ports)))
		}
	}
	return problems
}

// checkPorts checks the ports that a Service takes on external addresses.
func (r *rule) checkPorts(s *v1.Service, open bool) []pod.Problem {
	ports := r.portsOfNode(open)
	if ports == nil {
		return nil
	}
	var problems []pod.Problem
	for i, p := range s.Spec.Ports {
		if !contains(*ports, p.Port) {
			problems = append(problems, r.refusal(fmt.Sprintf("spec.ports[%d].port", i), "port "+strconv.Itoa(int(p.Port))+" of an external address", "no range of nodePorts contains it", allowedPorts(*ports)))
		}
	}
	return problems
}

// portsOfNode returns the ports that Services may take on addresses of the node, nil for all.
func (r *rule) portsOfNode(open bool) *[]portRange {
	if r.nodePorts == nil && !open {
		return &[]portRange{}
	}
	return r.nodePorts
}

func contains(ports []portRange, port int32) bool {
	return slices.ContainsFunc(ports, func(a portRange) bool { return int(port) >= a.first && int(port) <= a.last })
}

func allowedPorts(ports []portRange) string {
	var out []string
	for _, p := range ports {
		out = append(out, p.String())
	}
	return allowed(out)
}

// String returns the range as a policy has it.
func (p portRange) String() string {
	if p.first == p.last {
		return strconv.Itoa(p.first)
	}
	return fmt.Sprintf("%d-%d", p.first, p.last)
}

func allowedRanges(ranges []netip.Prefix) string {
	var out []string
	for _, p := range ranges {
		out = append(out, p.String())
	}
	return allowed(out)
}

// services reads the keys of an allowance about Services.
func (d *decoder) services(a *allowance, r *rule) {
	if a.NodePorts != nil {
		r.nodePorts = new([]portRange)
		for _, t := range a.NodePorts {
			from, to, is := strings.Cut(t.value, "-")
			if !is {
				to = from
			}
			first, err1 := strconv.ParseUint(from, 10, 16)
			last, err2 := strconv.ParseUint(to, 10, 16)
			if err1 != nil || err2 != nil || first == 0 || last < first {
				d.problem(t, fmt.Sprintf("%s is not a port or a range of ports", quote(t.value)), `write "30080" or "30000-30100"`)
				continue
			}
			*r.nodePorts = append(*r.nodePorts, portRange{int(first), int(last)})
		}
	}
	if a.ExternalIPs != nil {
		r.externalIPs = new([]netip.Prefix)
		for _, t := range a.ExternalIPs {
			p, err := netip.ParsePrefix(t.value)
			if ip, bad := netip.ParseAddr(t.value); err != nil && bad == nil {
				p, err = ip.Prefix(ip.BitLen())
			}
			if err != nil {
				d.problem(t, fmt.Sprintf("%s is not an address or a range of addresses", quote(t.value)), "write 192.0.2.0/24")
				continue
			}
			*r.externalIPs = append(*r.externalIPs, p.Masked())
		}
	}
	r.balancers = a.Balancers
}
