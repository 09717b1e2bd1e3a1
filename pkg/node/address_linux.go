package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// resolving is the timeout of the DNS query for the node's own name.
const resolving = 2 * time.Second

// HostIPs returns the node's addresses; pods on the host's network get the first one. With
// --node-ip, it returns those addresses, one or one of each family, which the machine must have;
// 0.0.0.0 and :: stand for any address of their family. Otherwise it searches as the kubelet does:
// the addresses of the node's name, then those of the device of the default route. The last choice
// is the first device that is not a loopback device.
func HostIPs(ctx context.Context, name string, given []string) ([]string, error) {
	own, err := ownIPs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	wish := netip.IPv4Unspecified()
	var all []string
	for _, text := range given {
		ip, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is not an IP address", text)
		case ip.IsUnspecified():
			wish = ip
			continue
		case !slices.Contains(own, ip.Unmap()):
			return nil, fmt.Errorf("node IP %s is on no network device of this machine", ip)
		}
		all = append(all, ip.Unmap().String())
	}
	if len(all) > 0 {
		return all, nil
	}
	ip, err := find(ctx, name, wish, own)
	if err != nil {
		return nil, err
	}
	return []string{ip.String()}, nil
}

// allOwn reports whether all of the addresses are still the machine's.
func allOwn(ips []string) bool {
	own, err := ownIPs()
	return err == nil && !slices.ContainsFunc(ips, func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err != nil || !slices.Contains(own, ip)
	})
}

// find returns one address, of the family of wish if there is one.
func find(ctx context.Context, name string, wish netip.Addr, own []netip.Addr) (netip.Addr, error) {
	if ip, ok := prefer(resolve(ctx, name, own), wish); ok {
		return ip, nil
	}
	if ip, err := utilnet.ResolveBindAddress(net.IP(wish.AsSlice())); err == nil {
		if a, ok := netip.AddrFromSlice(ip); ok && a.Unmap().IsGlobalUnicast() {
			return a.Unmap(), nil
		}
	}
	if ip, ok := prefer(own, wish); ok {
		return ip, nil
	}
	return netip.Addr{}, errors.New("this machine has no address that other machines can reach: set one with --node-ip")
}

// resolve returns which of the machine's addresses a name resolves to; most nodes'
// names are in no DNS.
func resolve(ctx context.Context, name string, own []netip.Addr) []netip.Addr {
	if name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolving)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return slices.DeleteFunc(ips, func(ip netip.Addr) bool { return !slices.Contains(own, ip) })
}

func prefer(ips []netip.Addr, wish netip.Addr) (netip.Addr, bool) {
	if i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Is4() == wish.Is4() }); i >= 0 {
		return ips[i], true
	}
	if len(ips) > 0 {
		return ips[0], true
	}
	return netip.Addr{}, false
}

// ownIPs returns the machine's addresses that others can reach, in the order of its
// devices; those of bridges and tunnels are last, since pods' networks have them. It
// reads the table of addresses once, and of devices only those that have any: every pod
// has a device, and this is asked every few seconds.
func ownIPs() ([]netip.Addr, error) {
	table, err := syscall.NetlinkRIB(syscall.RTM_GETADDR, syscall.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("read devices: %w", err)
	}
	defer unix.Close(fd)
	places := map[uint32]place{}
	var first, last []netip.Addr
	for i := range messages {
		device, ip, ok := addressOf(&messages[i])
		if !ok || !net.IP(ip.AsSlice()).IsGlobalUnicast() {
			continue
		}
		at, known := places[device]
		if !known {
			at = placeOf(fd, device)
			places[device] = at
		}
		switch at {
		case network:
			first = append(first, ip)
		case bridged:
			last = append(last, ip)
		}
	}
	return append(first, last...), nil
}

// addressOf reads an address and its device's number out of a message.
func addressOf(m *syscall.NetlinkMessage) (device uint32, ip netip.Addr, ok bool) {
	if m.Header.Type != syscall.RTM_NEWADDR || len(m.Data) < syscall.SizeofIfAddrmsg {
		return 0, ip, false
	}
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return 0, ip, false
	}
	for _, a := range attributes {
		// A device that leads to one other machine has that one's address too.
		if a.Attr.Type == syscall.IFA_LOCAL || a.Attr.Type == syscall.IFA_ADDRESS && !ok {
			if parsed, fine := netip.AddrFromSlice(a.Value); fine {
				ip, ok = parsed.Unmap(), true
			}
		}
	}
	return binary.NativeEndian.Uint32(m.Data[4:8]), ip, ok
}

// place classifies the addresses of a device.
type place int

const (
	nowhere place = iota // it is down, gone, or the machine's own
	network
	bridged // of a bridge or a tunnel
)

// placeOf looks at a device by its number.
func placeOf(fd int, device uint32) place {
	r, err := unix.NewIfreq("")
	if err != nil {
		return nowhere
	}
	r.SetUint32(device)
	if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, r) != nil {
		return nowhere // it was removed meanwhile
	}
	name := r.Name()
	if r, err = unix.NewIfreq(name); err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r) != nil {
		return nowhere
	}
	flags := r.Uint16()
	switch {
	case flags&unix.IFF_UP == 0 || flags&unix.IFF_LOOPBACK != 0:
		return nowhere
	case isBridge(name):
		return bridged
	}
	return network
}

func isBridge(device string) bool {
	for _, sign := range []string{"bridge", "tun_flags"} {
		if _, err := os.Stat(filepath.Join("/sys/class/net", device, sign)); err == nil {
			return true
		}
	}
	return false
}
