package nft

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Numbers of the kernel's netlink interface to conntrack.
const (
	subsystemConntrack = 1
	conntrackGet       = 1
	conntrackDelete    = 2

	attrOriginal = 1 // the tuple of packets from the client
	attrReply    = 2 // the tuple of packets from the endpoint
	attrStatus   = 3

	attrAddresses = 1 // of a tuple
	attrProtocol  = 2

	attrSource4, attrSource6   = 1, 3
	attrNumber, attrSourcePort = 1, 2
	statusDestinationNAT       = 1 << 5
	protocolUDP                = 17
)

// forgetDatagrams removes the conntrack entries of UDP connections to endpoints that have left.
// Otherwise, the kernel sends a client's datagrams to the old endpoint as long as the client keeps
// sending.
func (c *conn) forgetDatagrams(gone map[netip.AddrPort]bool) error {
	var originals [][]byte
	var families []byte
	err := c.dump(subsystemConntrack<<8|conntrackGet, func(family byte, attrs []byte) {
		var original []byte
		var reply netip.AddrPort
		translated, datagrams := false, false
		attributes(attrs, func(kind uint16, data []byte) {
			switch kind {
			case attrOriginal:
				original = append([]byte(nil), data...)
			case attrReply:
				reply, datagrams = sourceOf(data)
			case attrStatus:
				translated = len(data) == 4 && binary.BigEndian.Uint32(data)&statusDestinationNAT != 0
			}
		})
		if translated && datagrams && gone[reply] {
			originals, families = append(originals, original), append(families, family)
		}
	})
	if err != nil {
		return err
	}
	for i, tuple := range originals {
		m := &message{seq: c.seq}
		end := m.start(subsystemConntrack<<8|conntrackDelete, unix.NLM_F_ACK, families[i], 0)
		m.bytes(attrOriginal|unix.NLA_F_NESTED, tuple)
		end()
		c.seq = m.seq
		if err := c.send(m.b); err != nil {
			return err
		}
		_ = c.acknowledge(m.seq-1, m.seq) // the entry may have expired
	}
	return nil
}

// sourceOf returns the source of a tuple, and whether its protocol is UDP.
func sourceOf(tuple []byte) (at netip.AddrPort, datagrams bool) {
	var addr netip.Addr
	port := uint16(0)
	attributes(tuple, func(kind uint16, data []byte) {
		attributes(data, func(inner uint16, value []byte) {
			switch {
			case kind == attrAddresses && (inner == attrSource4 || inner == attrSource6):
				addr, _ = netip.AddrFromSlice(value)
			case kind == attrProtocol && inner == attrNumber && len(value) == 1:
				datagrams = value[0] == protocolUDP
			case kind == attrProtocol && inner == attrSourcePort && len(value) == 2:
				port = binary.BigEndian.Uint16(value)
			}
		})
	})
	return netip.AddrPortFrom(addr, port), datagrams
}
