package service

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// allocator allocates the cluster IPs and node ports of Services.
//
// A Service keeps its addresses and ports. An address or port in a manifest goes to the Service
// that had it before, or else to the first Service by key that names it. Other Services get free
// addresses and ports. Their names determine where the search begins. So a node that lost its state
// gives most Services the same ones again.
type allocator struct {
	Input
	ips   map[netip.Addr]pod.Key
	ports map[portKey]pod.Key
	// fronts are the ports of Services on external addresses: the allocator does not choose them as
	// node ports.
	fronts map[portKey]bool
}

type portKey struct {
	protocol v1.Protocol
	port     uint16
}

func newAllocator(in Input) *allocator {
	a := &allocator{Input: in, ips: make(map[netip.Addr]pod.Key), ports: make(map[portKey]pod.Key), fronts: make(map[portKey]bool)}
	for _, o := range in.Services { // the earlier addresses, unless the manifest names another one
		s := o.Object.(*v1.Service)
		if balanced(s) || len(s.Spec.ExternalIPs) > 0 {
			for i := range s.Spec.Ports {
				a.fronts[portKey{s.Spec.Ports[i].Protocol, uint16(s.Spec.Ports[i].Port)}] = true
			}
		}
		had, known := in.Earlier[o.Key]
		if !known {
			continue
		}
		written := writtenIPs(s)
		for _, ip := range had.ClusterIPs {
			if slices.ContainsFunc(written, func(w netip.Addr) bool { return w != ip && w.Is6() == ip.Is6() }) {
				continue
			}
			if _, taken := a.ips[ip]; !taken && hasClusterIP(s) && a.cidrOf(ip) >= 0 {
				a.ips[ip] = o.Key
			}
		}
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			port := had.NodePorts[nameOf(p)]
			if _, taken := a.ports[portKey{p.Protocol, port}]; port != 0 && !taken && wantsNodePort(s) && (p.NodePort == 0 || uint16(p.NodePort) == port) {
				a.ports[portKey{p.Protocol, port}] = o.Key
			}
		}
	}
	if in.Partial {
		a.reserve()
	}
	return a
}

// allocateAll returns the addresses and ports of the Services that can be served, and the problems
// of Services. A Service that cannot be served loses its earlier addresses and ports, and Services
// that need them get them in the same decision. If Services may be missing, it keeps them.
func allocateAll(in Input) (a *allocator, found map[pod.Key]Allocation, refused map[pod.Key][]pod.Problem) {
	for {
		a, found, refused = newAllocator(in), make(map[pod.Key]Allocation, len(in.Services)), make(map[pod.Key][]pod.Problem)
		for _, o := range in.Services { // the addresses and ports in manifests first
			a.claim(o)
		}
		var lost []pod.Key
		for _, o := range in.Services {
			allocation, problems, served := a.allocate(o)
			refused[o.Key] = problems
			if _, had := in.Earlier[o.Key]; served {
				found[o.Key] = allocation
			} else if had {
				lost = append(lost, o.Key)
			}
		}
		if len(lost) == 0 || in.Partial {
			return a, found, refused
		}
		in.Earlier = maps.Clone(in.Earlier)
		for _, key := range lost {
			delete(in.Earlier, key)
		}
	}
}

// reserve keeps the addresses and ports of missing Services.
func (a *allocator) reserve() {
	there := make(map[pod.Key]bool, len(a.Services))
	for _, o := range a.Services {
		there[o.Key] = true
	}
	for _, key := range slices.SortedFunc(maps.Keys(a.Earlier), pod.Key.Compare) {
		if there[key] {
			continue
		}
		for _, ip := range a.Earlier[key].ClusterIPs {
			if _, taken := a.ips[ip]; !taken {
				a.ips[ip] = key
			}
		}
		for name, port := range a.Earlier[key].NodePorts {
			protocol, _, _ := strings.Cut(name, "/")
			if at := (portKey{v1.Protocol(protocol), port}); a.ports[at] == (pod.Key{}) {
				a.ports[at] = key
			}
		}
	}
}

