package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// stamping is a pod of one container that runs for ever and stamps each life; it
// carries a secret, and so do most pods of these tests.
func (s *stage) stamping(name string, lines ...string) string {
	return manifest(name, []string{container("main", "append, /x/"+name+", forever", scratchMount, secret)},
		append([]string{s.scratchVolume()}, lines...)...)
}

// awaitLives returns the lives of a pod's container main when it has had so many
// and the last one runs.
func (s *stage) awaitLives(name string, n int) []life {
	s.Helper()
	var all []life
	s.eventually(func() error {
		all = nil
		for _, l := range s.lives.of(s.name) {
			if l.pod == s.full(name) && l.name == "main" {
				all = append(all, l)
			}
		}
		if len(all) < n || !all[len(all)-1].to.IsZero() {
			return fmt.Errorf("pod %s has had %d lives, want %d: %v", name, len(all), n, all)
		}
		return nil
	})
	return all
}

// crash kills the process of a container as the kernel would.
func (s *stage) crash(id string) {
	s.Helper()
	for _, p := range s.node.Processes(id) {
		if err := unix.Kill(p.Pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			s.Fatal(err)
		}
	}
}

// sample takes a pod through its life, and returns how long its start took from
// the manifest, and its restart from its end.
func (s *stage) sample(name string) (start, restart time.Duration) {
	s.Helper()
	begin := time.Now()
	s.write(name+".yaml", simple(name))
	first := s.awaitLives(name, 1)[0]
	s.crash(first.id)
	both := s.awaitLives(name, 2)
	s.remove(name + ".yaml")
	return first.from.Sub(begin), both[1].from.Sub(both[0].to)
}

// TestF22_HungAndSlowPodsDelayNobody: a pod no call about which is answered from
// its first on, one that gets so while it runs, and one each of whose calls takes
// two seconds: other pods start and restart beside them as they do beside nobody,
// and the agent does not pile up what waits.
func TestF22_HungAndSlowPodsDelayNobody(t *testing.T) {
	t.Parallel()
	calm, bad := newStage(t, shared), newStage(t, shared)
	p := bad.through(criproxy.Hooks{})
	calm.serve()
	a := bad.serve()
	bad.write("stuck.yaml", simple("stuck"))
	stuck := bad.awaitRunning("stuck", "main")["main"]
	bad.awaitReady("stuck", true)

	var hung []*criproxy.Fault
	for _, name := range []string{"hung", "stuck"} {
		hung = append(hung, p.Fault(criproxy.Rule{Pod: bad.full(name), Hang: true}))
	}
	slow := p.Fault(criproxy.Rule{Pod: bad.full("slow"), Delay: 2 * time.Second})
	asked := func(f *criproxy.Fault) {
		t.Helper()
		bad.happens(f, 1)
	}
	bad.crash(stuck.id)
	bad.write("hung.yaml", simple("hung"))
	for _, f := range hung {
		asked(f)
	}
	bad.write("slow.yaml", simple("slow"))
	asked(slow)
	const samples = 10
	var starts, restarts [2][]time.Duration
	for i := range samples {
		for j, s := range []*stage{calm, bad} {
			start, restart := s.sample(fmt.Sprint("p", i))
			starts[j], restarts[j] = append(starts[j], start), append(restarts[j], restart)
		}
	}
	for what, took := range map[string][2][]time.Duration{"start": starts, "restart": restarts} {
		for _, all := range took {
			slices.Sort(all)
		}
		t.Logf("%ss beside nobody %v, beside the fault %v", what, took[0], took[1])
		// The slowest two are the machine's when it stands still. Two hung starts hold
		// the start slots of two cores once, for some four times as long as a call
		// usually takes.
		const slow = samples - 3
		if took[1][slow] > 2*took[0][slow]+2*time.Second {
			t.Errorf("a slow %s took %s, without the fault %s", what, took[1][slow], took[0][slow])
		}
		// But no machine stands as long as a call that hangs.
		const slowest = samples - 1
		if took[1][slowest] > 2*took[0][slowest]+10*time.Second {
			t.Errorf("the slowest %s took %s, without the fault %s", what, took[1][slowest], took[0][slowest])
		}
	}
	for _, f := range hung {
		if n := len(f.Calls()); n > 20 {
			t.Errorf("%d calls about %s, none of which was answered", n, f.Pod)
		}
	}
	// The runtime is in the middle of nothing when the agent goes.
	for i := range samples {
		bad.awaitGone(fmt.Sprint("p", i))
	}
	bad.awaitReady("slow", true)
	// A Go program that gets SIGQUIT says what each of its goroutines does.
	a.asked.Store(true)
	if err := a.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-a.done
	a.read.Wait()
	if n := len(regexp.MustCompile(`(?m)^goroutine \d+`).FindAllString(a.said(), -1)); n == 0 || n > 100 {
		t.Errorf("the agent had %d goroutines with three pods in trouble", n)
	}
	for _, f := range append(hung, slow) {
		f.Lift()
	}
	bad.serve()
	for _, name := range []string{"hung", "slow", "stuck"} {
		bad.awaitReady(name, true)
	}
}

