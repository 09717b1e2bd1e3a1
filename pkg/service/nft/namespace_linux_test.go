package nft

import (
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
