//go:build full

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/test/criproxy"
)

// TestF24_EveryCallFailsOnce: each call that starts or stops a pod fails once, in every way,
// the last of which is a lost answer. The pod still starts, once, and is removed completely.
//
// Shows: F24
func TestF24_EveryCallFailsOnce(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	s.serve().await("Status of every pod is known")
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

// TestF25_EventsOnARealRuntime: whatever happens to a pod's events on their way, from its
// start to its end, a crash is one restart, and a removed pod stays removed.
//
// Shows: F25
func TestF25_EventsOnARealRuntime(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	s.serve("--sync-frequency", "1s").await("Status of every pod is known")
	faults := map[string]criproxy.Rule{
		"lost":    {Drop: true},
		"double":  {Twice: true},
		"swapped": {Swap: true},
		"stale":   {Delay: time.Second},
		"blind":   {NoSandbox: true},
		"broken":  {Times: 3, Err: status.Error(codes.Unavailable, "the stream ends")},
		"halted":  {Skip: 2, Times: 1, Hang: true},
	}
	rules := make(map[string]*criproxy.Fault)
	for name, r := range faults {
		if name == "halted" { // a halted stream delivers no events of the others either
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
	s.eventually(func() error { // events that arrive now are about removed pods
		for _, c := range rules["stale"].Calls() {
			if c.Ended.IsZero() {
				return errors.New("a late event is still on its way")
			}
		}
		return nil
	})
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

// TestF26_EmptyListsOnARealRuntime: a runtime that returns empty lists for a moment, for one
// pod, for the relist of all, or to an agent that has just started, causes no container to
// stop or start.
//
// Shows: F26
func TestF26_EmptyListsOnARealRuntime(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	p := s.through(criproxy.Hooks{})
	a := s.serve()
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
		// An edit that changes no container makes the agent list its pod.
		s.write("p0.yaml", strings.Replace(s.stamping("p0"), "{name: p0}", fmt.Sprintf("{name: p0, labels: {edit: %q}}", strings.Join(methods, "-")), 1))
		happened(faults)
		a.leave()
		faults = empty("", methods...)
		a = s.serve()
		a.await("Status of every pod is known", "pods=3")
		happened(faults)
	}
	s.passes(p, 5) // the agent would have acted on an accepted empty list by now
	s.quiet(p)
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
	for name, w := range was {
		s.awaitReady(name, true)
		s.untouched(name, w)
	}
}
