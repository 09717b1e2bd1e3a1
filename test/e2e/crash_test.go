package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/criproxy"
)

// moment is when an agent is killed: around one mutating call.
type moment struct {
	n      int  // the call, from 1
	during bool // while the runtime works on it, not when it is done
}

func (m moment) String() string {
	if m.during {
		return fmt.Sprintf("during call %d", m.n)
	}
	return fmt.Sprintf("after call %d", m.n)
}

// working is about half the time a call takes.
var working = map[string]time.Duration{
	"RunPodSandbox": 40 * time.Millisecond, "StartContainer": 20 * time.Millisecond,
	"StopPodSandbox": 20 * time.Millisecond, "StopContainer": 20 * time.Millisecond,
}

// executioner kills an agent at a moment of its calls.
type executioner struct {
	*criproxy.Proxy
	victim atomic.Pointer[agent]
	moment atomic.Pointer[moment] // nil: nobody is killed
	spared atomic.Int32           // mutating calls before those that count
}

func (s *stage) executioner() *executioner {
	e := &executioner{}
	due := func(c criproxy.Call, during bool) *agent {
		m := e.moment.Load()
		if m == nil || m.during != during || c.N != m.n+int(e.spared.Load()) {
			return nil
		}
		return e.victim.Load()
	}
	e.Proxy = s.through(criproxy.Hooks{
		Before: func(c criproxy.Call) {
			if a := due(c, true); a != nil {
				// Killed while this call goes on.
				time.AfterFunc(max(working[c.Method], 2*time.Millisecond), func() { _ = a.cmd.Process.Kill() })
			}
		},
		After: func(c criproxy.Call, _ error) {
			if a := due(c, false); a != nil {
				_ = a.cmd.Process.Kill()
				<-a.done // it never hears the answer
			}
		},
	})
	return e
}

// arm lets the victim be killed at a moment counted from now.
func (e *executioner) arm(a *agent, m moment) {
	a.asked.Store(true)
	if m.during {
		a.interrupts()
	}
	e.spared.Store(int32(len(e.Mutations())))
	e.victim.Store(a)
	e.moment.Store(&m)
}

// interrupted says that some agent of the shared node was killed while the runtime
// worked for it. containerd then breaks off what it does, and a runc that is killed
// leaves an empty cgroup behind, under a name that nobody knows: see interrupts.
var interrupted atomic.Bool

// disarm waits for the victim's end.
func (e *executioner) disarm(s *stage) {
	s.Helper()
	a := e.victim.Load()
	select {
	case <-a.done:
	case <-time.After(patience):
		s.Fatalf("the agent was not killed; calls so far: %s", strings.Join(e.Mutations(), " "))
	}
	e.moment.Store(nil)
}

// crashPod is a pod whose lives are counted: an init container, a container
// that ends by itself when asked, and one that has to be killed. With network it
// is on the pod network; without, on the host's: a call that is broken off kills
// the network's plugins in their work, and what they then leave in the packet
// filter they never find again.
func (s *stage) crashPod(network bool) string {
	more := "volumeMounts: [{name: x, mountPath: /x}, {name: data, mountPath: /data}]"
	return manifest("web", []string{
		container("main", `term, "7", cat, /data/init, append, /x/main, forever`, more),
		container("side", "ignore, append, /x/side, forever", more),
	},
		fmt.Sprint("hostNetwork: ", !network), "terminationGracePeriodSeconds: 1",
		"volumes: [{name: x, hostPath: {path: "+s.scratch+"}}, {name: data, emptyDir: {}}]",
		"initContainers:",
		container("init", "append, /x/init, write, /data/init, done", more))
}

// Transcripts of the mutating calls of crashPod's start and stop.
var (
	startCalls = strings.Fields("RunPodSandbox CreateContainer StartContainer CreateContainer StartContainer CreateContainer StartContainer")
	stopCalls  = strings.Fields("StopContainer StopContainer StopPodSandbox RemoveContainer RemoveContainer RemoveContainer RemovePodSandbox")
)

