package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// observation is the state of the kernel for a connection whose SYN has no answer yet: the entry of
// the connection table, and the sockets and counters of the endpoint that the entry leads to.
type observation struct {
	after    time.Duration // since the first SYN
	entry    tracked
	process  string   // the directory in /proc of a process of the endpoint, "" for none
	neighbor string   // the node's entry for the endpoint
	sockets  []string // of the endpoint: its listeners, and every socket with the client's address
	counters map[string]int64
	problem  error
}

// observe reads the state of the kernel for a connection of a client.
func observe(client netip.AddrPort, begin time.Time) observation {
	o := observation{after: time.Since(begin).Round(time.Millisecond), counters: map[string]int64{}}
	o.problem = o.read(client)
	return o
}

func (o *observation) read(client netip.AddrPort) error {
	table, err := os.ReadFile("/proc/net/nf_conntrack")
	if err != nil {
		return err
	}
	entry, found := entryOf(string(table), client)
	if err := count(o.counters, "node", "/proc/net"); err != nil || !found {
		return err
	}
	o.entry = entry
	neighbors, err := os.ReadFile("/proc/net/arp")
	if err != nil {
		return err
	}
	o.neighbor = neighborOf(string(neighbors), entry.endpoint.Addr())
	if o.process, err = processIn(entry.endpoint.Addr()); err != nil {
		return err
	}
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(o.process, "net", name))
		if err != nil {
			return err
		}
		o.sockets = append(o.sockets, socketsOf(string(text), entry.client)...)
	}
	return count(o.counters, "endpoint", filepath.Join(o.process, "net"))
}

// count reads the counters of a network namespace. Each name gets the prefix of.
func count(into map[string]int64, of, at string) error {
	for name, parse := range map[string]func(string) map[string]int64{"netstat": countersOf, "stat/nf_conntrack": conntrackCounters} {
		text, err := os.ReadFile(filepath.Join(at, name))
		if err != nil {
			return err
		}
		for counter, value := range parse(string(text)) {
			into[of+" "+counter] = value
		}
	}
	return nil
}

// describe returns the observations of one connection as text. Counters appear if they have changed
// between two observations.
func describe(client netip.AddrPort, outcome string, all ...observation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", client, outcome)
	for i, o := range all {
		entry := o.entry.line
		if entry == "" {
			entry = "no entry in the connection table"
		}
		fmt.Fprintf(&b, "; after %s: %s; sockets of the endpoint: %q, neighbor: %s", o.after, entry, o.sockets, o.neighbor)
		if o.problem != nil {
			fmt.Fprintf(&b, "; %v", o.problem)
		}
		if i == 0 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(o.counters)) {
			if was, known := all[i-1].counters[name]; known && was != o.counters[name] {
				fmt.Fprintf(&b, ", %s +%d", name, o.counters[name]-was)
			}
		}
	}
	return b.String()
}

// tracked is one entry of the connection table.
type tracked struct {
	line     string
	endpoint netip.AddrPort // which sends the replies
	client   netip.AddrPort // as the endpoint sees it
}

// entryOf returns the entry of a TCP connection that a client began, from /proc/net/nf_conntrack.
func entryOf(table string, client netip.AddrPort) (tracked, bool) {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "tcp" {
			continue
		}
		values := map[string][]string{} // of both directions: the client's first
		for _, f := range fields {
			if key, value, ok := strings.Cut(f, "="); ok {
				values[key] = append(values[key], value)
			}
		}
		at := func(addr, port string, direction int) (out netip.AddrPort) {
			if len(values[addr]) == 2 && len(values[port]) == 2 {
				a, _ := netip.ParseAddr(values[addr][direction])
				p, _ := strconv.ParseUint(values[port][direction], 10, 16)
				out = netip.AddrPortFrom(a, uint16(p))
			}
			return out
		}
		if at("src", "sport", 0) == client {
			return tracked{strings.Join(fields, " "), at("src", "sport", 1), at("dst", "dport", 1)}, true
		}
	}
	return tracked{}, false
}

// neighborOf returns the hardware address, flags and device of a neighbor, from /proc/net/arp.
func neighborOf(table string, addr netip.Addr) string {
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) == 6 && f[0] == addr.String() {
			return fmt.Sprintf("%s, flags %s, %s", f[3], f[2], f[5])
		}
	}
	return "none"
}

