//go:build linux

package process

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/dns/server"
	"github.com/nodectl/nodectl/test/wait"
)

// manyServices has headless Services of five endpoints each, and the Service web.
func manyServices(n int) server.State {
	s := state("web")
	for i := range n {
		of := &dns.Service{Namespace: "default", Name: fmt.Sprintf("db-%03d", i), Ports: []dns.Port{{Name: "sql", Protocol: "TCP", Number: 5432}}}
		for j := range 5 {
			of.Endpoints = append(of.Endpoints, dns.Endpoint{Address: netip.AddrFrom4([4]byte{10, 97, byte(20 + i), byte(1 + j)}), Hostname: fmt.Sprintf("h-%d", j)})
		}
		s.Services = append(s.Services, of)
	}
	s.Services = dns.Sort(s.Services)
	return s
}

// with returns a State in which a Service of the same name is replaced, or another one is added.
func with(s server.State, of *dns.Service) server.State {
	s.Services = dns.Sort(append([]*dns.Service{of}, s.Services...))
	s.Serial++
	return s
}

// logged returns how often the log has a text.
func (a agent) logged(text string) int { return strings.Count(a.log.String(), text) }

const (
	sentAll      = "Sent the DNS server all Services"
	sentChange   = "Changed the records of the DNS server"
	sentAllAgain = "Sending the DNS server all Services again"
)

// With 200 Services, a pod of one of them becomes ready, and another one leaves. The agent sends only
// the records of these endpoints. A process that was killed gets all Services again.
func TestSupervisor_OneEndpointChanges_OnlyItsRecordsAreSent(t *testing.T) {
	a := newAgent(t)
	k, _ := a.run(t)
	k.lock()
	k.child.limit = wait.Limit // after a late answer, the agent would send all Services again
	k.unlock()
	first := manyServices(200)
	k.SetState(first)
	waitFor(t, "web")
	pods := *first.Services[100]
	name := func(host string) string { return host + "." + pods.Name }
	pods.Endpoints = append(slices.Clone(pods.Endpoints[1:]), dns.Endpoint{Address: netip.MustParseAddr("10.97.250.1"), Hostname: "new"})
	k.SetState(with(first, &pods))
	waitFor(t, name("new"))
	wantAnswer(t, name("h-0"), absent)
	wantAnswer(t, name("h-1"), found)
	wantAnswer(t, "web", found)
	wait.Until(t, "the agent has the answer of the process", func() (int, bool) { return a.logged(sentChange), a.logged(sentChange) > 0 })
	if all, changes := a.logged(sentAll), a.logged(sentChange); all != 1 || changes != 1 {
		t.Errorf("sent all Services %d times, changes %d times", all, changes)
	}
	// Each of the two endpoints has an address, a PTR and an SRV record, and is an address of the Service.
	if a.logged("records=8 number=2") != 1 {
		t.Errorf("the change has other records: %s", a.log)
	}

	pid := k.pid()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "another process runs", func() (int, bool) {
		got := k.pid()
		return got, got != 0 && got != pid
	})
	waitFor(t, name("new"))
	wantAnswer(t, name("h-0"), absent)
	wantAnswer(t, "web", found)
}