// TestF1_KillAtEveryCallOfAStart: kill -9 after and during every call of a pod's
// start, and another agent, lead to the same end: the pod runs, no container has
// two lives at once, and after a call that was done nothing is done twice.
func TestF1_KillAtEveryCallOfAStart(t *testing.T) {
	t.Parallel()
	t.Run("transcript", func(t *testing.T) {
		s := parallelStage(t)
		p := s.executioner()
		s.write("web.yaml", s.crashPod(true))
		s.serve()
		s.awaitReady("web", true)
		if got := p.Mutations(); !slices.Equal(got, startCalls) {
			t.Errorf("calls of a start:\n%v, want\n%v", got, startCalls)
		}
	})
	for _, m := range moments(len(startCalls)) {
		t.Run(m.String()+" "+startCalls[m.n-1], func(t *testing.T) {
			s := parallelStage(t)
			e := s.executioner()
			a := s.serve()
			e.arm(a, m)
			s.write("web.yaml", s.crashPod(!m.during))
			e.disarm(s)
			s.serve()
			s.awaitReady("web", true)
			was := s.awaitRunning("web", "main", "side")
			if n := len(s.sandboxes()); n != 1 {
				t.Errorf("%d sandboxes", n)
			}
			for _, c := range []string{"init", "main", "side"} {
				if !m.during { // a start that was broken off may have got as far as the container
					s.awaitStamps(c, 1)
				}
			}
			if n := len(s.containers("web")); n != 3 && !m.during {
				t.Errorf("%d containers are listed, want one record of each of three", n)
			}
			s.untouched("web", was)
			s.remove("web.yaml")
			s.awaitGone("web")
			s.nothingLeft()
		})
	}
}

// TestF1_KillAtEveryCallOfAStop: the same for a stop: the pod goes, all of it,
// and each container got its SIGTERM and its grace.
func TestF1_KillAtEveryCallOfAStop(t *testing.T) {
	t.Parallel()
	t.Run("transcript", func(t *testing.T) {
		s := parallelStage(t)
		p := s.executioner()
		s.write("web.yaml", s.crashPod(true))
		s.serve()
		s.awaitReady("web", true)
		begin := len(p.Mutations())
		s.remove("web.yaml")
		s.awaitGone("web")
		if got := p.Mutations()[begin:]; !slices.Equal(got, stopCalls) {
			t.Errorf("calls of a stop:\n%v, want\n%v", got, stopCalls)
		}
	})
	for _, m := range moments(len(stopCalls)) {
		t.Run(m.String()+" "+stopCalls[m.n-1], func(t *testing.T) {
			s := parallelStage(t)
			e := s.executioner()
			s.write("web.yaml", s.crashPod(!m.during))
			a := s.serve()
			s.awaitReady("web", true)
			s.awaitStamps("main", 1)
			s.awaitStamps("side", 1)
			e.arm(a, m)
			asked := time.Now()
			s.remove("web.yaml")
			e.disarm(s)
			s.serve()
			s.awaitGone("web")
			s.nothingLeft()
			for c, code := range map[string]int32{"main": 7, "side": 137} {
				all := s.awaitEnded("web", c, 1)
				if len(all) != 1 || all[0].exit != code {
					t.Errorf("lives of container %s: %+v, want one that ended with %d", c, all, code)
				} else if c == "side" && all[0].to.Sub(asked) < 900*time.Millisecond {
					t.Errorf("container %s was killed after %s, its grace is 1s", c, all[0].to.Sub(asked))
				}
			}
		})
	}
}

// moments are all for n calls.
func moments(n int) []moment {
	var all []moment
	for i := range n {
		all = append(all, moment{i + 1, false}, moment{i + 1, true})
	}
	return all
}

// TestF1_KillAgainAndAgain: an agent that is killed every moment of a pod's life
// still gets there, and never has two of one container.
func TestF1_KillAgainAndAgain(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	s.write("web.yaml", s.crashPod(false))
	s.interrupts()
	for i := range 12 {
		a := s.serve()
		<-time.After(time.Duration(40+35*i) * time.Millisecond)
		a.killNow()
	}
	a := s.serve()
	s.awaitReady("web", true)
	was := s.awaitRunning("web", "main", "side")
	s.remove("web.yaml")
	for i := range 6 {
		<-time.After(time.Duration(50+70*i) * time.Millisecond)
		a.killNow()
		a = s.serve()
	}
	s.awaitGone("web")
	s.nothingLeft()
	s.eventually(func() error { // the runtime tells of an end a moment after it shows it
		if all := s.ended("web", "main"); len(all) == 0 || all[len(all)-1].id != was["main"].id {
			return fmt.Errorf("the last life of main is %+v, want %s", all, was["main"].id)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(s.root, "pods")); err != nil {
		t.Error(err)
	}
	t.Logf("%d mutating calls", len(p.Mutations()))
}
