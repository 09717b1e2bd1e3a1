package nft

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// iptables runs a program of iptables-legacy in the namespace.
func (p *place) iptables(program string, args ...string) {
	p.t.Helper()
	p.do(func() error {
		if out, err := exec.Command(program, append([]string{"-w"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// TestFilter_ProxyOfLegacyIptables_IsNamed: a kube-proxy may have its rules in tables that nftables
// does not list. Looking for them makes none.
func TestFilter_ProxyOfLegacyIptables_IsNamed(t *testing.T) {
	n := newNode(t)
	proxy := func() (found string) {
		n.do(func() (err error) {
			found, err = n.filter.Proxy()
			return err
		})
		return found
	}
	if got := proxy(); got != "" {
		t.Errorf("without rules: %q", got)
	}
	for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
		n.iptables(program, "-t", "nat", "-N", "DOCKER")
		n.iptables(program, "-t", "nat", "-A", "DOCKER", "-p", "tcp", "--dport", "80", "-m", "comment", "--comment", "KUBE-SERVICES", "-j", "RETURN")
		n.iptables(program, "-t", "filter", "-N", "KUBE-SERVICES")
	}
	if got := proxy(); got != "" {
		t.Errorf("rules of others: %q", got)
	}
	for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
		n.iptables(program, "-t", "nat", "-N", "KUBE-SERVICES")
		n.iptables(program, "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES")
		if got, want := proxy(), "chain KUBE-SERVICES in table nat of "+program; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		n.iptables(program, "-t", "nat", "-F")
		n.iptables(program, "-t", "nat", "-X", "KUBE-SERVICES")
	}
}

// entry returns an entry of an IPv4 table: a target with a name, and data behind it.
func entry(target, data string) []byte {
	b := make([]byte, 112+32+len(data))
	binary.NativeEndian.PutUint16(b[88:], 112)
	binary.NativeEndian.PutUint16(b[90:], uint16(len(b)))
	copy(b[114:], target)
	copy(b[144:], data)
	return b
}

// TestLegacy_Entries_HaveTheChainOrAnError: entries of an unknown form are no sign that no proxy runs.
func TestLegacy_Entries_HaveTheChainOrAnError(t *testing.T) {
	t.Parallel()
	l := legacyFamilies()[0]
	chain, rule := entry("ERROR", "KUBE-SERVICES\x00......"), entry("KUBE-MARK", "KUBE-SERVICES\x00")
	other := entry("ERROR", "KUBE-SERVICES-OTHER\x00")
	broken := entry("ERROR", "x")
	binary.NativeEndian.PutUint16(broken[90:], 8)
	far := entry("ERROR", "x")
	binary.NativeEndian.PutUint16(far[88:], 60000)
	for name, c := range map[string]struct {
		entries string
		has     bool
		fails   bool
	}{
		"none":     {},
		"chain":    {entries: string(rule) + string(chain), has: true},
		"others":   {entries: string(rule) + string(other)},
		"no next":  {entries: string(broken), fails: true},
		"far":      {entries: string(far), fails: true},
		"cut":      {entries: string(chain[:100]), fails: true},
		"cut late": {entries: string(chain[:150]), fails: true},
		"cut more": {entries: string(chain[:20]), fails: true},
	} {
		has, err := l.hasChain([]byte(c.entries))
		if has != c.has || (err != nil) != c.fails {
			t.Errorf("%s: %t, %v", name, has, err)
		}
	}
}
