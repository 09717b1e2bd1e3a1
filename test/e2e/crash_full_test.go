//go:build full

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// called returns when the agent, which is oftenSynced, has made n more calls.
func (s *stage) called(p *criproxy.Proxy, n int) {
	s.Helper()
	count := func() (all int) {
		for _, n := range p.Counts() {
			all += n
		}
		return all
	}
	before := count()
	wait.Until(s.T, fmt.Sprint("the agent has made ", n, " calls more"), func() (int, bool) {
		made := count() - before
		return made, made >= n
	})
}

// Transcripts of the mutating calls of crashPod's start and stop.
var (
	startCalls = strings.Fields("RunPodSandbox CreateContainer StartContainer CreateContainer StartContainer CreateContainer StartContainer")
	stopCalls  = strings.Fields("StopContainer StopContainer StopPodSandbox RemoveContainer RemoveContainer RemoveContainer RemovePodSandbox")
)

// TestF1_KillAtEveryCallOfAStart: kill -9 after and during every call of a pod's start, and
// another agent, give the same result: the pod runs, no container runs twice at once, and
// after a completed call nothing is done twice.
//
// Shows: F1
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
				if !m.during { // an interrupted start may have reached the container
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

// TestF1_KillAtEveryCallOfAStop: the same for a stop: the whole pod is removed, and each
// container got its SIGTERM and its grace period.
//
// Shows: F1
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

// moments returns all moments for n calls.
func moments(n int) []moment {
	var all []moment
	for i := range n {
		all = append(all, moment{i + 1, false}, moment{i + 1, true})
	}
	return all
}

// TestF1_KillAgainAndAgain: agents that are killed again and again during a pod's start and
// stop still complete both, and never run two of one container.
//
// Shows: F1
func TestF1_KillAgainAndAgain(t *testing.T) {
	s := parallelStage(t).oftenSynced() // so that it always makes calls
	p := s.through(criproxy.Hooks{})
	s.write("web.yaml", s.crashPod(false))
	s.interrupts()
	for i := range 12 {
		a := s.serve()
		s.called(p, 3+2*i)
		a.killNow()
	}
	a := s.serve()
	s.awaitReady("web", true)
	was := s.awaitRunning("web", "main", "side")
	s.remove("web.yaml")
	for i := range 6 {
		s.called(p, 2+3*i)
		a.killNow()
		a = s.serve()
	}
	s.awaitGone("web")
	s.nothingLeft()
	s.eventually(func() error { // the runtime sends the event of an exit a moment after it lists it
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

// crashPod is a pod whose container runs are counted: an init container, a container that exits on
// SIGTERM, and one that must be killed. With network it is on the pod network; without, on the
// host's: an interrupted call kills the network plugins at work, and they never find their rules in
// the packet filter again.
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

// TestF1_LeftOfKilledAgents: pods are added and removed while their agents are killed, again
// and again, at any moment. In the end nothing is left of them, no cgroup and no mount.
//
// Shows: F1
func TestF1_LeftOfKilledAgents(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	s.interrupts()
	kinds := []string{resources("cpu: 10m, memory: 16Mi", "cpu: 10m, memory: 16Mi"), resources("cpu: 10m", "memory: 16Mi"), "stdin: false"}
	var names []string
	for i := range 6 {
		names = append(names, fmt.Sprint("p", i))
	}
	s.excuse(names...)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 1))
	there := make(map[string]bool)
	s.write("keys.yaml", secretOf("keys", "token", canary))
	put := func(i int) {
		s.write(names[i]+".yaml", manifest(names[i], []string{container("main", "forever", kinds[i%3],
			"volumeMounts: [{name: m, mountPath: /m}, {name: s, mountPath: /s}, {name: s, mountPath: /t, subPath: token}, {name: m, mountPath: /n, subPath: deep}]")},
			"hostNetwork: true", "terminationGracePeriodSeconds: 1",
			"volumes: [{name: m, emptyDir: {medium: Memory}}, {name: s, secret: {secretName: keys}}]"))
		there[names[i]] = true
	}
	for round := range 10 {
		a := s.serve()
		if round == 0 { // so that at least one is there
			put(0)
			s.awaitRunning(names[0], "main")
		}
		for range 3 {
			if i := dice.IntN(len(names)); there[names[i]] {
				s.remove(names[i] + ".yaml")
				there[names[i]] = false
			} else {
				put(i)
			}
			s.called(s.front, dice.IntN(20))
		}
		a.killNow()
	}
	s.serve()
	for name, here := range there {
		if here {
			s.remove(name + ".yaml")
		}
	}
	for _, name := range names {
		s.awaitGone(name)
	}
	s.eventually(func() error {
		if left := s.podGroups(); len(left) > 0 {
			return fmt.Errorf("cgroups are left: %v", left)
		}
		return nil
	})
	s.eventually(func() error {
		if left, err := os.ReadDir(filepath.Join(s.root, "pods")); err != nil || len(left) > 0 {
			return fmt.Errorf("directories are left: %v %v", left, err)
		}
		return nil
	})
	s.nothingLeft()
}
