package nft

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// table writes the messages about one table.
type table struct {
	*message
	name   string
	family byte
	sets   uint32 // the number of sets in the transaction so far
}

func (t *table) v6() bool { return t.family == unix.NFPROTO_IPV6 }

// familyOf returns the number of a family.
func familyOf(v6 bool) byte {
	if v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// replace removes the table if it exists, and creates it without content.
func (t *table) replace() {
	t.create()
	end := t.begin(unix.NFT_MSG_DELTABLE, 0, t.family)
	t.text(unix.NFTA_TABLE_NAME, t.name)
	end()
	t.create()
}

func (t *table) create() {
	end := t.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t.family)
	t.text(unix.NFTA_TABLE_NAME, t.name)
	end()
}

// The actions on a packet that package unix lacks.
const (
	packetDrop   = 0
	packetAccept = 1
)

// hook is the place at which the kernel calls a base chain.
type hook struct {
	kind     string // filter, nat
	number   uint32
	priority int32
}

// chain makes a chain; with a hook, the kernel calls it.
func (t *table) chain(name string, at *hook) {
	end := t.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t.family)
	t.text(unix.NFTA_CHAIN_TABLE, t.name)
	t.text(unix.NFTA_CHAIN_NAME, name)
	if at != nil {
		t.nest(unix.NFTA_CHAIN_HOOK, func() {
			t.u32(unix.NFTA_HOOK_HOOKNUM, at.number)
			t.u32(unix.NFTA_HOOK_PRIORITY, uint32(at.priority))
		})
		t.u32(unix.NFTA_CHAIN_POLICY, packetAccept)
		t.text(unix.NFTA_CHAIN_TYPE, at.kind)
	}
	end()
}

// deleteChain removes a chain with its rules.
func (t *table) deleteChain(name string) {
	end := t.begin(unix.NFT_MSG_DELCHAIN, 0, t.family)
	t.text(unix.NFTA_CHAIN_TABLE, t.name)
	t.text(unix.NFTA_CHAIN_NAME, name)
	end()
}

// flushChain removes the rules of a chain.
func (t *table) flushChain(name string) {
	end := t.begin(unix.NFT_MSG_DELRULE, 0, t.family)
	t.text(unix.NFTA_RULE_TABLE, t.name)
	t.text(unix.NFTA_RULE_CHAIN, name)
	end()
}

// rule adds a rule to a chain; inner adds its expressions.
func (t *table) rule(chain string, inner func(e expressions)) {
	end := t.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.family)
	t.text(unix.NFTA_RULE_TABLE, t.name)
	t.text(unix.NFTA_RULE_CHAIN, chain)
	t.nest(unix.NFTA_RULE_EXPRESSIONS, func() { inner(expressions{t}) })
	end()
}

// The types of keys and data by which nft prints them. In a concatenation, each type takes 6 bits.
const (
	typeInteger = 4
	typeIPv4    = 7
	typeIPv6    = 8
	typeProto   = 12
	typeService = 13
)

func concat(types ...uint32) (out uint32) {
	for _, t := range types {
		out = out<<6 | t
	}
	return out
}

// set describes a set or a map that newSet creates.
type set struct {
	name              string
	keyType, keyLen   uint32
	dataType, dataLen uint32 // of a map to plain values
	toChains          bool
	anonymous         bool   // the set belongs to the next rule
	timeout           uint64 // of elements that packets add, in milliseconds
	size              uint32 // how many elements packets may add
}

// newSet makes a set and returns its number in the transaction.
func (t *table) newSet(s set) uint32 {
	t.sets++
	id := t.sets
	flags := uint32(0)
	if s.anonymous {
		flags |= unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT
	}
	if s.toChains || s.dataLen > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.timeout > 0 {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	end := t.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t.family)
	t.text(unix.NFTA_SET_TABLE, t.name)
	t.text(unix.NFTA_SET_NAME, s.name)
	t.u32(unix.NFTA_SET_FLAGS, flags)
	t.u32(unix.NFTA_SET_KEY_TYPE, s.keyType)
	t.u32(unix.NFTA_SET_KEY_LEN, s.keyLen)
	switch {
	case s.toChains:
		t.u32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	case s.dataLen > 0:
		t.u32(unix.NFTA_SET_DATA_TYPE, s.dataType)
		t.u32(unix.NFTA_SET_DATA_LEN, s.dataLen)
	}
	t.u32(unix.NFTA_SET_ID, id)
	if s.timeout > 0 {
		t.u64(unix.NFTA_SET_TIMEOUT, s.timeout)
		t.nest(unix.NFTA_SET_DESC, func() { t.u32(unix.NFTA_SET_DESC_SIZE, s.size) })
	}
	end()
	return id
}