// processIn returns the directory in /proc of a process in the network namespace that has an address.
func processIn(addr netip.Addr) (string, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	for _, process := range all {
		space, err := os.Readlink(filepath.Join(process, "ns/net"))
		if err != nil || seen[space] {
			continue // it has ended, or another process of the namespace was read
		}
		seen[space] = true
		routes, err := os.ReadFile(filepath.Join(process, "net/fib_trie"))
		if err == nil && hasAddress(string(routes), addr) {
			return process, nil
		}
	}
	return "", fmt.Errorf("no network namespace has the address %s", addr)
}

// hasAddress reports whether a namespace has an address, from its /proc/net/fib_trie.
func hasAddress(trie string, addr netip.Addr) bool {
	last := ""
	for line := range strings.Lines(trie) {
		line = strings.TrimSpace(line)
		if line == "/32 host LOCAL" && last == "|-- "+addr.String() {
			return true
		}
		last = line
	}
	return false
}

// tcpStates are the names of the states in /proc/net/tcp.
var tcpStates = map[string]string{
	"01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2", "06": "TIME_WAIT",
	"07": "CLOSE", "08": "CLOSE_WAIT", "09": "LAST_ACK", "0A": "LISTEN", "0B": "CLOSING", "0C": "NEW_SYN_RECV",
}

// socketsOf returns the listeners, with the number of connections that wait to be accepted, and the
// sockets with a remote address, from /proc/net/tcp or /proc/net/tcp6.
func socketsOf(table string, remote netip.AddrPort) (out []string) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		local, ok := socketAddress(f[1])
		peer, ok2 := socketAddress(f[2])
		_, waiting, ok3 := strings.Cut(f[4], ":")
		if !ok || !ok2 || !ok3 {
			continue // the header
		}
		if f[3] == "0A" {
			n, _ := strconv.ParseUint(waiting, 16, 32)
			out = append(out, fmt.Sprintf("%s LISTEN, %d wait", local, n))
		} else if peer == remote {
			out = append(out, fmt.Sprintf("%s %s %s", local, peer, tcpStates[f[3]]))
		}
	}
	return out
}

// socketAddress parses an address of /proc/net/tcp or /proc/net/tcp6: words in the machine's order of
// bytes, and the port.
func socketAddress(text string) (netip.AddrPort, bool) {
	words, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), true
}

// tellingCounters are the counters of TCP that tell why a SYN has no answer.
var tellingCounters = []string{
	"ListenOverflows", "ListenDrops", "TCPReqQFullDrop", "TCPReqQFullDoCookies", "SyncookiesSent", "TCPTimeWaitOverflow", "PAWSActive", "PAWSEstab",
	"TCPACKSkippedSynRecv", "TCPACKSkippedPAWS", "TCPACKSkippedSeq", "TCPACKSkippedFinWait2", "TCPACKSkippedTimeWait", "TCPACKSkippedChallenge",
	"TCPChallengeACK", "TCPSYNChallenge", "TCPBacklogDrop", "IPReversePathFilter", "TCPSynRetrans", "TCPRetransFail", "TCPSpuriousRtxHostQueues",
}

// countersOf returns the telling counters, from /proc/net/netstat: pairs of lines, with names and
// with values.
func countersOf(text string) map[string]int64 {
	out := map[string]int64{}
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i := range min(len(names), len(f)) {
			if n, err := strconv.ParseInt(f[i], 10, 64); err == nil && slices.Contains(tellingCounters, names[i]) {
				out[names[i]] = n
			}
		}
	}
	return out
}

// conntrackCounters returns the sums over all processors, from /proc/net/stat/nf_conntrack.
func conntrackCounters(text string) map[string]int64 {
	out := map[string]int64{}
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if names == nil {
			names = f
			continue
		}
		for i := range min(len(names), len(f)) {
			n, err := strconv.ParseInt(f[i], 16, 64)
			if err == nil && slices.Contains([]string{"invalid", "insert_failed", "drop", "early_drop", "clashres"}, names[i]) {
				out["conntrack "+names[i]] += n
			}
		}
	}
	return out
}
