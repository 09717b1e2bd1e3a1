package nft

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Route is one route of the main table.
type Route struct {
	To     netip.Prefix
	Device string
	// Own means that Serve added the route.
	Own bool
}

// ownProtocol marks the routes that Serve adds. The kernel and routing daemons use other numbers.
const ownProtocol = 209

// Routes returns the routes of the network namespace of this thread.
func Routes() ([]Route, error) {
	text, err := os.ReadFile("/proc/thread-self/net/route")
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	out := routes4(string(text))
	if text, err := os.ReadFile("/proc/thread-self/net/ipv6_route"); err == nil { // the file is missing without IPv6
		out = append(out, routes6(string(text))...)
	}
	return out, nil
}

// routes4 parses /proc/net/route.
func routes4(text string) []Route {
	var out []Route
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		to, err1 := strconv.ParseUint(f[1], 16, 32)
		mask, err2 := strconv.ParseUint(f[7], 16, 32)
		metric, err3 := strconv.ParseInt(f[6], 10, 64) // the kernel prints it with a sign
		if errors.Join(err1, err2, err3) != nil {
			continue
		}
		addr := netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, uint32(to))))
		bits, _ := net.IPMask(binary.NativeEndian.AppendUint32(nil, uint32(mask))).Size()
		out = append(out, Route{To: netip.PrefixFrom(addr, bits), Device: f[0], Own: f[0] == "lo" && uint32(metric) == ownMetric})
	}
	return out
}

// routes6 parses /proc/net/ipv6_route.
func routes6(text string) []Route {
	var out []Route
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 10 || f[9] == "lo" {
			continue
		}
		raw, err1 := hex.DecodeString(f[0])
		bits, err2 := strconv.ParseUint(f[1], 16, 8)
		if errors.Join(err1, err2) != nil || len(raw) != 16 || bits > 128 {
			continue
		}
		out = append(out, Route{To: netip.PrefixFrom(netip.AddrFrom16([16]byte(raw)), int(bits)), Device: f[9]})
	}
	return out
}

// Overlap returns a route to a range, or to a part of it, that Serve did not add.
func Overlap(all []Route, p netip.Prefix) (Route, bool) {
	return first(all, func(r Route) bool { return !r.Own && r.To.Bits() >= p.Bits() && r.To.Overlaps(p) })
}

// Wider returns a route to a larger network that contains a range, other than default routes. The
// route of Serve takes precedence over it. So hosts of that network in the range become unreachable.
func Wider(all []Route, p netip.Prefix) (Route, bool) {
	return first(all, func(r Route) bool { return !r.Own && r.To.Bits() > 0 && r.To.Bits() < p.Bits() && r.To.Overlaps(p) })
}

func first(all []Route, is func(Route) bool) (Route, bool) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], true
	}
	return Route{}, false
}

// Stale returns the destinations of routes that Serve added for earlier ranges of cluster IPs.
func Stale(all []Route, ranges []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range all {
		if r.Own && !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Masked() == r.To }) {
			out = append(out, r.To)
		}
	}
	return out
}

// to returns the route to an address.
func to(all []Route, addr netip.Addr) (Route, bool) {
	best, found := Route{}, false
	for _, r := range all {
		if r.To.Contains(addr) && (!found || r.To.Bits() > best.To.Bits()) {
			best, found = r, true
		}
	}
	return best, found
}