// claim gives a Service the addresses and ports in its manifest, unless another Service has them.
func (a *allocator) claim(o *pod.Object) {
	s := o.Object.(*v1.Service)
	for _, ip := range writtenIPs(s) {
		if _, taken := a.ips[ip]; !taken && a.whyNotIP(ip, o.Key) == "" {
			a.ips[ip] = o.Key
		}
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		key := portKey{p.Protocol, uint16(p.NodePort)}
		if _, taken := a.ports[key]; !taken && p.NodePort != 0 && a.whyNotPort(p, o.Key) == "" {
			a.ports[key] = o.Key
		}
	}
}

// allocate returns the addresses and ports of a Service. served is false if it cannot be served.
func (a *allocator) allocate(o *pod.Object) (out Allocation, problems []pod.Problem, served bool) {
	s, had := o.Object.(*v1.Service), a.Earlier[o.Key]
	out.Created = had.Created
	if out.Created.IsZero() {
		out.Created = a.Now
	}
	ips, problems, served := a.clusterIPs(s, o.Key, had)
	out.ClusterIPs = ips
	if !wantsNodePort(s) {
		return out, problems, served
	}
	out.NodePorts = make(map[string]uint16, len(s.Spec.Ports))
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		port, why := a.nodePort(p, o.Key, had)
		if why != "" {
			problems = append(problems, pod.Problem{Path: fmt.Sprintf("spec.ports[%d].nodePort", i), Msg: why})
		}
		if port == 0 {
			served = false
			continue
		}
		out.NodePorts[nameOf(p)] = port
	}
	return out, problems, served
}

// clusterIPs returns the cluster IPs of a Service, in the order of its families.
func (a *allocator) clusterIPs(s *v1.Service, key pod.Key, had Allocation) (out []netip.Addr, problems []pod.Problem, served bool) {
	if !hasClusterIP(s) {
		return nil, nil, true
	}
	families, problem := a.families(s)
	if problem != nil {
		return nil, []pod.Problem{*problem}, false
	}
	written := writtenIPs(s)
	for _, v6 := range families {
		i := slices.IndexFunc(written, func(ip netip.Addr) bool { return ip.Is6() == v6 })
		earlier := slices.IndexFunc(had.ClusterIPs, func(ip netip.Addr) bool { return ip.Is6() == v6 && a.whyNotIP(ip, key) == "" })
		if i >= 0 {
			why := a.whyNotIP(written[i], key)
			if why == "" {
				out = append(out, written[i])
				continue
			}
			problems = append(problems, pod.Problem{
				Path: fmt.Sprintf("spec.clusterIPs[%d]", i),
				Msg:  fmt.Sprintf("Invalid value: %q: failed to allocate IP %s: %s", written[i], written[i], why),
			})
			if earlier < 0 {
				return nil, problems, false
			}
		}
		if earlier >= 0 {
			out = append(out, had.ClusterIPs[earlier])
			a.ips[had.ClusterIPs[earlier]] = key
			continue
		}
		ip, found := a.freeIP(key, v6)
		if !found {
			return nil, append(problems, pod.Problem{Path: "spec.clusterIPs", Msg: "failed to allocate a serviceIP: range is full", Hint: "set a larger --service-cidr"}), false
		}
		a.ips[ip] = key
		out = append(out, ip)
	}
	return out, problems, true
}

