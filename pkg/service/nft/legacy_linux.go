package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacy is one family of the older packet filter, iptables-legacy. nftables does not list its tables.
type legacy struct {
	name   string // as iptables names it
	names  string // the file below /proc/net with the names of its tables
	domain int
	level  int // of the socket options
	target int // the place in an entry of the offset of its target; the offset of the next entry follows
}

// legacyFamilies returns both families.
func legacyFamilies() []legacy {
	return []legacy{
		{name: "iptables", names: "ip_tables_names", domain: unix.AF_INET, level: unix.SOL_IP, target: 88},
		{name: "ip6tables", names: "ip6_tables_names", domain: unix.AF_INET6, level: unix.SOL_IPV6, target: 140},
	}
}

// proxyTable and proxyChain are the table and chain of a kube-proxy in the modes iptables and ipvs.
const (
	proxyTable = "nat"
	proxyChain = "KUBE-SERVICES"
)

// hasTable reports whether a list of names, one a line, has the table of a kube-proxy.
func hasTable(names string) bool {
	for line := range strings.Lines(names) {
		if strings.TrimSpace(line) == proxyTable {
			return true
		}
	}
	return false
}

var errLegacy = errors.New("the entries of the table have an unknown form")

// hasChain reports whether the entries of a table have the chain of a kube-proxy. A chain begins with
// an entry whose target is named ERROR. The name of the chain follows the target's header.
func (l legacy) hasChain(entries []byte) (bool, error) {
	const (
		targetHeader = 32 // a length of two bytes, a name of 29, a revision
		nameAt       = 2
	)
	for len(entries) > 0 {
		if len(entries) < l.target+4 {
			return false, errLegacy
		}
		target, next := int(binary.NativeEndian.Uint16(entries[l.target:])), int(binary.NativeEndian.Uint16(entries[l.target+2:]))
		if target < l.target+4 || next < target+targetHeader || next > len(entries) {
			return false, errLegacy
		}
		name := entries[target+nameAt : target+targetHeader-1]
		if textOf(name) == "ERROR" && bytes.HasPrefix(entries[target+targetHeader:next], []byte(proxyChain+"\x00")) {
			return true, nil
		}
		entries = entries[next:]
	}
	return false, nil
}

// Numbers of the socket options that read a table of iptables-legacy.
const (
	optionInfo    = 64
	optionEntries = 65
)

// legacyName is the name of a table.
type legacyName [32]byte

// legacyInfo is struct ipt_getinfo of the kernel, and struct ip6t_get_info.
type legacyInfo struct {
	name       legacyName
	hooks      uint32
	first      [5]uint32
	underflow  [5]uint32
	count      uint32
	sizeOfList uint32
}

// legacyHeader is the beginning of struct ipt_get_entries. The entries follow, aligned to 8 bytes.
type legacyHeader struct {
	name       legacyName
	sizeOfList uint32
	_          uint32
}

// largestLegacy is the maximum size of the entries of a table, in bytes.
const largestLegacy = 1 << 28

// legacyProxies names the chains of a kube-proxy in the tables of iptables-legacy. It does not read
// tables that the kernel does not list, because the kernel would create them.
func legacyProxies() (found []string, err error) {
	for _, l := range legacyFamilies() {
		names, err := os.ReadFile(filepath.Join("/proc/thread-self/net", l.names))
		if errors.Is(err, fs.ErrNotExist) { // the kernel has no such tables
			continue
		}
		if err == nil && !hasTable(string(names)) {
			continue
		}
		has := false
		if err == nil {
			has, err = l.read()
		}
		if err != nil {
			return nil, fmt.Errorf("look for a kube-proxy in the %s table of %s-legacy: %w", proxyTable, l.name, err)
		}
		if has {
			found = append(found, fmt.Sprintf("chain %s in table %s of %s-legacy", proxyChain, proxyTable, l.name))
		}
	}
	return found, nil
}

// read reads the table of a kube-proxy, and reports whether it has its chain.
func (l legacy) read() (has bool, err error) {
	fd, err := unix.Socket(l.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	for range 10 { // the table may change between the two calls
		info := legacyInfo{}
		copy(info.name[:], proxyTable)
		if err := getOption(fd, l.level, optionInfo, unsafe.Pointer(&info), unsafe.Sizeof(info)); err != nil {
			return false, err
		}
		if info.sizeOfList > largestLegacy {
			return false, fmt.Errorf("%w: %d bytes", errLegacy, info.sizeOfList)
		}
		const header = int(unsafe.Sizeof(legacyHeader{}))
		list := make([]uint64, (header+int(info.sizeOfList)+7)/8) // aligned as the kernel's
		head := (*legacyHeader)(unsafe.Pointer(&list[0]))
		head.name, head.sizeOfList = info.name, info.sizeOfList
		err := getOption(fd, l.level, optionEntries, unsafe.Pointer(&list[0]), uintptr(header)+uintptr(info.sizeOfList))
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return false, err
		}
		return l.hasChain(unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), header+int(info.sizeOfList))[header:])
	}
	return false, errors.New("the table changes all the time")
}

// getOption reads a socket option. Its value is also the request.
func getOption(fd, level, name int, value unsafe.Pointer, size uintptr) error {
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
