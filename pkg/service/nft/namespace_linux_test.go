package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// place is a network namespace that a test has made.
type place struct {
	t    *testing.T
	name string
	file *os.File
}

// newPlace makes a network namespace with a loopback device that is up.
func newPlace(t *testing.T, name string) *place {
	t.Helper()
	p := &place{t: t, name: name}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			p.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Cleanup(func() { p.file.Close() })
	p.ip("link", "set", "lo", "up")
	return p
}

// do runs f on a thread in the namespace.
func (p *place) do(f func() error) {
	p.t.Helper()
	if err := p.run(f); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
}

func (p *place) run(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Setns(int(p.file.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// ip runs ip in the namespace.
func (p *place) ip(args ...string) {
	p.t.Helper()
	p.do(func() error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// sysctl sets a value below /proc/sys/net of the namespace.
func (p *place) sysctl(name, value string) {
	p.t.Helper()
	p.do(func() error { return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644) })
}

// node is a node with a bridge, on which pods are, and a link to the outside.
type node struct {
	*place
	filter *Filter
}

// newNode makes the node's namespace. Its bridge has the address 10.88.0.1, its address outside is
// 192.0.2.1.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{place: newPlace(t, "node"), filter: New()}
	t.Cleanup(n.filter.Close)
	n.ip("link", "add", "br0", "type", "bridge")
	n.ip("addr", "add", "10.88.0.1/16", "dev", "br0")
	n.ip("link", "set", "br0", "up")
	n.sysctl("ipv4/ip_forward", "1")
	return n
}

// pod makes a pod on the bridge, with an address and a name of a device.
func (n *node) pod(name, addr string) *place {
	n.t.Helper()
	p := newPlace(n.t, name)
	n.veth(p, "v"+name)
	n.ip("link", "set", "v"+name, "master", "br0")
	p.ip("addr", "add", addr+"/16", "dev", "eth0")
	p.ip("link", "set", "eth0", "up")
	p.ip("route", "add", "default", "via", "10.88.0.1")
	return p
}

// outside makes a host on the link outside.
func (n *node) outside() *place {
	n.t.Helper()
	p := newPlace(n.t, "outside")
	n.veth(p, "vout")
	n.ip("addr", "add", "192.0.2.1/24", "dev", "vout")
	p.ip("addr", "add", "192.0.2.9/24", "dev", "eth0")
	p.ip("link", "set", "eth0", "up")
	return p
}

func (n *node) veth(p *place, device string) {
	n.t.Helper()
	n.do(func() error {
		cmd := exec.Command("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", "/proc/self/fd/3")
		cmd.ExtraFiles = []*os.File{p.file}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip link add: %w: %s", err, out)
		}
		return nil
	})
	n.ip("link", "set", device, "up")
}

// serve answers each TCP connection to a port, and each datagram, with name and the client's address.
func (p *place) serve(name string, port int) {
	p.t.Helper()
	at := fmt.Sprintf(":%d", port)
	p.do(func() error {
		tcp, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		p.t.Cleanup(func() { tcp.Close(); udp.Close() })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				_, _ = io.WriteString(c, name+" "+host)
				c.Close()
			}
		}()
		go func() {
			b := make([]byte, 64)
			for {
				_, from, err := udp.ReadFrom(b)
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(from.String())
				_, _ = udp.WriteTo([]byte(name+" "+host), from)
			}
		}()
		return nil
	})
}

// connect returns the answer of a server: its name and the address that it saw, or an error's text.
func (p *place) connect(address string) (answer string) {
	p.t.Helper()
	p.do(func() error {
		family, to := socketAddress(p.t, address)
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		limit := unix.Timeval{Sec: 3}
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
		if err := unix.Connect(fd, to); err != nil {
			answer = err.Error()
			return nil
		}
		b := make([]byte, 64)
		count, err := unix.Read(fd, b)
		if err != nil {
			answer = err.Error()
			return nil
		}
		answer = string(b[:max(count, 0)])
		return nil
	})
	return answer
}

// open opens a TCP connection of a client, by address, to a server on a port of p. It returns both ends.
func (p *place) open(port int, client *place, address string) (served, opened *net.TCPConn) {
	p.t.Helper()
	var l net.Listener
	p.do(func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
		return err
	})
	defer l.Close()
	client.do(func() error {
		c, err := net.Dial("tcp4", address)
		if err == nil {
			p.t.Cleanup(func() { c.Close() })
			opened = c.(*net.TCPConn)
		}
		return err
	})
	c, err := l.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn), opened
}

// sendStray sends a packet of a connection of p that is far outside of the window.
func (p *place) sendStray(c *net.TCPConn) {
	p.t.Helper()
	sent, received := sequences(p.t, c)
	local, remote := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	const ack, words = 0x10, 5
	header := binary.BigEndian.AppendUint16(nil, local.Port())
	header = binary.BigEndian.AppendUint16(header, remote.Port())
	header = binary.BigEndian.AppendUint32(header, sent+1<<30)
	header = binary.BigEndian.AppendUint32(header, received)
	header = append(header, words<<4, ack, 255, 255, 0, 0, 0, 0)
	from, to := local.Addr().Unmap().As4(), remote.Addr().Unmap().As4()
	sum := uint32(unix.IPPROTO_TCP + len(header))
	for _, part := range [][]byte{from[:], to[:], header} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(header[16:], ^uint16(sum))
	p.do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, header, 0, &unix.SockaddrInet4{Addr: to})
	})
}

// sequences returns the numbers of the next bytes that a connection sends and receives.
func sequences(t *testing.T, c *net.TCPConn) (sent, received uint32) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const on, off, receiveQueue, sendQueue = 1, -1, 1, 2
	var errs []error
	numberOf := func(fd, queue int) uint32 {
		errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue))
		n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		errs = append(errs, err)
		return uint32(n)
	}
	err = raw.Control(func(fd uintptr) {
		errs = append(errs, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, on))
		sent, received = numberOf(int(fd), sendQueue), numberOf(int(fd), receiveQueue)
		errs = append(errs, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, off))
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatalf("read the numbers of a connection: %v", err)
	}
	return sent, received
}

// datagrams returns a function that sends a datagram by one socket and returns the answer.
func (p *place) datagrams(address string) (ask func() string, end func()) {
	p.t.Helper()
	var fd int
	p.do(func() (err error) {
		family, to := socketAddress(p.t, address)
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		limit := unix.Timeval{Sec: 3}
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
		return unix.Connect(fd, to)
	})
	return func() string {
		if _, err := unix.Write(fd, []byte("?")); err != nil {
			return err.Error()
		}
		b := make([]byte, 64)
		n, err := unix.Read(fd, b)
		if err != nil {
			return err.Error()
		}
		return string(b[:n])
	}, func() { unix.Close(fd) }
}

func socketAddress(t *testing.T, address string) (family int, to unix.Sockaddr) {
	t.Helper()
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
