package dns

import (
	"net/netip"
	"slices"
	"strings"
)

// maxUpstreams is how many name servers of a resolver file are used, as by glibc.
const maxUpstreams = 3

// Port of name servers.
const port = 53

// Upstreams returns the name servers of a resolver file, in its order, without own: a server that
// asks itself never ends. A file without name servers means the one of this machine, as for
// glibc, unless that is an own one.
func Upstreams(file string, own []netip.Addr) []netip.AddrPort {
	var found []netip.AddrPort
	named := 0
	add := func(ip netip.Addr) {
		named++
		to := netip.AddrPortFrom(ip, port)
		if named > maxUpstreams || slices.Contains(own, ip) || ip.IsUnspecified() || slices.Contains(found, to) {
			return
		}
		found = append(found, to)
	}
	for line := range strings.Lines(file) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if ip, err := netip.ParseAddr(words[1]); err == nil {
			add(ip.Unmap())
		}
	}
	if named == 0 {
		add(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return found
}

// DefaultServer returns the address of the name server in a range of Services, the tenth, as by
// kubeadm. ok is false for a range that is too small.
func DefaultServer(services netip.Prefix) (server netip.Addr, ok bool) {
	ip := services.Masked().Addr()
	for range 10 {
		ip = ip.Next()
	}
	return ip, ip.IsValid() && services.Contains(ip)
}
