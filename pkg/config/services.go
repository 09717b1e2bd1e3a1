package config

import (
	"cmp"
	"fmt"
	"net/netip"
)

// DefaultServiceCIDR is the network of cluster IPs.
const DefaultServiceCIDR = "10.96.0.0/16"

// DefaultDomain is the domain of the names that the node's own DNS server answers.
const DefaultDomain = "cluster.local"

// OwnDNS reports whether the node answers the names of its Services itself.
func (c Config) OwnDNS() bool {
	return c.DNS && c.Kubeconfig == "" && c.BootstrapKubeconfig == "" && len(c.ClusterDNS) == 0
}

// PodDomain returns the domain of the full names of pods: that of the cluster, or the one of the
// node's own DNS server. It may be "", as with the kubelet.
func (c Config) PodDomain() string {
	if c.OwnDNS() {
		return cmp.Or(c.ClusterDomain, DefaultDomain)
	}
	return c.ClusterDomain
}

// ServiceNetworks returns the networks of cluster IPs. The first one is the default of Services.
func (c Config) ServiceNetworks() []netip.Prefix {
	var out []netip.Prefix
	for _, v := range c.ServiceCIDR {
		if p, err := netip.ParsePrefix(v); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// serviceNetworks returns the problem of the networks of cluster IPs, "" for none.
func serviceNetworks(list []string, pods string) string {
	seen := map[bool]bool{}
	for _, v := range list {
		p, err := netip.ParsePrefix(v)
		switch {
		case err != nil || p != p.Masked():
			return fmt.Sprintf("%q is not a network in CIDR notation, such as %s", v, DefaultServiceCIDR)
		case p.Addr().BitLen()-p.Bits() < 3:
			return fmt.Sprintf("%q has too few addresses", v)
		case seen[p.Addr().Is6()]:
			return fmt.Sprintf("%q is a second network of its family", v)
		}
		seen[p.Addr().Is6()] = true
		if of, err := netip.ParsePrefix(pods); err == nil && of.Overlaps(p) {
			return fmt.Sprintf("%q overlaps the pod network %s", v, pods)
		}
	}
	return ""
}

// podNetwork returns the pod network, which must not overlap the network of Services; "" in a
// cluster, which has its own Services.
func (c Config) podNetwork() string {
	if c.Kubeconfig != "" {
		return ""
	}
	return c.PodCIDR
}