// Links returns the networks of these endpoints in which packets between two hosts bypass the
// packet filter. These are the networks of bridges, unless the kernel passes their packets to the
// packet filter (br_netfilter).
func Links(all []Route, backends []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, device := range devices(all, backends) {
		if !isBridge(device) {
			continue
		}
		for _, r := range all {
			if r.Device == device && r.To.Bits() > 0 && !r.To.Addr().IsLoopback() && !r.To.Addr().IsLinkLocalUnicast() && !r.To.Addr().IsMulticast() && !filtersBridges(r.To.Addr().Is6()) {
				out = append(out, r.To)
			}
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(out)
}

// devices returns the network devices by which the node reaches endpoints.
func devices(all []Route, backends []netip.Addr) []string {
	var out []string
	for _, addr := range backends {
		if r, found := to(all, addr); found && r.To.Bits() > 0 && !slices.Contains(out, r.Device) {
			out = append(out, r.Device)
		}
	}
	slices.Sort(out)
	return out
}

// isBridge reports whether a device of the network namespace of this thread is a bridge, by its driver.
func isBridge(device string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, device)
	return err == nil && unix.ByteSliceToString(info.Driver[:]) == "bridge"
}

// filtersBridges reports whether the packets of bridges pass the packet filter.
func filtersBridges(v6 bool) bool {
	name := "/proc/sys/net/bridge/bridge-nf-call-iptables"
	if v6 {
		name = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"
	}
	text, err := os.ReadFile(name)
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// Prepare sets the sysctls of the devices of these endpoints: node ports on 127.0.0.1 need
// route_localnet, which the table nodectl-guard makes harmless. It turns send_redirects off: a
// redirect would show a pod a direct route to a pod of the same network, which bypasses the packet
// filter. Prepare returns the devices whose route_localnet it has changed.
func Prepare(all []Route, backends []netip.Addr) (changed []string, err error) {
	var errs []error
	for _, device := range devices(all, backends) {
		if device == "lo" || !isDevice(device) {
			continue
		}
		is, err := sysctl(device, "route_localnet", "1")
		if is {
			changed = append(changed, device)
		}
		_, err1 := sysctl(device, "send_redirects", "0")
		_, err2 := sysctl("all", "send_redirects", "0")
		errs = append(errs, err, err1, err2)
	}
	return changed, errors.Join(errs...)
}

// Restore resets route_localnet of devices that Prepare has changed. A missing device is not an
// error.
func Restore(devices []string) error {
	var errs []error
	for _, device := range devices {
		if !isDevice(device) {
			continue
		}
		if _, err := sysctl(device, "route_localnet", "0"); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// isDevice reports whether a name can be that of a device. Other names could lead to another file.
func isDevice(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.Contains(name, "/")
}

// sysctl sets a value of a device, and reports whether the value changed.
func sysctl(device, name, value string) (changed bool, err error) {
	at := filepath.Join("/proc/sys/net/ipv4/conf", device, name)
	have, err := os.ReadFile(at)
	if err != nil || strings.TrimSpace(string(have)) == value {
		return false, err
	}
	return true, os.WriteFile(at, []byte(value), 0o644)
}

// ownMetric gives a route the lowest priority, so that every other route to the same range wins.
const ownMetric = 1<<32 - 1

// Serve adds a route to the range of cluster IPs, or removes it. A process of the node needs a
// route to connect to a cluster IP, and a machine without a network has no default route. The
// packet filter then sends the connection to an endpoint. For an IPv6 range, Serve adds no route:
// it needs a default route.
func Serve(p netip.Prefix, on bool) error {
	if p.Addr().Is6() {
		return nil
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return fmt.Errorf("add route to %s: %w", p, err)
	}
	header := routeHeader{family: unix.AF_INET, bits: p.Bits(), table: unix.RT_TABLE_MAIN, scope: unix.RT_SCOPE_LINK, kind: unix.RTN_UNICAST}
	return header.change(p.Masked().Addr(), lo.Index, ownMetric, on)
}

// routeHeader is the header of a message about a route that Serve or Loopback6 makes.
type routeHeader struct {
	family, table, scope, kind byte
	bits                       int
}

// change makes the route, or removes it. An existing or missing route is not an error.
func (h routeHeader) change(to netip.Addr, device int, metric uint32, on bool) error {
	c, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer c.close()
	kind, flags := uint16(unix.RTM_DELROUTE), uint16(unix.NLM_F_ACK)
	if on {
		kind, flags = unix.RTM_NEWROUTE, unix.NLM_F_ACK|unix.NLM_F_CREATE
	}
	if on && h.family == unix.AF_INET { // for IPv6, it would replace the same route of another device
		flags |= unix.NLM_F_REPLACE
	}
	m := &message{}
	end := m.header(kind, flags)
	m.b = append(m.b, h.family, byte(h.bits), 0, 0, h.table, ownProtocol, h.scope, h.kind, 0, 0, 0, 0)
	m.bytes(unix.RTA_DST, to.AsSlice())
	m.bytes(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(device)))
	m.bytes(unix.RTA_PRIORITY, binary.NativeEndian.AppendUint32(nil, metric))
	end()
	if err := c.send(m.b); err != nil {
		return err
	}
	err = c.acknowledge(m.seq-1, m.seq)
	if !on && errors.Is(err, unix.ESRCH) || on && errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change route to %s: %w", netip.PrefixFrom(to, h.bits), err)
	}
	return nil
}

// metric6 is the priority of the routes of Loopback6. For packets of local processes, the kernel's own
// route with priority 0 wins.
const metric6 = 4096

// Loopback6 lets replies of these endpoints reach the loopback address of IPv6. The kernel accepts a
// packet for that address only from a device that has a local route to it. The kernel drops packets
// that arrive with the address. Only after that, the packet filter writes the address into replies. So
// no pod reaches a service on that address.
//
// Behind a bridge that passes its packets to the packet filter first (br_netfilter), the kernel would
// drop such a reply, too. Then Loopback6 returns false.
func Loopback6(all []Route, backends []netip.Addr) (works bool, err error) {
	backends = slices.DeleteFunc(slices.Clone(backends), netip.Addr.Is4)
	var errs []error
	for _, device := range devices(all, backends) {
		if device == "lo" || slices.Contains(all, Route{To: loopback6(), Device: device}) {
			continue
		}
		errs = append(errs, serveLoopback6(device, true))
	}
	bridged := slices.ContainsFunc(devices(all, backends), isBridge) && filtersBridges(true)
	err = errors.Join(errs...)
	return err == nil && !bridged, err
}

// RestoreLoopback6 removes the routes of Loopback6.
func RestoreLoopback6(all []Route) error {
	var errs []error
	for _, r := range all {
		if r.To == loopback6() {
			errs = append(errs, serveLoopback6(r.Device, false))
		}
	}
	return errors.Join(errs...)
}

// serveLoopback6 makes a local route by a device, or removes it. A missing device is not an error.
func serveLoopback6(device string, on bool) error {
	d, err := net.InterfaceByName(device)
	if err != nil {
		return nil //nolint:nilerr // its routes are gone with it
	}
	h := routeHeader{family: unix.AF_INET6, bits: 128, table: unix.RT_TABLE_LOCAL, scope: unix.RT_SCOPE_UNIVERSE, kind: unix.RTN_LOCAL}
	return h.change(netip.IPv6Loopback(), d.Index, metric6, on)
}