// families returns the families of the cluster IPs of a Service; true is IPv6.
func (a *allocator) families(s *v1.Service) ([]bool, *pod.Problem) {
	has := func(v6 bool) bool {
		return slices.ContainsFunc(a.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 })
	}
	var out []bool
	add := func(v6 bool) {
		if !slices.Contains(out, v6) {
			out = append(out, v6)
		}
	}
	for i, f := range s.Spec.IPFamilies {
		if v6 := f == v1.IPv6Protocol; has(v6) {
			add(v6)
		} else {
			return nil, &pod.Problem{Path: fmt.Sprintf("spec.ipFamilies[%d]", i), Msg: fmt.Sprintf("Invalid value: %q: not configured on this cluster", f), Hint: "add a range of this family to --service-cidr"}
		}
	}
	for _, ip := range writtenIPs(s) {
		if !has(ip.Is6()) {
			return nil, &pod.Problem{Path: "spec.clusterIPs[0]", Msg: fmt.Sprintf("Invalid value: %q: not configured on this cluster", ip), Hint: "add a range of this family to --service-cidr"}
		}
		add(ip.Is6())
	}
	policy := v1.IPFamilyPolicySingleStack
	if s.Spec.IPFamilyPolicy != nil {
		policy = *s.Spec.IPFamilyPolicy
	}
	if policy == v1.IPFamilyPolicyRequireDualStack && len(a.CIDRs) < 2 {
		return nil, &pod.Problem{Path: "spec.ipFamilyPolicy", Msg: fmt.Sprintf("Invalid value: %q: Cluster is not configured for dual-stack services", policy), Hint: "give --service-cidr a range of each family"}
	}
	if policy != v1.IPFamilyPolicySingleStack {
		for _, p := range a.CIDRs {
			add(p.Addr().Is6())
		}
	}
	if len(out) == 0 && len(a.CIDRs) > 0 {
		add(a.CIDRs[0].Addr().Is6())
	}
	return out, nil
}

// whyNotIP returns the reason why a Service cannot have the cluster IP in its manifest, or "".
func (a *allocator) whyNotIP(ip netip.Addr, key pod.Key) string {
	at := a.cidrOf(ip)
	if at < 0 {
		return "the provided IP (" + ip.String() + ") is not in the valid range. The range of valid IPs is " + a.ranges(ip.Is6())
	}
	if by, taken := a.ips[ip]; taken && by != key || slices.Contains(a.Reserved, ip) {
		return "provided IP is already allocated" + owner(by, taken)
	}
	return ""
}

func owner(by pod.Key, known bool) string {
	if !known {
		return ""
	}
	return " to Service " + by.String()
}

func (a *allocator) ranges(v6 bool) string {
	for _, p := range a.CIDRs {
		if p.Addr().Is6() == v6 {
			return p.String()
		}
	}
	return "empty"
}

// cidrOf returns the index of the range in which ip is a usable address, or -1.
func (a *allocator) cidrOf(ip netip.Addr) int {
	return slices.IndexFunc(a.CIDRs, func(p netip.Prefix) bool {
		n, size := offset(p, ip), sizeOf(p)
		return p.Contains(ip) && n > 0 && n < size-1
	})
}

// mostIPs limits the used part of a range, because one node needs no more addresses.
const mostIPs = 1 << 16

// sizeOf returns the number of addresses of a range, up to mostIPs, with the first and the last
// one.
func sizeOf(p netip.Prefix) int {
	if bits := p.Addr().BitLen() - p.Bits(); bits < 16 {
		return 1 << bits
	}
	return mostIPs
}

// offset returns the place of ip in the range, at most mostIPs.
func offset(p netip.Prefix, ip netip.Addr) int {
	first, at := new(big.Int).SetBytes(p.Masked().Addr().AsSlice()), new(big.Int).SetBytes(ip.AsSlice())
	d := at.Sub(at, first)
	if !d.IsInt64() || d.Int64() < 0 || d.Int64() > mostIPs {
		return mostIPs
	}
	return int(d.Int64())
}

// at returns the address at a place of the range.
func at(p netip.Prefix, n int) netip.Addr {
	first := new(big.Int).SetBytes(p.Masked().Addr().AsSlice())
	raw := first.Add(first, big.NewInt(int64(n))).FillBytes(make([]byte, p.Addr().BitLen()/8))
	out, _ := netip.AddrFromSlice(raw)
	return out
}

// freeIP returns a free cluster IP. The lower part of the range is for addresses in manifests, as
// in Kubernetes, and is used when the upper one is full. The first address is never used: in a
// cluster the Service kubernetes has it.
func (a *allocator) freeIP(key pod.Key, v6 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(a.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	p := a.CIDRs[i]
	return free(2, sizeOf(p)-1, lowerBand(sizeOf(p), 16, 256), key.String(), func(n int) (netip.Addr, bool) {
		ip := at(p, n)
		_, taken := a.ips[ip]
		return ip, !taken && !slices.Contains(a.Reserved, ip)
	})
}

// lowerBand returns the size of the lower part of a range, as in Kubernetes.
func lowerBand(size, least, most int) int { return min(max(least, size/16), most) }

// free returns a free item of [first, end). It searches the upper band first, from a place that
// depends on name.
func free[T any](first, end, band int, name string, is func(n int) (T, bool)) (T, bool) {
	var zero T
	lower := min(first+band, end)
	if upper := end - lower; upper > 0 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name))
		start := int(h.Sum32() % uint32(upper))
		for i := range upper {
			if v, ok := is(lower + (start+i)%upper); ok {
				return v, true
			}
		}
	}
	for n := first; n < lower; n++ {
		if v, ok := is(n); ok {
			return v, true
		}
	}
	return zero, false
}