func (t *table) deleteSet(name string) {
	end := t.begin(unix.NFT_MSG_DELSET, 0, t.family)
	t.text(unix.NFTA_SET_TABLE, t.name)
	t.text(unix.NFTA_SET_NAME, name)
	end()
}

// element is one element of a set: with a chain in a map to chains, with data in a map to values.
type element struct{ key, chain, data string }

// mostElements limits the bytes of elements in one message: the length of an attribute has 16 bits.
const mostElements = 48 << 10

// elements adds elements to a set, or deletes them. id is the number of a set that this transaction
// created, 0 for an older set.
func (t *table) elements(kind uint16, name string, id uint32, all []element) {
	flags := uint16(0)
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	for len(all) > 0 {
		end := t.begin(kind, flags, t.family)
		t.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
		t.text(unix.NFTA_SET_ELEM_LIST_SET, name)
		if id != 0 {
			t.u32(unix.NFTA_SET_ELEM_LIST_SET_ID, id)
		}
		t.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			first := len(t.b)
			for len(all) > 0 && len(t.b)-first < mostElements {
				t.element(all[0])
				all = all[1:]
			}
		})
		end()
	}
}

func (t *table) element(e element) {
	t.nest(unix.NFTA_LIST_ELEM, func() {
		t.value(unix.NFTA_SET_ELEM_KEY, []byte(e.key))
		switch {
		case e.chain != "":
			t.outcome(unix.NFTA_SET_ELEM_DATA, unix.NFT_GOTO, e.chain)
		case e.data != "":
			t.value(unix.NFTA_SET_ELEM_DATA, []byte(e.data))
		}
	})
}

// sortedElements returns the elements of a map in the order of their keys.
func sortedElements(of map[string]string) []element {
	out := make([]element, 0, len(of))
	for _, key := range slices.Sorted(maps.Keys(of)) {
		out = append(out, element{key: key, chain: of[key]})
	}
	return out
}

// expressions adds the expressions of one rule.
type expressions struct{ *table }

func (e expressions) add(name string, inner func()) {
	e.nest(unix.NFTA_LIST_ELEM, func() {
		e.text(unix.NFTA_EXPR_NAME, name)
		e.nest(unix.NFTA_EXPR_DATA, inner)
	})
}

// Registers have 4 bytes; an IPv6 address takes four registers.
const firstRegister = unix.NFT_REG32_00

// behind returns the nth register after an address that begins in the first register.
func (e expressions) behind(n uint32) uint32 {
	if e.v6() {
		return firstRegister + 3 + n
	}
	return firstRegister + n
}

func (e expressions) addrLen() uint32 {
	if e.v6() {
		return 16
	}
	return 4
}

// payload loads a part of the packet.
func (e expressions) payload(base, offset, length, register uint32) {
	e.add("payload", func() {
		e.u32(unix.NFTA_PAYLOAD_DREG, register)
		e.u32(unix.NFTA_PAYLOAD_BASE, base)
		e.u32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.u32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

// source and destination load an address of the packet.
func (e expressions) source(register uint32) {
	offset := uint32(12)
	if e.v6() {
		offset = 8
	}
	e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, e.addrLen(), register)
}

func (e expressions) destination(register uint32) {
	offset := uint32(16)
	if e.v6() {
		offset = 24
	}
	e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, e.addrLen(), register)
}

func (e expressions) port(register uint32) {
	e.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, register)
}

func (e expressions) meta(key, register uint32) {
	e.add("meta", func() {
		e.u32(unix.NFTA_META_DREG, register)
		e.u32(unix.NFTA_META_KEY, key)
	})
}

// compare continues only if the first register is equal, or not equal, to data.
func (e expressions) compare(op uint32, data []byte) {
	e.add("cmp", func() {
		e.u32(unix.NFTA_CMP_SREG, firstRegister)
		e.u32(unix.NFTA_CMP_OP, op)
		e.value(unix.NFTA_CMP_DATA, data)
	})
}

// mask clears bits of the first register.
func (e expressions) mask(bits []byte) {
	e.add("bitwise", func() {
		e.u32(unix.NFTA_BITWISE_SREG, firstRegister)
		e.u32(unix.NFTA_BITWISE_DREG, firstRegister)
		e.u32(unix.NFTA_BITWISE_LEN, uint32(len(bits)))
		e.value(unix.NFTA_BITWISE_MASK, bits)
		e.value(unix.NFTA_BITWISE_XOR, make([]byte, len(bits)))
	})
}

// in continues only if a network contains the address in the first register.
func (e expressions) in(p netip.Prefix) {
	bits := make([]byte, e.addrLen())
	for i := range p.Bits() {
		bits[i/8] |= 0x80 >> (i % 8)
	}
	e.mask(bits)
	e.compare(unix.NFT_CMP_EQ, p.Masked().Addr().AsSlice())
}

