package dns

import (
	"net/netip"
	"slices"
	"strings"
)

// maxUpstreams limits the name servers of a resolver file, as in glibc.
const maxUpstreams = 3

// port is the port of name servers.
const port = 53

// Upstreams returns the name servers of a resolver file, in its order. It leaves out the addresses
// own, since a server must not forward to itself. As in glibc, a file without name servers means the
// name server at 127.0.0.1.
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

// DefaultServer returns the address of the DNS server in a range of Services: the tenth one, as
// with kubeadm. ok is false if the range is too small.
func DefaultServer(services netip.Prefix) (server netip.Addr, ok bool) {
	ip := services.Masked().Addr()
	for range 10 {
		ip = ip.Next()
	}
	return ip, ip.IsValid() && services.Contains(ip)
}
