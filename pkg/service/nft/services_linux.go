package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The fixed chains of a table of Services.
const (
	chainDispatch = "dispatch" // finds the chain of a Service
	chainRefusals = "refusals" // finds connections to refuse
	chainRefuse   = "refuse"
	chainInvalid  = "invalid" // drops packets of endpoints that conntrack does not translate
)

// base writes the fixed part of a table of Services.
func (t *table) base() {
	addr, length := uint32(typeIPv4), uint32(4)
	if t.v6() {
		addr, length = typeIPv6, 16
	}
	t.newSet(set{name: setServices, keyType: concat(addr, typeProto, typeService), keyLen: length + 8, toChains: true})
	t.newSet(set{name: setNodePorts, keyType: concat(typeProto, typeService), keyLen: 8, toChains: true})
	t.newSet(set{name: setHairpin, keyType: concat(addr, addr), keyLen: 2 * length})
	t.newSet(set{name: setClosed, keyType: concat(addr, typeProto, typeService), keyLen: length + 8})
	t.newSet(set{name: setClosedPorts, keyType: concat(typeProto, typeService), keyLen: 8})
	for _, name := range []string{chainRange, chainLinks, chainLoopback, chainDispatch, chainRefusals, chainRefuse, chainInvalid} {
		t.chain(name, nil)
	}
	t.dispatch()
	t.refusals()
	t.invalid()
	t.chain("nat-prerouting", &hook{"nat", unix.NF_INET_PRE_ROUTING, -100})
	t.chain("nat-output", &hook{"nat", unix.NF_INET_LOCAL_OUT, -100})
	for _, from := range []string{"nat-prerouting", "nat-output"} {
		t.rule(from, func(e expressions) { e.then(unix.NFT_JUMP, chainDispatch) })
	}
	t.chain("filter-input", &hook{"filter", unix.NF_INET_LOCAL_IN, 0})
	t.chain("filter-forward", &hook{"filter", unix.NF_INET_FORWARD, 0})
	t.chain("filter-output", &hook{"filter", unix.NF_INET_LOCAL_OUT, 0})
	for _, from := range []string{"filter-input", "filter-forward"} {
		t.rule(from, func(e expressions) {
			e.isInvalid()
			e.then(unix.NFT_JUMP, chainInvalid)
		})
	}
	for _, from := range []string{"filter-input", "filter-forward", "filter-output"} {
		t.rule(from, func(e expressions) {
			e.isNew()
			e.then(unix.NFT_JUMP, chainRefusals)
		})
	}
	t.postrouting()
}

// frontend loads protocol and port into the registers after an address.
func (e expressions) frontend(register uint32) {
	e.meta(unix.NFT_META_L4PROTO, register)
	e.port(register + 1)
}

// dispatch sends new connections to the chains of Services.
func (t *table) dispatch() {
	t.rule(chainDispatch, func(e expressions) {
		e.destination(firstRegister)
		e.frontend(e.behind(1))
		e.lookup(setServices, 0, unix.NFT_REG_VERDICT)
	})
	if t.v6() {
		t.rule(chainDispatch, func(e expressions) { e.then(unix.NFT_JUMP, chainLoopback) })
	}
	t.rule(chainDispatch, func(e expressions) {
		e.isLocal()
		e.frontend(firstRegister)
		e.lookup(setNodePorts, 0, unix.NFT_REG_VERDICT)
	})
}

// refusals refuses new connections to Services without endpoints.
func (t *table) refusals() {
	t.rule(chainRefusals, func(e expressions) {
		e.destination(firstRegister)
		e.frontend(e.behind(1))
		e.lookup(setClosed, 0, noData)
		e.then(unix.NFT_GOTO, chainRefuse)
	})
	t.rule(chainRefusals, func(e expressions) {
		e.frontend(firstRegister)
		e.lookup(setClosedPorts, 0, noData)
		e.isLocal()
		e.then(unix.NFT_GOTO, chainRefuse)
	})
	t.rule(chainRefusals, func(e expressions) { e.then(unix.NFT_JUMP, chainRange) })
	t.rule(chainRefuse, func(e expressions) {
		e.meta(unix.NFT_META_L4PROTO, firstRegister)
		e.compare(unix.NFT_CMP_EQ, []byte{unix.IPPROTO_TCP})
		e.reject(unix.NFT_REJECT_TCP_RST)
	})
	t.rule(chainRefuse, func(e expressions) { e.reject(unix.NFT_REJECT_ICMP_UNREACH) })
}

