package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is the error of a kernel without nftables.
var ErrUnsupported = errors.New("the kernel has no nftables (nf_tables)")

// conn is a netlink socket to the packet filter. One goroutine uses it at a time.
type conn struct {
	fd   int
	port uint32 // the netlink port by which notifications name the sender of a change
	seq  uint32
}

// timeout is how long a call waits for the kernel. Normally the kernel answers before the request
// returns.
const timeout = 10 // seconds

// dial opens a socket of a netlink family.
func dial(family int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrUnsupported
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c := &conn{fd: fd}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: timeout}),
	)
	if name, nameErr := unix.Getsockname(fd); nameErr != nil {
		err = errors.Join(err, nameErr)
	} else if at, is := name.(*unix.SockaddrNetlink); is {
		c.port = at.Pid
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return c, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) }

// transaction sends the messages that write adds, as one transaction. An error contains the number
// of the failed message, from 1.
func (c *conn) transaction(write func(m *message)) error {
	m := &message{seq: c.seq}
	m.start(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)()
	first := m.seq
	write(m)
	if m.seq == first {
		return nil
	}
	last := acknowledged(m.b, m.seq)
	m.start(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)()
	c.seq = m.seq
	if err := c.send(m.b); err != nil {
		return err
	}
	return c.acknowledge(first, last)
}

// acknowledged sets the flag that requests an answer in the message with the number last, and
// returns the number.
func acknowledged(b []byte, last uint32) uint32 {
	replies(b, func(r reply) {
		if r.seq == last {
			at := len(b) - len(r.body) - unix.SizeofNlMsghdr
			flags := binary.NativeEndian.Uint16(b[at+6:])
			binary.NativeEndian.PutUint16(b[at+6:], flags|unix.NLM_F_ACK)
		}
	})
	return last
}

// send sends bytes, after it has enlarged the send buffer for them.
func (c *conn) send(b []byte) error {
	const least = 1 << 18
	room := max(least, 2*len(b))
	if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, room)
	}
	if err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to the kernel: %w", err)
	}
	return nil
}

// acknowledge waits for the answer to the message last, and returns the first error. After an error
// of the message first, which begins the transaction, no other answer follows.
func (c *conn) acknowledge(first, last uint32) error {
	var failed error
	for done := false; !done; {
		b, err := c.receive()
		if err != nil {
			return err
		}
		replies(b, func(r reply) {
			if r.kind != unix.NLMSG_ERROR || len(r.body) < 4 {
				return
			}
			if errno := unix.Errno(-int32(binary.NativeEndian.Uint32(r.body))); errno != 0 && failed == nil {
				failed = fmt.Errorf("message %d of %d: %w", r.seq-first, last-first, errno)
				if r.seq == first && errno == unix.EOPNOTSUPP {
					failed = ErrUnsupported
				}
				done = done || r.seq == first
			}
			done = done || r.seq == last
		})
	}
	return failed
}

// sizeofHeader is the size of the header of the netfilter subsystems.
const sizeofHeader = 4

// largestReply is above the kernel's limit for one part of an answer.
const largestReply = 1 << 17

func (c *conn) receive() ([]byte, error) {
	b := make([]byte, largestReply)
	for {
		n, _, err := unix.Recvfrom(c.fd, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return nil, errors.New("the kernel does not answer")
		}
		if err != nil {
			return nil, fmt.Errorf("receive from the kernel: %w", err)
		}
		return b[:n], nil
	}
}

// list requests all nftables objects of a kind, and calls each with the attributes of every object.
func (c *conn) list(kind uint16, each func(family byte, attrs []byte)) error {
	return c.dump(uint16(unix.NFNL_SUBSYS_NFTABLES)<<8|kind, each)
}

// dump does the same as list, for the objects of any netfilter subsystem.
func (c *conn) dump(kind uint16, each func(family byte, attrs []byte)) error {
	m := &message{seq: c.seq}
	m.start(kind, unix.NLM_F_DUMP, unix.AF_UNSPEC, 0)()
	c.seq = m.seq
	if err := c.send(m.b); err != nil {
		return err
	}
	var failed error
	for done := false; !done; {
		b, err := c.receive()
		if err != nil {
			return err
		}
		replies(b, func(r reply) {
			switch {
			case r.seq != m.seq:
			case r.kind == unix.NLMSG_DONE:
				done = true
			case r.kind == unix.NLMSG_ERROR && len(r.body) >= 4:
				done = true
				errno := unix.Errno(-int32(binary.NativeEndian.Uint32(r.body)))
				failed = fmt.Errorf("list objects of the packet filter: %w", errno)
				if errno == unix.EOPNOTSUPP || errno == unix.EINVAL {
					failed = ErrUnsupported
				}
			case len(r.body) >= sizeofHeader:
				each(r.body[0], r.body[sizeofHeader:])
			}
		})
	}
	return failed
}

// notice is a set of changes that the kernel reports.
type notice int

const (
	rulesChanged  notice = 1 << iota // another program has changed rules of ours
	proxyAppeared                    // another program has made a table or chain of a kube-proxy
)

// watch calls noticed after changes of nftables, with the notices that see returns for them, until ctx
// ends. If the kernel could not report all changes, it calls noticed with every notice. It calls ready
// once, as soon as it receives all further changes.
func watch(ctx context.Context, see func(reply) notice, noticed func(notice), ready func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	defer f.Close()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = f.Close() })()
	ready()
	b := make([]byte, largestReply)
	for {
		n, err := f.Read(b)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			noticed(rulesChanged | proxyAppeared)
			continue
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		}
		var found notice
		replies(b[:n], func(r reply) { found |= see(r) })
		if found != 0 {
			noticed(found)
		}
	}
}

// noticeIn returns the notices in a notification. A change of the tables of Services counts only if
// this process serves them. A change of the table of the guard counts only if it removes an object.
// The first attribute of every kind of object is the name of the table.
func noticeIn(r reply, serving bool) notice {
	if r.kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(r.body) < sizeofHeader || r.kind&0xff == unix.NFT_MSG_NEWGEN {
		return 0
	}
	table, chain := "", ""
	attributes(r.body[sizeofHeader:], func(kind uint16, data []byte) {
		switch {
		case kind == unix.NFTA_TABLE_NAME:
			table = textOf(data)
		case kind == unix.NFTA_CHAIN_NAME && r.kind&0xff == unix.NFT_MSG_NEWCHAIN:
			chain = textOf(data)
		}
	})
	removes := false
	switch r.kind & 0xff {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE:
		removes = true
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_NEWCHAIN:
		if chain == "" && isProxyTable(table) || isProxyChain(table, chain) {
			return proxyAppeared
		}
	}
	if table == TableServices && serving || table == TableGuard && removes {
		return rulesChanged
	}
	return 0
}

// isProxyTable reports whether a kube-proxy in the mode nftables makes a table of this name.
func isProxyTable(table string) bool { return table == "kube-proxy" }

// isProxyChain reports whether a kube-proxy in another mode makes a chain of this name in this table.
func isProxyChain(table, chain string) bool { return table == proxyTable && chain == proxyChain }