// notDevice continues only if the packet came in, or goes out, by another device.
func (e expressions) notDevice(key uint32, name string) {
	var padded [unix.IFNAMSIZ]byte
	copy(padded[:], name)
	e.meta(key, firstRegister)
	e.compare(unix.NFT_CMP_NEQ, padded[:])
}

// lookup looks up the registers in a set. It stores the data in the register into, unless into is
// negative. Register 0 is the action on the packet.
func (e expressions) lookup(name string, id uint32, into int) {
	e.add("lookup", func() {
		e.text(unix.NFTA_LOOKUP_SET, name)
		e.u32(unix.NFTA_LOOKUP_SREG, firstRegister)
		if into >= 0 {
			e.u32(unix.NFTA_LOOKUP_DREG, uint32(into))
		}
		if id != 0 {
			e.u32(unix.NFTA_LOOKUP_SET_ID, id)
		}
	})
}

const noData = -1

// then ends a rule with the action on the packet.
func (e expressions) then(code int32, chain string) {
	e.add("immediate", func() {
		e.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.outcome(unix.NFTA_IMMEDIATE_DATA, code, chain)
	})
}

// load stores a value in a register.
func (e expressions) load(register uint32, data []byte) {
	e.add("immediate", func() {
		e.u32(unix.NFTA_IMMEDIATE_DREG, register)
		e.value(unix.NFTA_IMMEDIATE_DATA, data)
	})
}

// random stores a number below n in the first register.
func (e expressions) random(n int) {
	e.add("numgen", func() {
		e.u32(unix.NFTA_NG_DREG, firstRegister)
		e.u32(unix.NFTA_NG_MODULUS, uint32(n))
		e.u32(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)
	})
}

// translate sends the connection to the address and port in the registers.
func (e expressions) translate() {
	e.add("nat", func() {
		e.u32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		e.u32(unix.NFTA_NAT_FAMILY, uint32(e.family))
		e.u32(unix.NFTA_NAT_REG_ADDR_MIN, firstRegister)
		e.u32(unix.NFTA_NAT_REG_PROTO_MIN, e.behind(1))
	})
}

// masquerade replaces the client's address by the node's.
func (e expressions) masquerade() {
	e.add("masq", func() { e.u32(unix.NFTA_MASQ_FLAGS, unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY) })
}

// isNew continues only for the packets that begin a connection.
func (e expressions) isNew() { e.conntrack(unix.NFT_CT_STATE, 1<<3) } // NF_CT_STATE_BIT(IP_CT_NEW) of the kernel

// isInvalid continues only for the packets that belong to no connection.
func (e expressions) isInvalid() { e.conntrack(unix.NFT_CT_STATE, 1<<0) } // NF_CT_STATE_INVALID_BIT of the kernel

// isTranslated continues only if the destination of the connection was translated.
func (e expressions) isTranslated() { e.conntrack(unix.NFT_CT_STATUS, 1<<5) } // IPS_DST_NAT of the kernel

// conntrack continues only if a field of the connection has a bit.
func (e expressions) conntrack(field, bit uint32) {
	e.add("ct", func() {
		e.u32(unix.NFTA_CT_DREG, firstRegister)
		e.u32(unix.NFTA_CT_KEY, field)
	})
	e.mask(binary.NativeEndian.AppendUint32(nil, bit))
	e.compare(unix.NFT_CMP_NEQ, make([]byte, 4))
}

// isLocal continues only if the destination is an address of the node.
func (e expressions) isLocal() { e.local(unix.NFT_CMP_EQ) }

// isElsewhere continues only if the destination is not an address of the node.
func (e expressions) isElsewhere() { e.local(unix.NFT_CMP_NEQ) }

func (e expressions) local(op uint32) {
	e.add("fib", func() {
		e.u32(unix.NFTA_FIB_DREG, firstRegister)
		e.u32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
		e.u32(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)
	})
	e.compare(op, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
}

// reject refuses the connection.
func (e expressions) reject(kind uint32) {
	const portUnreachable, portUnreachable6 = 3, 4
	code := byte(portUnreachable)
	if e.v6() {
		code = portUnreachable6
	}
	e.add("reject", func() {
		e.u32(unix.NFTA_REJECT_TYPE, kind)
		e.bytes(unix.NFTA_REJECT_ICMP_CODE, []byte{code})
	})
}

// remember adds the client to a set.
func (e expressions) remember(name string) {
	e.source(firstRegister)
	e.add("dynset", func() {
		e.text(unix.NFTA_DYNSET_SET_NAME, name)
		e.u32(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
		e.u32(unix.NFTA_DYNSET_SREG_KEY, firstRegister)
	})
}