// sequence returns the mutating calls about a pod, in the order they came.
func sequence(f *criproxy.Fault) []string {
	var all []string
	for _, c := range f.Calls() {
		if criproxy.Mutating(c.Method) {
			all = append(all, strings.TrimSpace(c.Method+" "+c.Container))
		}
	}
	return all
}

// TestF23_SlowRuntime: with a runtime that takes two seconds for every call, or
// one, pods come and go late, but by the very calls it takes otherwise: none twice, none
// beside another of the same pod, and no storm of reading.
func TestF23_SlowRuntime(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	s.serve().await("All pods reported")
	slow := p.Fault(criproxy.Rule{Delay: 2 * time.Second})
	pods := []string{"one", "two"}
	watch := make(map[string]*criproxy.Fault)
	for _, name := range pods {
		watch[name] = p.Fault(criproxy.Rule{Pod: s.full(name)})
		s.write(name+".yaml", s.stamping(name))
	}
	const late = 2 * time.Minute
	for _, name := range pods {
		node.Eventually(t, late, func() error {
			if st := s.status(name); st == nil || !ready(st.Status) {
				return errors.New("pod " + name + " is not ready")
			}
			return nil
		})
		s.awaitStamps(name, 1)
		if got, want := sequence(watch[name]), []string{"RunPodSandbox", "CreateContainer main", "StartContainer main"}; !slices.Equal(got, want) {
			t.Errorf("calls for pod %s: %v, want %v", name, got, want)
		}
	}
	slow.Lift()
	slow = p.Fault(criproxy.Rule{Delay: time.Second}) // the rest takes long enough
	for _, name := range pods {
		s.remove(name + ".yaml")
	}
	node.Eventually(t, late, func() error {
		if n := len(s.sandboxes()); n > 0 {
			return fmt.Errorf("%d sandboxes are there", n)
		}
		return nil
	})
	slow.Lift()
	for _, name := range pods {
		s.awaitGone(name)
		want := []string{"RunPodSandbox", "CreateContainer main", "StartContainer main", "StopContainer main", "StopPodSandbox", "RemoveContainer main", "RemovePodSandbox"}
		if got := sequence(watch[name]); !slices.Equal(got, want) {
			t.Errorf("calls for pod %s: %v, want %v", name, got, want)
		}
		calls := watch[name].Calls()
		if n := len(calls); n > 50 {
			t.Errorf("%d calls for the life of pod %s", n, name)
		}
		for i, c := range calls {
			for _, d := range calls[i+1:] {
				if criproxy.Mutating(c.Method) && criproxy.Mutating(d.Method) && d.Began.Before(c.Ended) {
					t.Errorf("pod %s: %s began while %s was on its way", name, d.Method, c.Method)
				}
			}
		}
	}
	s.nothingLeft()
}

// TestF24_EveryCallFailsOnce: each call by which a pod comes and goes fails once,
// in every way there is, the last of which is that its answer is lost: the pod
// comes all the same, once, and goes, all of it.
func TestF24_EveryCallFailsOnce(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	s.serve().await("All pods reported")
	ways := map[string]error{"lost": status.Error(codes.Unavailable, "the answer is lost")}
	for _, c := range []codes.Code{codes.Unavailable, codes.Unknown, codes.ResourceExhausted, codes.NotFound, codes.DeadlineExceeded, codes.Internal} {
		ways[strings.ToLower(c.String())] = status.Error(c, "made to fail")
	}
	methods := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox",
		"ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"}
	var faults []*criproxy.Fault
	for name, err := range ways {
		for _, m := range methods {
			faults = append(faults, p.Fault(criproxy.Rule{Method: m, Pod: s.full(name), Times: 1, Err: err, After: name == "lost"}))
		}
		s.write(name+".yaml", s.stamping(name))
	}
	for name := range ways {
		s.awaitLives(name, 1)
	}
	s.invariants()
	for name := range ways {
		s.remove(name + ".yaml")
	}
	for name := range ways {
		s.awaitGone(name)
		s.awaitStamps(name, 1)
		if all := s.awaitEnded(name, "main", 1); len(all) != 1 || all[0].exit != 0 {
			t.Errorf("%s: lives %+v, want one that was asked to end and did", name, all)
		}
	}
	for _, f := range faults {
		if len(f.Calls()) != 1 {
			t.Errorf("%s of pod %s failed %d times, want once", f.Method, f.Pod, len(f.Calls()))
		}
	}
	s.nothingLeft()
}

