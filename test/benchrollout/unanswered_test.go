package main

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSources_Next_RepeatsNoneWithinTheTimeOfAnOldConnection: neither the kernel of a pod nor the
// connection table keeps a connection longer than two minutes after its end.
func TestSources_Next_RepeatsNoneWithinTheTimeOfAnOldConnection(t *testing.T) {
	const connections = 500 * 120 // of two minutes
	s := &sources{addrs: netip.MustParsePrefix(clientRange)}
	first := s.next()
	if first != netip.MustParseAddrPort("198.18.41.1:33000") {
		t.Errorf("the first is %s", first)
	}
	seen := map[netip.AddrPort]bool{first: true}
	for range clients*(lastPort-firstPort+1) - 1 {
		at := s.next()
		if seen[at] || !s.addrs.Contains(at.Addr()) || at.Port() < firstPort || at.Port() > lastPort {
			t.Fatalf("%s is repeated, or outside of the ranges", at)
		}
		seen[at] = true
	}
	if len(seen) < connections || s.next() != first {
		t.Errorf("%d sources, want %d, and the first one again", len(seen), connections)
	}
}

const connectionTable = `ipv4     2 tcp      6 8 CLOSE src=198.18.41.1 dst=198.18.40.20 sport=33001 dport=80 src=10.88.0.2 dst=198.18.41.1 sport=8080 dport=33001 [ASSURED] mark=0 zone=0 use=2
ipv4     2 udp      17 27 src=198.18.41.1 dst=10.0.0.53 sport=33000 dport=53 src=10.0.0.53 dst=198.18.41.1 sport=53 dport=33000 mark=0 zone=0 use=2
ipv4     2 tcp      6 118 SYN_SENT src=198.18.41.1 dst=198.18.40.20 sport=33000 dport=80 [UNREPLIED] src=10.88.0.3 dst=10.88.0.1 sport=8080 dport=4711 mark=0 zone=0 use=2
`

func TestEntryOf_Client_HasItsEndpointAndTheAddressThatItSees(t *testing.T) {
	got, found := entryOf(connectionTable, netip.MustParseAddrPort("198.18.41.1:33000"))
	if !found || got.endpoint.String() != "10.88.0.3:8080" || got.client.String() != "10.88.0.1:4711" || !strings.HasPrefix(got.line, "ipv4 2 tcp 6 118 SYN_SENT src=198.18.41.1") {
		t.Errorf("%t: %+v", found, got)
	}
	for _, other := range []string{"198.18.41.2:33000", "198.18.41.1:33002", "10.88.0.3:8080"} {
		if got, found := entryOf(connectionTable, netip.MustParseAddrPort(other)); found {
			t.Errorf("%s: %+v", other, got)
		}
	}
}

func TestSocketsOf_Remote_HasListenersAndItsSockets(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	const four = head + `   0: 00000000:1F90 00000000:0000 0A 00000000:00000002 00:00000000 00000000     0        0 1
   1: 0200580A:1F90 0100580A:1267 06 00000000:00000000 03:000016D1 00000000     0        0 0
   2: 0200580A:1F90 0100580A:1268 01 00000000:00000000 00:00000000 00000000     0        0 2
`
	const six = head + `   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3
   1: 0000000000000000FFFF00000200580A:1F90 0000000000000000FFFF00000100580A:1267 05 00000000:00000000 00:00000000 00000000     0        0 4
`
	client := netip.MustParseAddrPort("10.88.0.1:4711")
	for text, want := range map[string][]string{
		four: {"0.0.0.0:8080 LISTEN, 2 wait", "10.88.0.2:8080 10.88.0.1:4711 TIME_WAIT"},
		six:  {"[::]:8080 LISTEN, 0 wait", "10.88.0.2:8080 10.88.0.1:4711 FIN_WAIT2"},
		head: nil,
	} {
		if got := socketsOf(text, client); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestNeighborOf_Table_HasTheEntryOfTheAddress(t *testing.T) {
	const table = "IP address       HW type     Flags       HW address            Mask     Device\n10.88.0.20       0x1         0x0         00:00:00:00:00:00     *        br0\n10.88.0.2        0x1         0x2         0a:58:0a:58:00:02     *        br0\n"
	for text, want := range map[string]string{"10.88.0.2": "0a:58:0a:58:00:02, flags 0x2, br0", "10.88.0.3": "none"} {
		if got := neighborOf(table, netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestPacketOf_IPv4_HasAddressesAndFlags(t *testing.T) {
	b := make([]byte, 44) // a header with one option, and that of TCP
	b[0], b[9] = 4<<4|6, 6
	copy(b[12:], []byte{10, 88, 0, 2, 198, 18, 41, 1})
	copy(b[24:], []byte{0x1f, 0x90, 0x80, 0xe8})
	b[37] = 0x12
	if p, ok := packetOf(b); !ok || p.String() != "SYN,ACK 10.88.0.2:8080 > 198.18.41.1:33000" {
		t.Errorf("%t %s", ok, p)
	}
	for name, wrong := range map[string][]byte{"short": b[:43], "IPv6": append([]byte{6 << 4}, b[1:]...), "none": nil} {
		if p, ok := packetOf(wrong); ok {
			t.Errorf("%s: %s", name, p)
		}
	}
	b[7] = 1
	if p, ok := packetOf(b); ok {
		t.Errorf("a later fragment: %s", p)
	}
}

func TestHasAddress_Trie_HasLocalAddressesAlone(t *testing.T) {
	const trie = `Local:
  +-- 10.88.0.0/16 2 0 2
     |-- 10.88.0.0
        /16 link UNICAST
     |-- 10.88.0.2
        /32 host LOCAL
     |-- 10.88.255.255
        /32 link BROADCAST
`
	for text, want := range map[string]bool{"10.88.0.2": true, "10.88.0.0": false, "10.88.255.255": false, "10.88.0.20": false} {
		if got := hasAddress(trie, netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

func TestCounters_Texts_HaveTheTellingOnes(t *testing.T) {
	got := countersOf("TcpExt: SyncookiesSent ListenDrops TW PAWSEstab\nTcpExt: 0 7 9 -1\nIpExt: InOctets\nIpExt: 12\n")
	if want := map[string]int64{"SyncookiesSent": 0, "ListenDrops": 7, "PAWSEstab": -1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	got = conntrackCounters("entries  clashres found new invalid\n00000010  00000001 00000000 00000000 0000000a\n00000010  00000000 00000000 00000000 00000001\n")
	if want := map[string]int64{"conntrack clashres": 1, "conntrack invalid": 11}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestDescribe_TwoObservations_NamesChangedCounters(t *testing.T) {
	early := observation{after: 2500 * time.Millisecond, counters: map[string]int64{"node conntrack invalid": 3, "endpoint ListenDrops": 1}}
	late := observation{after: 5 * time.Second, entry: tracked{line: "tcp SYN_SENT"}, neighbor: "none", sockets: []string{"[::]:8080 LISTEN, 0 wait"}, problem: errors.New("gone"),
		counters: map[string]int64{"node conntrack invalid": 5, "endpoint ListenDrops": 1}}
	got := describe(netip.MustParseAddrPort("198.18.41.1:33000"), "i/o timeout", early, late)
	want := `198.18.41.1:33000: i/o timeout; after 2.5s: no entry in the connection table; sockets of the endpoint: [], neighbor: ; ` +
		`after 5s: tcp SYN_SENT; sockets of the endpoint: ["[::]:8080 LISTEN, 0 wait"], neighbor: none; gone, node conntrack invalid +2`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