// Another agent has sent its state to the process. The process rejects a change of the state before,
// and gets all Services. Without a change, the next check finds the difference.
func TestSupervisor_ProcessHasAnotherState_GetsAllServices(t *testing.T) {
	a := newAgent(t)
	k := New(a.Config) // without Run, whose check could find the difference first
	k.SetState(state("web"))
	if err := k.begin(t); err != nil {
		t.Fatal(err)
	}
	defer k.letGo()
	k.child.limit = wait.Limit // a late answer is not the subject
	another := func() {
		other := New(a.Config)
		other.SetState(state("other"))
		if err := other.begin(t); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, "other", found)
		wantAnswer(t, "web", absent)
		other.letGo()
	}
	another()
	k.SetState(with(state("web"), &dns.Service{Namespace: "default", Name: "next", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.1.2")}}))
	k.step(t.Context())
	wantAnswer(t, "next", found)
	wantAnswer(t, "web", found)
	wantAnswer(t, "other", absent)
	if n := a.logged(sentAllAgain); n != 1 {
		t.Errorf("the change was rejected %d times", n)
	}

	another()
	k.step(t.Context())
	wantAnswer(t, "other", found) // the agent does not know yet
	k.check()
	k.step(t.Context())
	wantAnswer(t, "next", found)
	wantAnswer(t, "other", absent)
	if n := a.logged("DNS server has other Services than those sent last"); n != 1 {
		t.Errorf("the check has found it %d times", n)
	}
}

// The process applies a change only to the state for which it was made, and only in its own format.
// Its state stays the same otherwise.
func TestChild_ChangeOfAnotherStateOrFormat_IsRejected(t *testing.T) {
	c := &childProcess{server: server.New(server.DefaultLimits(), slog.New(slog.DiscardHandler)), hasState: make(chan struct{})}
	first, second := state("web"), with(state("web"), &dns.Service{Namespace: "default", Name: "next", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.1.2")}})
	d, ok := server.Difference(&first, &second)
	if !ok || d.Records.Len() != 2 {
		t.Fatalf("%t, %+v", ok, d)
	}
	do := func(format int, after uint64) response {
		return c.do(request{Op: opChange, Change: &change{format, after, d}})
	}
	if a := do(changeFormat, 0); !a.Rejected {
		t.Errorf("a process without a state: %+v", a)
	}
	if a := c.do(request{Op: opState, State: &first}); a.Status == nil || a.Status.Number != 1 || a.Status.Format != changeFormat {
		t.Fatalf("%+v", a)
	}
	for _, of := range [][2]int{{changeFormat, 0}, {changeFormat, 2}, {changeFormat - 1, 1}, {changeFormat + 1, 1}} {
		if a := do(of[0], uint64(of[1])); !a.Rejected || a.Error == "" || a.Status != nil {
			t.Errorf("format %d, after state %d: %+v", of[0], of[1], a)
		}
	}
	if a := do(changeFormat, 1); a.Rejected || a.Status == nil || a.Status.Number != 2 || !a.Status.Known {
		t.Errorf("the change that fits: %+v", a)
	}
	if a := do(changeFormat, 2); !a.Rejected { // it has these records
		t.Errorf("the same change again: %+v", a)
	}
	if a := c.do(request{Op: opStatus}); a.Status.Number != 2 {
		t.Errorf("a rejected change has changed the number of the state: %+v", a)
	}
	if a := c.do(request{Op: opChange}); a.Error == "" {
		t.Errorf("a change without content: %+v", a)
	}
}

// answering answers the requests on a control connection, and records their operations. answer returns
// the answer to the request with a number.
func answering(t *testing.T, answer func(n int, q request) response) (c *conn, ops func() string) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "control")
		end, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = end.(*net.UnixConn)
	}
	control, at := ends[0], ends[1]
	var all []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer at.Close()
		for n := 1; ; n++ {
			var q request
			if read(at, &q) != nil {
				return
			}
			all = append(all, q.Op)
			if write(at, answer(n, q)) != nil {
				return
			}
		}
	}()
	return &conn{control: control, limit: wait.Limit}, func() string {
		_ = control.Close()
		<-done
		return strings.Join(all, " ")
	}
}

// An agent sends changes only to a process that reads its format, and a whole state after each
// rejected change.
func TestConn_ProcessesOfOtherVersions_GetWholeStates(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(n int, q request) response
		want   string
	}{
		"an earlier version": {func(int, request) response { return response{Status: &Status{Known: true}} }, "state state state"},
		"a later format": {func(n int, _ request) response {
			return response{Status: &Status{Format: changeFormat + 1, Number: uint64(n)}}
		}, "state state state"},
		"this version": {func(n int, _ request) response {
			return response{Status: &Status{Format: changeFormat, Number: uint64(n)}}
		}, "state change change"},
		"a version that then rejects it": {func(n int, q request) response {
			if q.Op == opChange {
				return response{Error: "no", Rejected: true}
			}
			return response{Status: &Status{Format: changeFormat, Number: uint64(n)}}
		}, "state change state change state"},
	} {
		process, ops := answering(t, c.answer)
		to := state("web")
		for i := range 3 {
			of := &dns.Service{Namespace: "default", Name: fmt.Sprintf("next-%d", i), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.1.2")}}
			next := with(to, of)
			if err := process.send(&next, slog.New(slog.DiscardHandler)); err != nil || process.sent != &next {
				t.Errorf("%s: %v", name, err)
			}
			to = next
		}
		if got := ops(); got != c.want {
			t.Errorf("%s gets %s, want %s", name, got, c.want)
		}
		last := with(to, to.Services[0])
		if err := process.send(&last, slog.New(slog.DiscardHandler)); err == nil || process.sent != nil || process.number != 0 {
			t.Errorf("%s: after a failure, the state of the process is unknown: %v, %d", name, err, process.number)
		}
	}
}