// invalid drops TCP packets of endpoints that conntrack does not recognise, such as those outside of
// the window. It does not translate them: the client would get them from the address of the endpoint,
// and would reset the connection of the endpoint. kube-proxy drops them, too, in its mode iptables.
func (t *table) invalid() {
	t.rule(chainInvalid, func(e expressions) {
		e.meta(unix.NFT_META_L4PROTO, firstRegister)
		e.compare(unix.NFT_CMP_EQ, []byte{unix.IPPROTO_TCP})
		e.source(firstRegister)
		e.source(e.behind(1))
		e.lookup(setHairpin, 0, noData)
		e.then(packetDrop, "")
	})
}

// postrouting masquerades connections whose replies would not come back through the node:
// connections of a pod to itself, within one of the Links, and from a loopback address. All other
// connections keep the client's address.
func (t *table) postrouting() {
	const chain, translated = "nat-postrouting", "masquerade"
	t.chain(translated, nil)
	t.rule(translated, func(e expressions) {
		e.source(firstRegister)
		e.destination(e.behind(1))
		e.lookup(setHairpin, 0, noData)
		e.masquerade()
	})
	own := loopback()
	if t.v6() {
		own = loopback6()
	}
	t.rule(translated, func(e expressions) {
		e.source(firstRegister)
		e.in(own)
		e.notDevice(unix.NFT_META_OIFNAME, "lo")
		e.masquerade()
	})
	t.rule(translated, func(e expressions) { e.then(unix.NFT_JUMP, chainLinks) })
	t.chain(chain, &hook{"nat", unix.NF_INET_POST_ROUTING, 100})
	t.rule(chain, func(e expressions) {
		e.isTranslated()
		e.then(unix.NFT_JUMP, translated)
	})
}

// guardRules is the number of rules in the table of the guard.
const guardRules = 2

// guard writes the table that protects loopback addresses. Host ports and node ports on 127.0.0.1
// need the sysctl route_localnet. With it, the kernel would accept packets from pods and the
// network whose source or destination is a loopback address (CVE-2020-8558).
func (t *table) guard() {
	const chain = "prerouting"
	t.chain(chain, &hook{"filter", unix.NF_INET_PRE_ROUTING, -300})
	for _, load := range []func(expressions){
		func(e expressions) { e.destination(firstRegister) },
		func(e expressions) { e.source(firstRegister) },
	} {
		t.rule(chain, func(e expressions) {
			e.notDevice(unix.NFT_META_IIFNAME, "lo")
			load(e)
			e.in(loopback())
			e.then(packetDrop, "")
		})
	}
}

// change writes the messages of one change.
func (t *table) change(o op) {
	switch o.kind {
	case addAffinity:
		addr, length := uint32(typeIPv4), uint32(4)
		if t.v6() {
			addr, length = typeIPv6, 16
		}
		t.newSet(set{name: o.name, keyType: addr, keyLen: length, timeout: uint64(o.clients.timeout.Milliseconds()), size: uint32(o.clients.size)})
	case addChain:
		t.chain(o.name, nil)
	case flushChain:
		t.flushChain(o.name)
	case addRule:
		t.addRule(o.name, o.rule)
	case deleteElements:
		t.elements(unix.NFT_MSG_DELSETELEM, o.name, 0, withoutData(sortedElements(o.elements)))
	case addElements:
		t.elements(unix.NFT_MSG_NEWSETELEM, o.name, 0, sortedElements(o.elements))
	case deleteChain:
		t.deleteChain(o.name)
	case deleteAffinity:
		t.deleteSet(o.name)
	}
}

