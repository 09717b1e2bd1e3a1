package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// message is a buffer of netlink messages, one after the other.
type message struct {
	b   []byte
	seq uint32
}

// begin begins a message for nftables, and returns the function that ends it.
func (m *message) begin(kind, flags uint16, family byte) (end func()) {
	return m.start(uint16(unix.NFNL_SUBSYS_NFTABLES)<<8|kind, flags, family, 0)
}

// start begins a message with the header of the netfilter subsystems.
func (m *message) start(kind, flags uint16, family byte, resource uint16) (end func()) {
	end = m.header(kind, flags)
	m.b = append(m.b, family, unix.NFNETLINK_V0)
	m.b = binary.BigEndian.AppendUint16(m.b, resource)
	return end
}

// header begins a message of any kind.
func (m *message) header(kind, flags uint16) (end func()) {
	at := len(m.b)
	m.seq++
	m.b = binary.NativeEndian.AppendUint32(m.b, 0)
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
	m.b = binary.NativeEndian.AppendUint16(m.b, flags|unix.NLM_F_REQUEST)
	m.b = binary.NativeEndian.AppendUint32(m.b, m.seq)
	m.b = binary.NativeEndian.AppendUint32(m.b, 0)
	return func() {
		m.pad()
		binary.NativeEndian.PutUint32(m.b[at:], uint32(len(m.b)-at))
	}
}

func (m *message) pad() {
	for len(m.b)%unix.NLMSG_ALIGNTO != 0 {
		m.b = append(m.b, 0)
	}
}

// bytes adds an attribute.
func (m *message) bytes(kind uint16, data []byte) {
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(unix.SizeofNlAttr+len(data)))
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
	m.b = append(m.b, data...)
	m.pad()
}

func (m *message) text(kind uint16, s string) { m.bytes(kind, append([]byte(s), 0)) }

func (m *message) u32(kind uint16, v uint32) { m.bytes(kind, binary.BigEndian.AppendUint32(nil, v)) }

func (m *message) u64(kind uint16, v uint64) { m.bytes(kind, binary.BigEndian.AppendUint64(nil, v)) }

// nest adds an attribute whose content inner adds.
func (m *message) nest(kind uint16, inner func()) {
	at := len(m.b)
	m.b = append(m.b, 0, 0, 0, 0)
	inner()
	binary.NativeEndian.PutUint16(m.b[at:], uint16(len(m.b)-at))
	binary.NativeEndian.PutUint16(m.b[at+2:], kind|unix.NLA_F_NESTED)
}

// value adds a data attribute with a plain value.
func (m *message) value(kind uint16, data []byte) {
	m.nest(kind, func() { m.bytes(unix.NFTA_DATA_VALUE, data) })
}

// outcome adds the action on the packet as a data attribute, with the chain of a jump or goto.
func (m *message) outcome(kind uint16, code int32, chain string) {
	m.nest(kind, func() {
		m.nest(unix.NFTA_DATA_VERDICT, func() {
			m.u32(unix.NFTA_VERDICT_CODE, uint32(code))
			if chain != "" {
				m.text(unix.NFTA_VERDICT_CHAIN, chain)
			}
		})
	})
}

// attributes calls each for every attribute in b, and ends at the first incomplete one.
func attributes(b []byte, each func(kind uint16, data []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofNlAttr || n > len(b) {
			return
		}
		each(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofNlAttr:n])
		b = b[min((n+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
	}
}

// textOf returns the text of an attribute without its final zero byte.
func textOf(data []byte) string {
	for i, c := range data {
		if c == 0 {
			return string(data[:i])
		}
	}
	return string(data)
}

// reply is one received message.
type reply struct {
	kind      uint16
	seq, port uint32
	body      []byte
}

// replies calls each for every message in b.
func replies(b []byte, each func(r reply)) {
	for len(b) >= unix.SizeofNlMsghdr {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > len(b) {
			return
		}
		each(reply{
			kind: binary.NativeEndian.Uint16(b[4:]), seq: binary.NativeEndian.Uint32(b[8:]), port: binary.NativeEndian.Uint32(b[12:]),
			body: b[unix.SizeofNlMsghdr:n],
		})
		b = b[min((n+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
	}
}
