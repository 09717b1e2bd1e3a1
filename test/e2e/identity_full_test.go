//go:build full

package e2e

import (
	"os"
	"strings"
	"testing"
)

// TestC_1_40_NamespacesAndNames: the namespaces that a pod shares with the node, those that its
// containers share with each other, and its host name.
//
// Shows: C-1.40
func TestC_1_40_NamespacesAndNames(t *testing.T) {
	s := parallelStage(t)
	s.write("plain.yaml", manifest("plain", []string{container("main", "forever"), container("side", "forever")}))
	s.write("share.yaml", manifest("share", []string{container("main", "forever"), container("side", "forever")}, "shareProcessNamespace: true"))
	s.write("host.yaml", manifest("host", []string{container("main", "forever")}, "hostPID: true", "hostIPC: true"))
	s.write("named.yaml", manifest("named", []string{container("main", "forever")},
		"hostname: front", "subdomain: shop", "hostAliases: [{ip: 10.9.8.7, hostnames: [one.example, two.example]}]"))
	s.serve("--cluster-domain", "e2e.test")
	ours := func(kind string) string { return namespace("self", kind) }
	plain, share := s.awaitRunning("plain", "main", "side"), s.awaitRunning("share", "main", "side")
	host, named := s.awaitRunning("host", "main")["main"], s.awaitRunning("named", "main")["main"]
	for _, name := range []string{"plain", "share", "host", "named"} { // before, a process may be the runtime's
		s.awaitLog(name, "main", 0, "started")
	}
	s.awaitLog("plain", "side", 0, "started")
	s.awaitLog("share", "side", 0, "started")
	of := func(r running, kind string) string { return namespace(r.pid, kind) }
	for _, c := range []struct {
		what string
		a, b string
		same bool
	}{
		{"the processes of two containers", of(plain["main"], "pid"), of(plain["side"], "pid"), false},
		{"the processes of two containers that share", of(share["main"], "pid"), of(share["side"], "pid"), true},
		{"the processes of a pod that shares and the node's", of(share["main"], "pid"), ours("pid"), false},
		{"the messages of two containers", of(plain["main"], "ipc"), of(plain["side"], "ipc"), true},
		{"the messages of a pod and the node's", of(plain["main"], "ipc"), ours("ipc"), false},
		{"the processes of hostPID and the node's", of(host, "pid"), ours("pid"), true},
		{"the messages of hostIPC and the node's", of(host, "ipc"), ours("ipc"), true},
		{"the users of a pod and the node's", of(plain["main"], "user"), ours("user"), true},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%s: %s and %s, the same: want %v", c.what, c.a, c.b, c.same)
		}
	}
	hosts, err := os.ReadFile(named.inside("/etc/hosts"))
	s.must(err)
	ip := s.sandbox("named").Network.Ip
	for _, line := range []string{ip + "\tfront.shop.default.svc.e2e.test\tfront\n", "10.9.8.7\tone.example\ttwo.example\n", "127.0.0.1\tlocalhost\n"} {
		if !strings.Contains(string(hosts), line) {
			t.Errorf("/etc/hosts lacks %q:\n%s", line, hosts)
		}
	}
	if name, err := os.ReadFile(named.inside("/etc/hostname")); err != nil || strings.TrimSpace(string(name)) != "front" {
		t.Errorf("the host name is %q, %v", name, err)
	}
	// A restart of the container discards the files that the pod wrote there, and no other pod sees
	// them.
	other, err := os.ReadFile(plain["main"].inside("/etc/hosts"))
	if s.must(err); strings.Contains(string(other), "one.example") {
		t.Errorf("another pod's /etc/hosts:\n%s", other)
	}
}
