//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/dns/server"
)

// resolverEnv makes this test's program resolve its arguments as a program in Go does.
const resolverEnv = "NODECTL_TEST_RESOLVER"

func init() {
	if os.Getenv(resolverEnv) == "" {
		return
	}
	r := net.Resolver{PreferGo: true}
	for _, name := range os.Args[1:] {
		all, err := r.LookupHost(context.Background(), name)
		slices.Sort(all)
		lost, is := errors.AsType[*net.DNSError](err)
		switch {
		case is && lost.IsNotFound:
			all = []string{"none"}
		case err != nil:
			all = []string{"error", err.Error()}
		}
		fmt.Println(name + ": " + strings.Join(all, " "))
	}
	os.Exit(0)
}

// muslMost is how many addresses of a name musl returns.
const muslMost = 48

// muslOverTCP is the first version of musl that asks again over TCP after an answer that was cut.
const muslOverTCP = "1.2.4"

// resolvers returns the command of each resolver, and how many of 120 addresses it finds.
func resolvers(t *testing.T) (commands map[string][]string, finds map[string]func(n int) bool) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := func(compiler string, flags ...string) string {
		out := filepath.Join(dir, compiler)
		cmd := exec.Command(compiler, append(flags, "-o", out, filepath.Join("testdata", "resolve.c"))...)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s; hack/sysdeps installs it", compiler, err, text)
		}
		return out
	}
	commands = map[string][]string{"glibc": {build("gcc")}, "musl": {build("musl-gcc", "-static")}, "Go": {program}}
	whole := func(n int) bool { return n == 120 }
	finds = map[string]func(n int) bool{"glibc": whole, "Go": whole, "musl": func(n int) bool { return n > 0 && n < muslMost }}
	if muslVersion(t) >= muslOverTCP { // numbers below ten
		finds["musl"] = func(n int) bool { return n == muslMost }
	}
	return commands, finds
}

// muslVersion returns the version of musl that musl-gcc links: its loader prints it.
func muslVersion(t *testing.T) string {
	t.Helper()
	loaders, err := filepath.Glob("/lib/ld-musl-*.so.1")
	if err != nil || len(loaders) != 1 {
		t.Fatalf("loaders of musl: %q, %v", loaders, err)
	}
	text, _ := exec.Command(loaders[0]).CombinedOutput() // it fails without a program
	_, rest, found := strings.Cut(string(text), "Version ")
	if !found {
		t.Fatalf("%s names no version: %q", loaders[0], text)
	}
	version, _, _ := strings.Cut(rest, "\n")
	return version
}

// others answers names of other servers: those that begin with "no" do not exist, all others have one
// IPv4 address.
func others(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 53)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			q, root := m.Questions[0], dnsmessage.MustNewName(".")
			head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 5}
			absent := strings.HasPrefix(q.Name.String(), "no")
			switch {
			case q.Type == dnsmessage.TypeA && !absent:
				m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}}}
			case absent:
				m.RCode = dnsmessage.RCodeNameError
				fallthrough
			default:
				head.Name = root
				m.Authorities = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.SOAResource{NS: root, MBox: root, MinTTL: 5}}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteToUDPAddrPort(out, from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// resolverState has Services of each kind.
func resolverState(upstream netip.AddrPort) server.State {
	s := state("web")
	s.Upstreams = []netip.AddrPort{upstream}
	ip := netip.MustParseAddr
	s.Services = append(s.Services,
		&dns.Service{Namespace: "default", Name: "both", ClusterIPs: []netip.Addr{ip("10.97.1.2"), ip("fd00:97::2")}},
		&dns.Service{Namespace: "default", Name: "six", ClusterIPs: []netip.Addr{ip("fd00:97::3")}},
		&dns.Service{Namespace: "default", Name: "mail", ExternalName: "mail.example.com"},
	)
	many := dns.Service{Namespace: "default", Name: "many"}
	for i := range 120 {
		many.Endpoints = append(many.Endpoints, dns.Endpoint{Address: netip.AddrFrom4([4]byte{10, 88, 3, byte(i)})})
	}
	s.Services = append(s.Services, &many)
	return s
}

// inPod returns a command in a mount namespace whose resolver file is that of a pod.
func inPod(t *testing.T, command []string, names ...string) *exec.Cmd {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "nameserver " + address.String() + "\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, file}, command...)
	cmd := exec.Command("/bin/sh", append(args, names...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", resolverEnv + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

// TestResolvers_GlibcMuslAndGo_FindTheSame: by the resolver file of a pod, short and whole names, of both
// families, names of other servers, names that do not exist, and an answer that is too long for UDP.
func TestResolvers_GlibcMuslAndGo_FindTheSame(t *testing.T) {
	commands, finds := resolvers(t)
	a := newAgent(t)
	k, _ := a.run(t)
	k.SetState(resolverState(others(t)))
	waitFor(t, "web")
	want := [][2]string{
		{"web", "10.97.1.1"},
		{"web.default", "10.97.1.1"},
		{"web.default.svc", "10.97.1.1"},
		{"web.default.svc.cluster.local", "10.97.1.1"}, // four dots: by the search list first
		{"web.default.svc.cluster.local.", "10.97.1.1"},
		{"both", "10.97.1.2 fd00:97::2"},
		{"six", "fd00:97::3"},
		{"mail", "192.0.2.1"},
		{"www.example.com", "192.0.2.1"},
		{"nothing", "none"},
		{"nothing.default.svc.cluster.local.", "none"},
		{"nothing.example.com", "none"},
	}
	names := []string{"many"}
	for _, w := range want {
		names = append(names, w[0])
	}
	for _, resolver := range slices.Sorted(maps.Keys(commands)) {
		var complaints strings.Builder
		cmd := inPod(t, commands[resolver], names...)
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", resolver, err, complaints.String())
		}
		got := make(map[string]string)
		for line := range strings.Lines(string(out)) {
			name, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
			got[name] = rest
		}
		for _, w := range want {
			if got[w[0]] != w[1] {
				t.Errorf("%s: %s is %q, want %q", resolver, w[0], got[w[0]], w[1])
			}
		}
		if n := len(strings.Fields(got["many"])); !finds[resolver](n) {
			t.Errorf("%s: %d addresses of 120: %s", resolver, n, got["many"])
		}
	}
}
