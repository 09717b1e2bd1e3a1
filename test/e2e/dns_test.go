package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/wait"
)

// nameServer is the address of the DNS server of the node.
const nameServer = "10.97.0.10"

// resolveFrom asks the DNS server for the address of a name from the network namespace of pid.
func resolveFrom(pid int, name string) (ip string, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // the thread may have started an agent, and must not end (see command)
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return "", err
	}
	defer own.Close()
	other, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return "", err
	}
	defer other.Close()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return "", err
	}
	defer func() {
		if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
			panic(back) // other tests would run on this thread
		}
	}()
	return resolve(name)
}

func resolve(name string) (ip string, err error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(nameServer+":53")))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait.Limit))
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	msg, err := m.Pack()
	if err != nil {
		return "", err
	}
	if _, err := conn.Write(msg); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	if err != nil {
		return "", err
	}
	if err := m.Unpack(buf[:n]); err != nil {
		return "", err
	}
	if len(m.Answers) != 1 {
		return "", fmt.Errorf("%s: %s, %d answers", name, m.RCode, len(m.Answers))
	}
	a, is := m.Answers[0].Body.(*dnsmessage.AResource)
	if !is {
		return "", fmt.Errorf("%s: %v", name, m.Answers)
	}
	return netip.AddrFrom4(a.A).String(), nil
}

// TestDNS_PodAsksForAService_AlsoWhileNoAgentRuns: a pod gets the DNS server of the node, and calls a
// Service by the address of its name, also after a kill -9 of the agent. --down leaves no process and
// no address. The test is not parallel: the address is one of the machine.
//
// Shows: F1
func TestDNS_PodAsksForAService_AlsoWhileNoAgentRuns(t *testing.T) {
	s := newStage(t, shared)
	s.write("web.yaml", webService+"---\n"+balancedReplicas(s))
	s.write("client.yaml", simple("client"))
	a := s.serve("--service-cidr", serviceRange)
	pods := s.awaitVersion("one", false)
	client := s.awaitRunning("client", "main")["main"].pid
	ip, _ := s.allocated()
	file, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(client), "root/etc/resolv.conf"))
	s.must(err)
	for _, line := range []string{"nameserver " + nameServer, "search default.svc.cluster.local svc.cluster.local cluster.local", "options ndots:5"} {
		if !strings.Contains(string(file), line) {
			t.Errorf("the pod's resolver lacks %q:\n%s", line, file)
		}
	}
	reached := func() {
		t.Helper()
		s.eventually(func() error {
			got, err := resolveFrom(client, "web.default.svc.cluster.local.")
			if err == nil && got != ip {
				err = errors.New("the name stands for " + got + ", not " + ip)
			}
			return err
		})
		s.answers(client, ip+":80", pods...)
	}
	reached()
	a.kill()
	reached()
	a = s.serve("--service-cidr", serviceRange)
	a.await("Adopted DNS server")
	reached()
	a.leave()
	for _, f := range s.files() {
		s.noteRemove(f) // --down has the same effect
	}
	s.runonce(0, "--down", "--service-cidr", serviceRange)
	if left, err := filepath.Glob(filepath.Join(s.root, "agent", "dns*")); err != nil || len(left) > 0 {
		t.Errorf("left after down: %v, %v", left, err)
	}
	all, err := net.InterfaceAddrs()
	s.must(err)
	for _, addr := range all {
		if strings.HasPrefix(addr.String(), nameServer+"/") {
			t.Errorf("the address %s is left", addr)
		}
	}
}
