package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// familiesOf returns the families of the endpoints of a Service: the families of its cluster IPs. A
// headless Service without families has both.
func familiesOf(a *allocator, s *v1.Service, ips []netip.Addr) []bool {
	var out []bool
	for _, ip := range ips {
		out = append(out, ip.Is6())
	}
	if len(out) > 0 {
		return out
	}
	if f, problem := a.families(s); problem == nil && len(s.Spec.IPFamilies) > 0 {
		return f
	}
	return []bool{false, true}
}

// show writes into s the fields that an API server adds to a Service.
func (a *allocator) show(s *v1.Service, has Allocation, families []bool) {
	s.Kind, s.APIVersion = pod.KindService, "v1"
	s.CreationTimestamp = metav1.NewTime(has.Created)
	if len(has.ClusterIPs) > 0 {
		s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, nil
		for _, ip := range has.ClusterIPs {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip.String())
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, familyName(ip.Is6()))
		}
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	if isHeadless(s) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = v1.ClusterIPNone, []string{v1.ClusterIPNone}
	}
	if s.Spec.IPFamilyPolicy == nil && s.Spec.Type != v1.ServiceTypeExternalName {
		policy := v1.IPFamilyPolicySingleStack
		if len(has.ClusterIPs) > 1 {
			policy = v1.IPFamilyPolicyRequireDualStack
		}
		s.Spec.IPFamilyPolicy = &policy
	}
	for i := range s.Spec.Ports {
		if port := has.NodePorts[nameOf(&s.Spec.Ports[i])]; port != 0 {
			s.Spec.Ports[i].NodePort = int32(port)
		}
	}
	s.Status = v1.ServiceStatus{}
	if !balanced(s) {
		return
	}
	mode := v1.LoadBalancerIPModeVIP
	for _, ip := range a.Nodes {
		if slices.Contains(families, ip.Is6()) {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip.String(), IPMode: &mode})
		}
	}
}

func familyName(v6 bool) v1.IPFamily {
	if v6 {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

// balanced reports whether this node is the load balancer of a Service: if loadBalancerClass does not
// name another one.
func balanced(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil
}

// rules returns the rules of a Service without their endpoints: those of all ports for each cluster
// IP. show must have completed the Service.
func (a *allocator) rules(s *v1.Service, has Allocation) []Rule {
	var out []Rule
	for _, cluster := range has.ClusterIPs {
		external := externalOf(s, cluster.Is6())
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			r := Rule{
				Name:     ruleName(s, p),
				Protocol: p.Protocol, Port: uint16(p.Port), NodePort: uint16(p.NodePort), Cluster: cluster, External: external,
			}
			if c := s.Spec.SessionAffinityConfig; s.Spec.SessionAffinity == v1.ServiceAffinityClientIP {
				r.Affinity = time.Duration(v1.DefaultClientIPServiceAffinitySeconds) * time.Second
				if c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
					r.Affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
				}
			}
			out = append(out, r)
		}
	}
	return out
}

// ruleName returns the name of the rule of a port. Two ports of a Service differ in protocol or
// port.
func ruleName(s *v1.Service, p *v1.ServicePort) string {
	return fmt.Sprintf("%s/%s/%s/%s", s.Namespace, s.Name, strings.ToLower(string(p.Protocol)), cmp.Or(p.Name, fmt.Sprint("p", p.Port)))
}

// externalOf returns the external addresses of one family.
func externalOf(s *v1.Service, v6 bool) []External {
	var out []External
	add := func(text string, sources []netip.Prefix) {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Unmap().Is6() != v6 {
			return
		}
		ip = ip.Unmap()
		if !slices.ContainsFunc(out, func(e External) bool { return e.Addr == ip }) {
			out = append(out, External{ip, sources})
		}
	}
	for _, text := range s.Spec.ExternalIPs {
		add(text, nil)
	}
	sources := sourceRanges(s)
	for _, in := range s.Status.LoadBalancer.Ingress {
		add(in.IP, sources)
	}
	slices.SortFunc(out, compareExternal)
	return out
}