// TestF25_EventsOnARealRuntime: whatever becomes of a pod's events on their way,
// from its start to its end, a crash is one restart, and what is gone stays gone.
func TestF25_EventsOnARealRuntime(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	s.serve("--sync-frequency", "3s").await("All pods reported")
	faults := map[string]criproxy.Rule{
		"lost":    {Drop: true},
		"double":  {Twice: true},
		"swapped": {Swap: true},
		"stale":   {Delay: 4 * time.Second},
		"blind":   {NoSandbox: true},
		"broken":  {Times: 3, Err: status.Error(codes.Unavailable, "the stream ends")},
		"halted":  {Skip: 2, Times: 1, Hang: true},
	}
	rules := make(map[string]*criproxy.Fault)
	for name, r := range faults {
		if name == "halted" { // a stream that stands still tells nothing of the others either
			continue
		}
		r.Method, r.Pod = criproxy.Event, s.full(name)
		rules[name] = p.Fault(r)
		s.write(name+".yaml", s.stamping(name))
	}
	for name := range rules {
		s.awaitStamps(name, 1)
		s.crash(s.awaitLives(name, 1)[0].id)
	}
	for name := range rules {
		s.awaitStamps(name, 2)
		s.awaitLives(name, 2)
		s.awaitReady(name, true)
	}
	r := faults["halted"]
	r.Method, r.Pod = criproxy.Event, s.full("halted")
	halted := p.Fault(r)
	s.write("halted.yaml", s.stamping("halted"))
	s.awaitStamps("halted", 1)
	s.crash(s.awaitLives("halted", 1)[0].id)
	s.awaitLives("halted", 2)
	s.invariants()
	halted.Lift()
	for _, f := range s.files() {
		s.remove(f)
	}
	for name := range faults {
		s.awaitGone(name)
	}
	<-time.After(faults["stale"].Delay) // what is heard late now is about pods that are gone
	for name := range faults {
		if n := s.stamps(name); n != 2 {
			t.Errorf("%s was started %d times, want 2", name, n)
		}
	}
	for name, f := range rules {
		if len(f.Calls()) == 0 {
			t.Errorf("nothing happened to the events of %s", name)
		}
	}
	s.nothingLeft()
}

// TestF26_EmptyListsOnARealRuntime: a runtime that shows nothing at all for a
// moment, to a look at one pod, to the relist of all, or to an agent that has just
// begun, costs no container and makes none.
func TestF26_EmptyListsOnARealRuntime(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	a := s.serve("--sync-frequency", "1s")
	was := make(map[string]map[string]running)
	for i := range 3 {
		name := fmt.Sprint("p", i)
		s.write(name+".yaml", s.stamping(name))
		was[name] = s.awaitRunning(name, "main")
		s.awaitReady(name, true)
	}
	s.quiet(p)
	before := len(p.Mutations())
	const boxes, containers = "ListPodSandbox", "ListContainers"
	empty := func(pod string, methods ...string) (all []*criproxy.Fault) {
		for _, m := range methods {
			all = append(all, p.Fault(criproxy.Rule{Method: m, Pod: pod, Times: 1, Empty: true}))
		}
		return all
	}
	happened := func(all []*criproxy.Fault) {
		t.Helper()
		for _, f := range all {
			s.happens(f, 1)
			f.Lift()
		}
	}
	for _, methods := range [][]string{{boxes}, {containers}, {boxes, containers}} {
		happened(empty("", methods...)) // of all pods
		faults := empty(s.full("p0"), methods...)
		// An edit that changes no container is a look at its pod.
		s.write("p0.yaml", strings.Replace(s.stamping("p0"), "{name: p0}", fmt.Sprintf("{name: p0, labels: {edit: %q}}", strings.Join(methods, "-")), 1))
		happened(faults)
		a.leave()
		faults = empty("", methods...)
		a = s.serve("--sync-frequency", "1s")
		a.await("All pods reported", "pods=3")
		happened(faults)
	}
	<-time.After(2 * time.Second) // longer than an empty answer is doubted
	s.quiet(p)
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
	for name, w := range was {
		s.awaitReady(name, true)
		s.untouched(name, w)
	}
}