// nodePort returns the node port of one port, 0 for none, and the problem, if any.
func (a *allocator) nodePort(p *v1.ServicePort, key pod.Key, had Allocation) (port uint16, problem string) {
	earlier := had.NodePorts[nameOf(p)]
	if by, taken := a.ports[portKey{p.Protocol, earlier}]; taken && by != key {
		earlier = 0
	}
	if p.NodePort != 0 {
		why := a.whyNotPort(p, key)
		if why == "" {
			return uint16(p.NodePort), ""
		}
		problem = fmt.Sprintf("Invalid value: %d: %s", p.NodePort, why)
	}
	if earlier != 0 || problem != "" {
		if earlier != 0 {
			a.ports[portKey{p.Protocol, earlier}] = key
		}
		return earlier, problem
	}
	first, end := int(a.NodePorts.First), int(a.NodePorts.Last)+1
	port, found := free(first, end, min(max(16, (end-first)/32), 128), key.String()+"/"+nameOf(p), func(n int) (uint16, bool) {
		at := portKey{p.Protocol, uint16(n)}
		_, taken := a.ports[at]
		return at.port, !taken && !a.fronts[at]
	})
	if !found {
		return 0, "failed to allocate a nodePort: range is full"
	}
	a.ports[portKey{p.Protocol, port}] = key
	return port, ""
}

// whyNotPort returns the reason why a Service cannot have the node port in its manifest, or "".
func (a *allocator) whyNotPort(p *v1.ServicePort, key pod.Key) string {
	if port := int(p.NodePort); port < int(a.NodePorts.First) || port > int(a.NodePorts.Last) {
		return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", a.NodePorts.First, a.NodePorts.Last)
	}
	if by, taken := a.ports[portKey{p.Protocol, uint16(p.NodePort)}]; taken && by != key {
		return "provided port is already allocated" + owner(by, true)
	}
	return ""
}

// nameOf returns the key of a port in Allocation.NodePorts.
func nameOf(p *v1.ServicePort) string { return string(p.Protocol) + "/" + strconv.Itoa(int(p.Port)) }

// hasClusterIP reports whether a Service has cluster IPs.
func hasClusterIP(s *v1.Service) bool {
	return s.Spec.Type != v1.ServiceTypeExternalName && !isHeadless(s)
}

func isHeadless(s *v1.Service) bool {
	return s.Spec.Type != v1.ServiceTypeExternalName && (s.Spec.ClusterIP == v1.ClusterIPNone || slices.Contains(s.Spec.ClusterIPs, v1.ClusterIPNone))
}

// wantsNodePort reports whether the ports of a Service get node ports.
func wantsNodePort(s *v1.Service) bool {
	switch s.Spec.Type {
	case v1.ServiceTypeNodePort:
		return true
	case v1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts ||
			slices.ContainsFunc(s.Spec.Ports, func(p v1.ServicePort) bool { return p.NodePort != 0 })
	}
	return false
}

// writtenIPs returns the cluster IPs in a manifest.
func writtenIPs(s *v1.Service) []netip.Addr {
	if !hasClusterIP(s) {
		return nil
	}
	all := s.Spec.ClusterIPs
	if len(all) == 0 && s.Spec.ClusterIP != "" {
		all = []string{s.Spec.ClusterIP}
	}
	var out []netip.Addr
	for _, text := range all {
		if ip, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// compareExternal orders external addresses.
func compareExternal(x, y External) int {
	return cmp.Or(x.Addr.Compare(y.Addr), len(x.Sources)-len(y.Sources))
}
