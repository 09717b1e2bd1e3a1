package process

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// label marks an IPv4 address as nodectl's.
const label = "lo:nodectl"

// usage describes how this machine uses an address.
type usage struct {
	ours      bool
	addresses []assigned
	routes    []netip.Prefix // of the main table, without default routes
}

// assigned is an address that an interface has.
type assigned struct {
	network netip.Prefix
	device  string
	label   string
}

// conflict returns an error if the address must not be added to this machine. services is the range
// of cluster IPs.
func (u usage) conflict(address netip.Addr, services netip.Prefix) error {
	for _, a := range u.addresses {
		switch {
		case a.network.Addr() == address:
			return fmt.Errorf("%s, the address of the DNS server, is already an address of the interface %s", address, a.device)
		case a.network.Contains(address):
			return fmt.Errorf("%s, the address of the DNS server, is in the network %s of the interface %s", address, a.network.Masked(), a.device)
		}
	}
	for _, r := range u.routes {
		if r.Contains(address) && r.Bits() >= services.Bits() {
			return fmt.Errorf("%s, the address of the DNS server, is in the network %s, to which this machine has a route", address, r)
		}
	}
	return nil
}

// widerRoute returns a route to a network that contains the address, or "". If conflict returns nil,
// that network is larger than the range of cluster IPs.
func (u usage) widerRoute(address netip.Addr) string {
	for _, r := range u.routes {
		if r.Contains(address) {
			return r.String()
		}
	}
	return ""
}

// usageOf returns how this machine uses an address.
func usageOf(address netip.Addr) (u usage, err error) {
	if u.addresses, err = assignedAddresses(); err != nil {
		return u, err
	}
	for _, a := range u.addresses {
		// IPv6 addresses have no label. A single address on the loopback interface counts as ours.
		if a.network.Addr() == address && a.network.IsSingleIP() && a.device == "lo" && (a.label == label || address.Is6()) {
			u.ours = true
		}
	}
	u.routes, err = routes(family(address))
	return u, err
}

// assignedAddresses returns the addresses of all interfaces.
func assignedAddresses() ([]assigned, error) {
	messages, err := dump(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("read the addresses of this machine: %w", err)
	}
	devices, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	names := make(map[int]string)
	for _, d := range devices {
		names[d.Index] = d.Name
	}
	var all []assigned
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, err
		}
		a := assigned{device: names[int(binary.NativeEndian.Uint32(m.Data[4:]))]}
		var local, peer netip.Addr
		for _, at := range attributes {
			switch at.Attr.Type {
			case unix.IFA_LOCAL:
				local, _ = netip.AddrFromSlice(at.Value)
			case unix.IFA_ADDRESS:
				peer, _ = netip.AddrFromSlice(at.Value)
			case unix.IFA_LABEL:
				a.label = unix.ByteSliceToString(at.Value)
			}
		}
		if !local.IsValid() { // an IPv6 address has only IFA_ADDRESS
			local = peer
		}
		if a.network = netip.PrefixFrom(local, int(m.Data[1])); a.network.IsValid() {
			all = append(all, a)
		}
	}
	return all, nil
}

// routes returns the networks of the main routing table. It leaves out routes over the loopback
// interface, such as the route to the range of Services.
func routes(family int) ([]netip.Prefix, error) {
	messages, err := dump(unix.RTM_GETROUTE, family)
	if err != nil {
		return nil, fmt.Errorf("read the routes of this machine: %w", err)
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return nil, err
	}
	var all []netip.Prefix
	for _, m := range messages {
		// struct rtmsg: family, destination length, …, table (4), …, type (7)
		if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg || m.Data[4] != unix.RT_TABLE_MAIN || m.Data[7] != unix.RTN_UNICAST {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, err
		}
		var to netip.Addr
		device := 0
		for _, at := range attributes {
			switch at.Attr.Type {
			case unix.RTA_DST:
				to, _ = netip.AddrFromSlice(at.Value)
			case unix.RTA_OIF:
				device = int(binary.NativeEndian.Uint32(at.Value))
			}
		}
		if to.IsValid() && device != lo.Index {
			all = append(all, netip.PrefixFrom(to, int(m.Data[1])))
		}
	}
	return all, nil
}

// dump reads a table of the kernel.
func dump(kind, family int) ([]syscall.NetlinkMessage, error) {
	table, err := syscall.NetlinkRIB(kind, family)
	if err != nil {
		return nil, err
	}
	return syscall.ParseNetlinkMessage(table)
}

// changeAddress adds an address to the loopback interface, or removes it.
func changeAddress(address netip.Addr, add bool) error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	kind, flags, verb := uint16(unix.RTM_NEWADDR), uint16(unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL), "add"
	if !add {
		kind, flags, verb = unix.RTM_DELADDR, unix.NLM_F_REQUEST|unix.NLM_F_ACK, "remove"
	}
	body := []byte{byte(family(address)), byte(address.BitLen()), 0, unix.RT_SCOPE_UNIVERSE}
	if address.Is6() {
		body[2] = unix.IFA_F_NODAD
	}
	body = binary.NativeEndian.AppendUint32(body, uint32(lo.Index))
	raw := address.AsSlice()
	body = attribute(attribute(body, unix.IFA_LOCAL, raw), unix.IFA_ADDRESS, raw)
	if address.Is4() {
		body = attribute(body, unix.IFA_LABEL, append([]byte(label), 0))
	}
	if err := ask(kind, flags, body); err != nil {
		return fmt.Errorf("%s address %s of the loopback interface: %w", verb, address, err)
	}
	return nil
}

// attribute appends an attribute of a netlink message.
func attribute(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(unix.SizeofRtAttr+len(value)))
	to = binary.NativeEndian.AppendUint16(to, kind)
	to = append(to, value...)
	for len(to)%unix.NLMSG_ALIGNTO != 0 {
		to = append(to, 0)
	}
	return to
}

// ask sends one netlink message and waits for the kernel's answer.
func ask(kind, flags uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, flags)
	msg = append(msg, 1, 0, 0, 0, 0, 0, 0, 0) // sequence and sender
	if err := unix.Sendto(fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	answers, err := syscall.ParseNetlinkMessage(buf[:n])
	if err != nil || len(answers) == 0 || answers[0].Header.Type != unix.NLMSG_ERROR || len(answers[0].Data) < 4 {
		return fmt.Errorf("read the kernel's answer: %w", err)
	}
	if code := -int32(binary.NativeEndian.Uint32(answers[0].Data)); code != 0 {
		return syscall.Errno(code)
	}
	return nil
}