// sourceRanges returns the networks of clients that may use a load balancer; nil allows all
// clients. An empty result that is not nil allows no client: no range in the manifest has the
// family of the address.
func sourceRanges(s *v1.Service) []netip.Prefix {
	ranges := s.Spec.LoadBalancerSourceRanges
	if text := strings.TrimSpace(s.Annotations[v1.AnnotationLoadBalancerSourceRangesKey]); len(ranges) == 0 && text != "" {
		ranges = strings.Split(text, ",")
	}
	if len(ranges) == 0 {
		return nil
	}
	out := []netip.Prefix{}
	for _, text := range ranges {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return cmp.Or(x.Addr().Compare(y.Addr()), x.Bits()-y.Bits()) })
	return slices.Compact(out)
}

// frontend is an external address with its port.
type frontend struct {
	addr     netip.Addr
	protocol v1.Protocol
	port     uint16
}

// keepFree removes external addresses whose port belongs to another Service or to the node itself.
// It returns a problem for each.
func (a *allocator) keepFree(s *frame, taken map[frontend]pod.Key) (problems []pod.Problem) {
	for i := range s.Rules {
		r := &s.Rules[i]
		var kept []External
		for _, e := range r.External {
			if problem := a.whyNotFree(s.Object.Key, r, e.Addr, taken); problem != nil {
				problems = append(problems, *problem)
				continue
			}
			taken[frontend{e.Addr, r.Protocol, r.Port}] = s.Object.Key
			kept = append(kept, e)
		}
		r.External = kept
	}
	return problems
}

// whyNotFree returns the problem if a Service cannot have the port of a rule on an external address,
// or nil.
func (a *allocator) whyNotFree(key pod.Key, r *Rule, ip netip.Addr, taken map[frontend]pod.Key) *pod.Problem {
	const hint = "give one of the two Services another port, or another type"
	inRange := func(p netip.Prefix) bool { return p.Contains(ip) }
	if slices.ContainsFunc(a.CIDRs, inRange) || slices.Contains(a.Reserved, ip) {
		return &pod.Problem{Path: "spec.externalIPs", Msg: fmt.Sprintf("Invalid value: %q: is in the range of cluster IPs", ip), Hint: "name an address outside of --service-cidr"}
	}
	if by, is := taken[frontend{ip, r.Protocol, r.Port}]; is {
		return &pod.Problem{Path: "spec.ports", Msg: fmt.Sprintf("port %d/%s of %s is already used by Service %s", r.Port, r.Protocol, ip, by), Hint: hint}
	}
	if !a.isLocal(ip) {
		return nil
	}
	if by, is := a.ports[portKey{r.Protocol, r.Port}]; is && by != key {
		return &pod.Problem{Path: "spec.ports", Msg: fmt.Sprintf("port %d/%s of %s is already used as a node port by Service %s", r.Port, r.Protocol, ip, by), Hint: hint}
	}
	if r.Protocol == v1.ProtocolTCP && (ofNode(r.Port) || slices.Contains(a.Listeners, r.Port)) {
		return &pod.Problem{Path: "spec.ports", Msg: fmt.Sprintf("port %d/%s of %s belongs to the node itself", r.Port, r.Protocol, ip), Hint: "give the Service another port"}
	}
	return nil
}

// isLocal reports whether the node has an address.
func (a *allocator) isLocal(ip netip.Addr) bool {
	return slices.Contains(a.Nodes, ip) || slices.Contains(a.Local, ip) || ip.IsLoopback() || ip.IsUnspecified()
}

// ofNode reports whether a TCP port belongs to SSH or to a Kubernetes component on a node.
func ofNode(port uint16) bool { return port == 22 || port >= 10248 && port <= 10259 }

// bySeniority returns Services in the order in which they get external addresses. Services with an
// earlier allocation come first, by age, so that a new Service takes no address from a served one.
func (a *allocator) bySeniority(all []frame) []*frame {
	out := make([]*frame, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	slices.SortStableFunc(out, func(x, y *frame) int { // all is sorted by key
		had, known := a.Earlier[x.Object.Key]
		other, otherKnown := a.Earlier[y.Object.Key]
		if known != otherKnown {
			if known {
				return -1
			}
			return 1
		}
		return had.Created.Compare(other.Created)
	})
	return out
}
