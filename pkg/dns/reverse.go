package dns

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The zones of reverse names.
const (
	reverse4 = "in-addr.arpa."
	reverse6 = "ip6.arpa."
)

// isReverse reports whether a canonical name is below one of these zones.
func isReverse(name string) bool {
	return strings.HasSuffix(name, "."+reverse4) || strings.HasSuffix(name, "."+reverse6)
}

// reverseName returns the reverse name of an address.
func reverseName(ip netip.Addr) string {
	return reverseZone(netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()))
}

// reverseZone returns the reverse zone of a network whose prefix ends between two labels.
func reverseZone(network netip.Prefix) string {
	var labels []string
	raw := network.Addr().AsSlice()
	if network.Addr().Is4() {
		for _, b := range raw[:network.Bits()/8] {
			labels = append(labels, strconv.Itoa(int(b)))
		}
	} else {
		for _, digit := range hex.EncodeToString(raw)[:network.Bits()/4] {
			labels = append(labels, string(digit))
		}
	}
	slices.Reverse(labels)
	zone := reverse6
	if network.Addr().Is4() {
		zone = reverse4
	}
	return strings.Join(append(labels, zone), ".")
}

// reverseNetwork returns the network of a canonical reverse name. ok is false for other names.
func reverseNetwork(name string) (network netip.Prefix, ok bool) {
	if rest, is4 := strings.CutSuffix(name, "."+reverse4); is4 {
		labels := strings.Split(rest, ".")
		var raw [4]byte
		if len(labels) > len(raw) {
			return netip.Prefix{}, false
		}
		slices.Reverse(labels)
		for i, l := range labels {
			n, err := strconv.ParseUint(l, 10, 8)
			if err != nil || strconv.FormatUint(n, 10) != l {
				return netip.Prefix{}, false
			}
			raw[i] = byte(n)
		}
		return netip.PrefixFrom(netip.AddrFrom4(raw), 8*len(labels)), true
	}
	rest, is6 := strings.CutSuffix(name, "."+reverse6)
	labels := strings.Split(rest, ".")
	var raw [16]byte
	if !is6 || len(labels) > 2*len(raw) {
		return netip.Prefix{}, false
	}
	slices.Reverse(labels)
	for i, l := range labels {
		n, err := strconv.ParseUint(l, 16, 4)
		if err != nil || len(l) != 1 {
			return netip.Prefix{}, false
		}
		raw[i/2] |= byte(n) << (4 * (1 - i%2))
	}
	return netip.PrefixFrom(netip.AddrFrom16(raw), 4*len(labels)), true
}

// ownReverse returns the reverse zone of Config.Ranges that contains a name. ok is false if there is
// none. A range whose prefix ends within a label has one zone for each value of that label.
func (z *Zone) ownReverse(name string) (zone string, ok bool) {
	network, ok := reverseNetwork(name)
	if !ok {
		return z.ownBelow(name)
	}
	for _, r := range z.config.Ranges {
		if r.Addr().Is4() != network.Addr().Is4() || network.Bits() < r.Bits() || !r.Contains(network.Addr()) {
			continue
		}
		label := 4
		if r.Addr().Is4() {
			label = 8
		}
		whole := (r.Bits() + label - 1) / label * label
		return reverseZone(netip.PrefixFrom(network.Addr(), min(whole, network.Bits())).Masked()), true
	}
	return "", false
}

// ownBelow does the same as ownReverse for a name whose first labels are not part of an address.
func (z *Zone) ownBelow(name string) (zone string, ok bool) {
	for above := parent(name); isReverse(above); above = parent(above) {
		if _, is := reverseNetwork(above); is {
			return z.ownReverse(above)
		}
	}
	return "", false
}
