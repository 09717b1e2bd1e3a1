package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mostPackets is how many packets of a connection are kept.
const mostPackets = 40

// packet is a TCP packet.
type packet struct {
	from, to netip.AddrPort
	flags    byte
}

// packetOf parses an IPv4 packet.
func packetOf(b []byte) (p packet, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_TCP {
		return p, false
	}
	from, to := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	fragment := binary.BigEndian.Uint16(b[6:]) & 0x1fff
	if b = b[min(len(b), int(b[0]&15)*4):]; fragment != 0 || len(b) < 20 {
		return p, false
	}
	return packet{
		from: netip.AddrPortFrom(from, binary.BigEndian.Uint16(b)), to: netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:])), flags: b[13],
	}, true
}

// String returns the packet as text, such as "SYN,ACK 10.88.0.2:8080 > 198.18.41.1:33000".
func (p packet) String() string {
	var names []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if p.flags&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return fmt.Sprintf("%s %s > %s", strings.Join(names, ","), p.from, p.to)
}

// capture collects the packets of clients in a network namespace, by its file, until stop is called,
// which returns them.
func capture(space string, begin time.Time, clients ...netip.AddrPort) (stop func() []string) {
	done, result := make(chan struct{}), make(chan []string, 1)
	go func() {
		runtime.LockOSThread() // the thread, which may be in another namespace, ends with the goroutine
		fd, err := packetSocket(space)
		if err != nil {
			result <- []string{err.Error()}
			return
		}
		defer unix.Close(fd)
		var lines []string
		buffer := make([]byte, 256)
		for {
			select {
			case <-done:
				result <- lines
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				continue // nothing came for a while
			}
			p, ok := packetOf(buffer[:n])
			at, isLink := from.(*unix.SockaddrLinklayer)
			if !ok || !isLink || len(lines) == mostPackets || !slices.Contains(clients, p.from) && !slices.Contains(clients, p.to) {
				continue
			}
			device, way := fmt.Sprint("device ", at.Ifindex), "in"
			if d, err := net.InterfaceByIndex(at.Ifindex); err == nil {
				device = d.Name
			}
			if at.Pkttype == unix.PACKET_OUTGOING {
				way = "out"
			}
			lines = append(lines, fmt.Sprintf("%s %s %s %s", time.Since(begin).Round(time.Millisecond), device, way, p))
		}
	}()
	return func() []string {
		close(done)
		return <-result
	}
}

// packetSocket opens a socket that gets all packets of a network namespace, and moves the thread there.
func packetSocket(space string) (int, error) {
	f, err := os.Open(space)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return -1, fmt.Errorf("enter %s: %w", space, err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	pause := unix.Timeval{Usec: 100_000}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &pause); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
