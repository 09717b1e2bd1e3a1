package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Filter writes the nftables tables of this node. Its methods are safe for concurrent use.
type Filter struct {
	mu      sync.Mutex
	conn    *conn
	port    atomic.Uint32
	applied *tables     // nil: unknown, or no table
	serving atomic.Bool // this Filter has made the tables of Services
	// departed are the endpoints that have left and for which the kernel may still have UDP
	// connections.
	departed map[netip.AddrPort]bool
}

// New returns a Filter. It does not connect to the kernel.
func New() *Filter { return &Filter{} }

// Close closes the connection to the kernel. The tables stay.
func (f *Filter) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop()
}

func (f *Filter) drop() {
	if f.conn != nil {
		f.conn.close()
		f.conn = nil
	}
}

// dial opens the connection if it is not open.
func (f *Filter) dial() error {
	if f.conn != nil {
		return nil
	}
	c, err := dial(unix.NETLINK_NETFILTER)
	if err == nil {
		f.conn = c
		f.port.Store(c.port)
	}
	return err
}

// transaction runs one transaction. After an error, the content of the tables counts as unknown.
func (f *Filter) transaction(write func(m *message)) error {
	if err := f.dial(); err != nil {
		return err
	}
	err := f.conn.transaction(write)
	if err != nil {
		f.applied = nil
		f.drop()
	}
	return err
}

// Apply changes the tables to d, and returns the number of messages that it sent. The first Apply,
// and the first one after Forget, replaces the tables. Later calls send only the differences. After
// ErrDatagrams the rules are in force, and the next Apply ends the connections.
func (f *Filter) Apply(d Desired) (messages int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, known := f.applied, f.applied != nil
	if !known {
		before = newTables()
	}
	next, c := before.next(d)
	f.applied = nil // before is not valid any more
	err = f.transaction(func(m *message) {
		first := m.seq
		for i, v6 := range []bool{false, true} {
			t := &table{message: m, name: TableServices, family: familyOf(v6)}
			t.sets = uint32(i) << 20 // set numbers must be unique in the transaction
			if !known {
				t.replace()
				t.base()
			}
			for _, o := range c.ops[i] {
				t.change(o)
			}
		}
		messages = int(m.seq - first)
	})
	if err != nil {
		return 0, fmt.Errorf("change %s of the packet filter: %w", TableServices, err)
	}
	f.departed = departed(f.departed, c.departed, next.datagrams)
	f.applied = next
	f.serving.Store(true)
	if len(f.departed) > 0 {
		if err := f.conn.forgetDatagrams(f.departed); err != nil {
			f.drop()
			return messages, fmt.Errorf("%w: %w", ErrDatagrams, err)
		}
		f.departed = nil
	}
	return messages, nil
}

// Forget makes the next Apply replace the tables, because another program may have changed them.
func (f *Filter) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied = nil
}

// Guard makes the table that protects the loopback addresses, unless it exists. All agents of a
// machine share it.
func (f *Filter) Guard() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n, err := f.guards(); err != nil || n == guardRules {
		return err
	}
	err := f.transaction(func(m *message) {
		t := &table{message: m, name: TableGuard, family: familyOf(false)}
		t.replace()
		t.guard()
	})
	if err != nil {
		return fmt.Errorf("make %s of the packet filter: %w", TableGuard, err)
	}
	return nil
}

// guards returns the number of rules in the table of the guard.
func (f *Filter) guards() (n int, err error) {
	if err := f.dial(); err != nil {
		return 0, err
	}
	err = f.conn.list(unix.NFT_MSG_GETRULE, func(_ byte, attrs []byte) {
		attributes(attrs, func(kind uint16, data []byte) {
			if kind == unix.NFTA_RULE_TABLE && textOf(data) == TableGuard {
				n++
			}
		})
	})
	if err != nil {
		f.drop()
	}
	return n, err
}

// Remove removes the tables of Services. A missing table is not an error.
func (f *Filter) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.transaction(func(m *message) {
		for _, v6 := range []bool{false, true} {
			t := &table{message: m, name: TableServices, family: familyOf(v6)}
			t.create()
			end := t.begin(unix.NFT_MSG_DELTABLE, 0, t.family)
			t.text(unix.NFTA_TABLE_NAME, t.name)
			end()
		}
	})
	f.applied = nil
	f.serving.Store(false)
	if err != nil {
		return fmt.Errorf("remove %s of the packet filter: %w", TableServices, err)
	}
	return nil
}

// Watch calls changed after another process has changed the tables of Services that Apply made, or
// has removed a part of the guard. It calls proxied after another process has made a table or chain
// of a kube-proxy in nftables. It returns when ctx ends.
func (f *Filter) Watch(ctx context.Context, changed, proxied func()) error {
	return f.watch(ctx, changed, proxied, func() {})
}

func (f *Filter) watch(ctx context.Context, changed, proxied, ready func()) error {
	see := func(r reply) notice {
		if r.port == f.port.Load() {
			return 0
		}
		return noticeIn(r, f.serving.Load())
	}
	return watch(ctx, see, func(n notice) {
		if n&rulesChanged != 0 {
			changed()
		}
		if n&proxyAppeared != 0 {
			proxied()
		}
	}, ready)
}

// Proxy names the tables and chains of a kube-proxy in the packet filter, such as "table ip
// kube-proxy", or returns "". It also looks into the tables of iptables-legacy.
func (f *Filter) Proxy() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.dial(); err != nil {
		return "", err
	}
	var found []string
	err := errors.Join(
		f.conn.list(unix.NFT_MSG_GETTABLE, func(family byte, attrs []byte) {
			attributes(attrs, func(kind uint16, data []byte) {
				if kind == unix.NFTA_TABLE_NAME && isProxyTable(textOf(data)) {
					found = append(found, "table "+familyText(family)+" kube-proxy")
				}
			})
		}),
		f.conn.list(unix.NFT_MSG_GETCHAIN, func(family byte, attrs []byte) {
			table, chain := "", ""
			attributes(attrs, func(kind uint16, data []byte) {
				switch kind {
				case unix.NFTA_CHAIN_TABLE:
					table = textOf(data)
				case unix.NFTA_CHAIN_NAME:
					chain = textOf(data)
				}
			})
			if isProxyChain(table, chain) {
				found = append(found, "chain "+proxyChain+" in table "+familyText(family)+" "+table)
			}
		}),
	)
	if err != nil {
		f.drop()
		return "", err
	}
	old, err := legacyProxies()
	if err != nil {
		return "", err
	}
	found = append(found, old...)
	slices.Sort(found)
	return strings.Join(slices.Compact(found), ", "), nil
}

func familyText(family byte) string {
	switch family {
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_INET:
		return "inet"
	}
	return fmt.Sprint("family ", family)
}

// Supported reports whether the kernel has nftables and this process may use it.
func Supported() error {
	c, err := dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer c.close()
	return c.list(unix.NFT_MSG_GETTABLE, func(byte, []byte) {})
}
