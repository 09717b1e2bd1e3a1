package server

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/dns"
)

// batchSize is how many queries one system call receives. The answers to a batch are sent together.
const batchSize = 16

// batch receives all waiting queries with one system call, and sends their answers with another one.
// The calls do not block, so they are raw system calls: for other calls, Go's scheduler would wake a
// thread each time.
type batch struct {
	in, out  [batchSize]multiHeader
	slots    [batchSize]slot
	received int
	queued   int
	owners   [batchSize]int // by index of out: the slot of its query
}

// multiHeader is struct mmsghdr of the kernel.
type multiHeader struct {
	header unix.Msghdr
	length uint32
}

// slot has one query, its client and its answer.
type slot struct {
	from   unix.RawSockaddrInet6 // an IPv4 address is shorter
	data   unix.Iovec
	answer unix.Iovec
	msg    [dns.MaxQuery + 1]byte
}

func newBatch() *batch {
	b := &batch{}
	for i := range b.slots {
		s := &b.slots[i]
		s.data.Base = &s.msg[0]
		s.data.SetLen(len(s.msg))
		h := &b.in[i].header
		h.Name = (*byte)(unsafe.Pointer(&s.from))
		h.Iov = &s.data
		h.SetIovlen(1)
	}
	return b
}

// receive receives the waiting queries, and reports whether there were any. An error may be that of
// an earlier answer, so receive tries again. The caller finds a lasting error when it waits for more
// queries.
func (b *batch) receive(fd uintptr) bool {
	b.received, b.queued = 0, 0
	for i := range b.in {
		b.in[i].header.Namelen = unix.SizeofSockaddrInet6
	}
	for range 2 * batchSize {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.in[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
		if errno == 0 {
			b.received = int(n)
			return n > 0
		}
		if errno == unix.EAGAIN {
			return false
		}
	}
	return false
}

// query returns a query and its client. ok is false for a message that is too long, or whose client has
// an unknown address family.
func (b *batch) query(i int) (msg []byte, from netip.AddrPort, ok bool) {
	s, n := &b.slots[i], int(b.in[i].length)
	if n > dns.MaxQuery {
		return nil, from, false
	}
	from = s.client()
	return s.msg[:n], from, from.IsValid()
}

// client returns the address of a client.
func (s *slot) client() netip.AddrPort {
	switch s.from.Family {
	case unix.AF_INET:
		at := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.from))
		return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), hostOrder(at.Port))
	case unix.AF_INET6:
		ip := netip.AddrFrom16(s.from.Addr)
		if s.from.Scope_id != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(s.from.Scope_id), 10))
		}
		return netip.AddrPortFrom(ip, hostOrder(s.from.Port))
	}
	return netip.AddrPort{}
}

// hostOrder returns a port that is in network byte order.
func hostOrder(port uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, port))
}

// reply queues the answer to a query.
func (b *batch) reply(i int, msg []byte) {
	s := &b.slots[i]
	s.answer.Base = unsafe.SliceData(msg)
	s.answer.SetLen(len(msg))
	h := &b.out[b.queued].header
	h.Name, h.Namelen = b.in[i].header.Name, b.in[i].header.Namelen
	h.Iov = &s.answer
	h.SetIovlen(1)
	b.owners[b.queued] = i
	b.queued++
}

// send sends the answers. If the kernel's buffer is full, it waits for room.
func (b *batch) send(fd uintptr, conn *net.UDPConn) {
	for first := 0; first < b.queued; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&b.out[first])), uintptr(b.queued-first), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			first += int(n)
		case unix.EINTR:
		case unix.EAGAIN:
			s := &b.slots[b.owners[first]]
			_, _ = conn.WriteToUDPAddrPort(unsafe.Slice(s.answer.Base, int(s.answer.Len)), s.client())
			first++
		default: // this client is not reachable any more
			first++
		}
	}
	for i := range b.slots {
		b.slots[i].answer.Base = nil
	}
}