// withoutData removes the chains from elements: a deletion needs only the keys.
func withoutData(all []element) []element {
	for i := range all {
		all[i].chain = ""
	}
	return all
}

// addRule writes a rule of the content of a table.
func (t *table) addRule(chain string, r rule) {
	switch r.do {
	case toBackend:
		t.toBackend(chain, r.backends)
	case toChain:
		t.toChain(chain, r.chains)
	case toRemembered:
		t.rule(chain, func(e expressions) {
			e.source(firstRegister)
			e.lookup(r.set, 0, noData)
			e.then(unix.NFT_GOTO, r.chains[0])
		})
	case remember:
		t.rule(chain, func(e expressions) { e.remember(r.set) })
	case admit:
		t.rule(chain, func(e expressions) {
			e.source(firstRegister)
			e.in(r.network)
			e.then(unix.NFT_GOTO, r.chains[0])
		})
	case drop:
		t.rule(chain, func(e expressions) { e.then(packetDrop, "") })
	case refuse:
		t.rule(chain, func(e expressions) {
			e.destination(firstRegister)
			e.in(r.network)
			e.isElsewhere() // the node itself may have an address of the range
			e.then(unix.NFT_GOTO, chainRefuse)
		})
	case stay:
		t.rule(chain, func(e expressions) {
			e.destination(firstRegister)
			e.in(r.network)
			e.then(packetAccept, "")
		})
	case masquerade:
		t.rule(chain, func(e expressions) {
			e.source(firstRegister)
			e.in(r.network)
			e.destination(firstRegister)
			e.in(r.network)
			e.masquerade()
		})
	}
}

const anonymousMap = "__map%d" // the kernel replaces %d

// toBackend sends connections to one of these endpoints.
func (t *table) toBackend(chain string, backends []netip.AddrPort) {
	if len(backends) == 1 {
		t.rule(chain, func(e expressions) {
			e.load(firstRegister, backends[0].Addr().AsSlice())
			e.load(e.behind(1), binary.BigEndian.AppendUint16(nil, backends[0].Port()))
			e.translate()
		})
		return
	}
	addr, length := uint32(typeIPv4), uint32(4)
	if t.v6() {
		addr, length = typeIPv6, 16
	}
	id := t.newSet(set{name: anonymousMap, keyType: typeInteger, keyLen: 4, dataType: concat(addr, typeService), dataLen: length + 4, anonymous: true})
	all := make([]element, len(backends))
	for i, b := range backends {
		data := binary.BigEndian.AppendUint16(b.Addr().AsSlice(), b.Port())
		all[i] = element{key: numberKey(i), data: string(append(data, 0, 0))}
	}
	t.elements(unix.NFT_MSG_NEWSETELEM, anonymousMap, id, all)
	t.rule(chain, func(e expressions) {
		e.random(len(backends))
		e.lookup(anonymousMap, id, firstRegister)
		e.translate()
	})
}

// toChain continues in one of these chains.
func (t *table) toChain(chain string, chains []string) {
	if len(chains) == 1 {
		t.rule(chain, func(e expressions) { e.then(unix.NFT_GOTO, chains[0]) })
		return
	}
	id := t.newSet(set{name: anonymousMap, keyType: typeInteger, keyLen: 4, toChains: true, anonymous: true})
	all := make([]element, len(chains))
	for i, to := range chains {
		all[i] = element{key: numberKey(i), chain: to}
	}
	t.elements(unix.NFT_MSG_NEWSETELEM, anonymousMap, id, all)
	t.rule(chain, func(e expressions) {
		e.random(len(chains))
		e.lookup(anonymousMap, id, unix.NFT_REG_VERDICT)
	})
}

// numberKey returns a number in the form of nftables' numgen.
func numberKey(i int) string { return string(binary.NativeEndian.AppendUint32(nil, uint32(i))) }

// String returns the name of a table in errors.
func (t *table) String() string {
	if t.v6() {
		return fmt.Sprintf("table ip6 %s", t.name)
	}
	return fmt.Sprintf("table ip %s", t.name)
}
