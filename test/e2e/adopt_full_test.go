//go:build full

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

var endings = []ending{killed, left, stood, upgraded}

// otherBuild returns another build of the program, built on first use: to the kernel and to
// the root directory it is another version.
var otherBuild = func() func(t *testing.T) string {
	build := sync.OnceValues(func() (string, error) {
		path := filepath.Join(filepath.Dir(shared.RootDir), "nodectl-next")
		cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w -X runtime.modinfo=next", "-o", path, ".")
		cmd.Dir, cmd.Env = node.Repo(), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build nodectl again: %w\n%s", err, out)
		}
		return path, nil
	})
	return func(t *testing.T) string {
		t.Helper()
		path, err := build()
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
}()

// interrupter ends agents between the effect of one of their calls and its answer.
type interrupter struct {
	*criproxy.Proxy
	*stage
	due atomic.Pointer[interruption] // nil for none
}

type interruption struct {
	n      int // the mutating call
	how    ending
	victim *agent
	over   chan struct{} // closed when it is done
}

func (s *stage) interrupter() *interrupter {
	i := &interrupter{stage: s}
	i.Proxy = s.through(criproxy.Hooks{After: func(c criproxy.Call, _ error) {
		if d := i.due.Load(); d != nil && c.N == d.n && i.due.CompareAndSwap(d, nil) {
			d.how.end(d.victim)
			close(d.over)
		}
	}})
	return i
}

// after makes happens cause calls, and ends a after the nth mutating call from now. It
// returns the agent that serves then, and a function that returns all calls since.
func (i *interrupter) after(a *agent, n int, how ending, happens func()) (*agent, func() []string) {
	i.Helper()
	before := len(i.Mutations())
	d := &interruption{n: before + n, how: how, victim: a, over: make(chan struct{})}
	i.due.Store(d)
	happens()
	wait.Receive(i.T, "the agent's end", d.over)
	return how.next(a), func() []string { return i.Mutations()[before:] }
}

// Transcripts of the mutating calls for wholePod.
var (
	wholeStart   = strings.Fields("RunPodSandbox CreateContainer StartContainer CreateContainer StartContainer CreateContainer StartContainer")
	wholeRestart = strings.Fields("CreateContainer StartContainer")
	wholeStop    = strings.Fields("StopContainer StopContainer StopPodSandbox RemoveContainer RemoveContainer RemoveContainer RemovePodSandbox")
)

// TestF1_AdoptedAtEveryStepOfALife: an agent is ended in each way at each step of the start,
// a restart and the stop of a pod with everything that pods can have. The next agent
// continues there: it repeats no call, no container and no hook runs twice, the pod, once
// ready, stays ready, and nothing is left of it.
//
// Shows: F1
func TestF1_AdoptedAtEveryStepOfALife(t *testing.T) {
	t.Parallel()
	for n := range len(wholeStop) + 1 { // the stop also removes the exited container of the crash
		for e := range endings {
			turn := func(k int) ending { return endings[(e+k)%len(endings)] }
			t.Run(fmt.Sprintf("%s at step %d", turn(0), n+1), func(t *testing.T) {
				s := parallelStage(t)
				s.nextBuild = otherBuild(t)
				i := s.interrupter()
				a := s.startInterrupted(i, n%len(wholeStart)+1, turn(0))
				a = s.restartInterrupted(i, a, (n+n/len(endings))%len(wholeRestart)+1, turn(1)) // each step by each ending
				s.stopInterrupted(i, a, n+1, turn(2))
			})
		}
	}
}

func (s *stage) startInterrupted(i *interrupter, n int, how ending) *agent {
	a := s.serve()
	a, calls := i.after(a, n, how, func() { s.write("web.yaml", s.wholePod()) })
	s.awaitReady("web", true)
	s.awaitRunning("web", "main", "proxy")
	if got := calls(); !slices.Equal(got, wholeStart) {
		s.Errorf("%s after call %d of the start: calls:\n%v, want\n%v", how, n, got, wholeStart)
	}
	s.counted(map[string]int{"init": 1, "proxy": 1, "proxy-begins": 1, "main": 1, "main-begins": 1, "main-ends": 0, "proxy-ends": 0})
	s.steady("web")
	return a
}

// restartInterrupted lets a container crash: only that one restarts, and its restart count
// rises by one.
func (s *stage) restartInterrupted(i *interrupter, a *agent, n int, how ending) *agent {
	was := s.awaitRunning("web", "main", "proxy")
	a, calls := i.after(a, n, how, func() {
		if err := unix.Kill(was["main"].pid, unix.SIGKILL); err != nil {
			s.Fatal(err)
		}
	})
	s.awaitStatus("web", "ready again", func(st v1.PodStatus) bool {
		return ready(st) && containerStatus(st, "main").RestartCount == 1
	})
	now := s.awaitRunning("web", "main", "proxy")
	if now["proxy"] != was["proxy"] || now["main"].attempt != 1 {
		s.Errorf("was %+v, is %+v", was, now)
	}
	if got := calls(); !slices.Equal(got, wholeRestart) {
		s.Errorf("%s after call %d of the restart: calls:\n%v, want\n%v", how, n, got, wholeRestart)
	}
	s.counted(map[string]int{"init": 1, "proxy": 1, "proxy-begins": 1, "main": 2, "main-begins": 2, "main-ends": 0, "proxy-ends": 0})
	return a
}

// stopInterrupted removes the pod: each container exits by itself, in its turn.
func (s *stage) stopInterrupted(i *interrupter, a *agent, n int, how ending) {
	dead := len(s.awaitEnded("web", "main", 1))
	_, calls := i.after(a, n, how, func() { s.remove("web.yaml") })
	s.awaitGone("web")
	s.nothingLeft()
	got := calls()
	want := slices.Clone(wholeStop)
	want = slices.Insert(want, 3, slices.Repeat([]string{"RemoveContainer"}, dead)...)
	// The next agent stops a stopped sandbox again: it cannot see whether its network is torn
	// down, too.
	if first := slices.Index(got, "StopPodSandbox"); first >= 0 && (how == killed || how == left || how == upgraded) {
		rest := slices.Clone(got[first+1:])
		if again := slices.Index(rest, "StopPodSandbox"); again >= 0 {
			got = append(slices.Clone(got[:first+1]), slices.Delete(rest, again, again+1)...)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("%s after call %d of the stop: calls:\n%v, want\n%v", how, n, got, want)
	}
	ends := 1
	if n == 1 && how != stood {
		// The agent learns by an event that main has exited, and may start the hook of proxy
		// before it is ended. The next agent runs an interrupted hook again.
		ends = max(1, min(2, s.stamps("proxy-ends")))
	}
	s.counted(map[string]int{"init": 1, "main": 2, "main-ends": 1, "proxy": 1, "proxy-ends": ends})
	main, proxy := s.awaitEnded("web", "main", 2), s.awaitEnded("web", "proxy", 1)
	if len(main) != 2 || len(proxy) != 1 || main[1].exit != 0 || proxy[0].exit != 0 || proxy[0].to.Before(main[1].to) {
		s.Errorf("lives: %v, %v", main, proxy)
	}
}

// TestB7_AdoptionOverAnUpgrade: as TestB7_AdoptionOfAPodWithEverything, and another build of
// the program adopts the pod.
//
// Shows: B7
func TestB7_AdoptionOverAnUpgrade(t *testing.T) {
	s := parallelStage(t)
	s.nextBuild = otherBuild(t)
	s.adoptedOver(upgraded, killed)
}

// TestF1_BackoffGoesOnToTheSecond: a back-off that one agent began ends on time, however that
// agent ended.
//
// Shows: F1
func TestF1_BackoffGoesOnToTheSecond(t *testing.T) {
	t.Parallel()
	const (
		delay  = 10 * time.Second
		halted = 8 * time.Second // when the agent exits, after the second run: a restarted back-off is over at 18 s at the earliest
	)
	for _, how := range endings {
		t.Run(string(how), func(t *testing.T) {
			s := parallelStage(t)
			s.nextBuild = otherBuild(t)
			limit := fmt.Sprint("--max-container-restart-period=", delay)
			s.write("loop.yaml", manifest("loop", []string{container("main", `append, /x/loop, exit, "1"`, scratchMount)}, s.scratchVolume()))
			a := s.serve(limit)
			s.awaitStatus("loop", "in back-off", func(st v1.PodStatus) bool {
				return waiting(st, "main").Reason == "CrashLoopBackOff" && containerStatus(st, "main").RestartCount == 1
			})
			ended := s.awaitEnded("loop", "main", 2)[1].to
			wait.True(t, "the back-off is nearly over", func() bool { return time.Since(ended) >= halted })
			how.end(a)
			how.next(a, limit)
			s.awaitStamps("loop", 3)
			var all []life
			s.eventually(func() error {
				if all = lives.of(s.name); len(all) < 3 {
					return errors.New("the third life was not witnessed yet")
				}
				return nil
			})
			pause := all[2].from.Sub(all[1].to)
			// A restarted back-off would begin at halted, and end later than both.
			if pause < delay-100*time.Millisecond || pause >= delay+halted {
				t.Errorf("the third life began %s after the second, want %s", pause, delay)
			}
		})
	}
}

// TestF21_ContainerdKilled_AgentAway: as TestF21_ContainerdKilled with ten pods, and once
// more while no agent runs.
//
// Shows: F21
func TestF21_ContainerdKilled_AgentAway(t *testing.T) {
	t.Parallel()
	containerdKilled(t, 10, true)
}

// TestF21_ContainerdKilledSixTimes: pods run on as the same processes, and are always
// reported as running and ready.
//
// Shows: F21
func TestF21_ContainerdKilledSixTimes(t *testing.T) {
	t.Parallel()
	const pods = 20
	n := node.New(t)
	s := newStage(t, n)
	s.endpoint = n.Endpoint
	was := make(map[string]map[string]running)
	for i := range pods {
		name := fmt.Sprint("web", i)
		was[name] = nil
		s.write(name+".yaml", manifest(name, []string{container("main", fmt.Sprintf(`append, /x/%s, serve, ":8080", forever`, name), scratchMount,
			"readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1, timeoutSeconds: 10}")}, s.scratchVolume()))
	}
	s.serve()
	// One pod may wait long for its turn, so the test observes all.
	wait.Until(t, "every pod runs", func() (int, bool) {
		n := 0
		for _, c := range s.containers("") {
			if c.State == cri.ContainerState_CONTAINER_RUNNING {
				n++
			}
		}
		return n, n == pods
	})
	names := slices.Sorted(maps.Keys(was))
	for _, name := range names {
		was[name] = s.awaitRunning(name, "main")
		s.awaitReady(name, true)
	}
	for range 6 {
		n.Kill(t)
		n.Restart(t)
		s.eventually(func() error { // our own connection, too
			_, err := n.Runtime.Version(t.Context(), &cri.VersionRequest{})
			return err
		})
		for name, w := range was {
			s.untouched(name, w)
		}
	}
	s.write("last.yaml", simple("last"))
	s.awaitReady("last", true)
	for name, w := range was {
		s.untouched(name, w)
		s.steady(name)
		s.counted(map[string]int{name: 1})
	}
	for _, f := range s.files() {
		s.remove(f)
	}
	for _, name := range names {
		s.awaitGone(name)
	}
	s.awaitGone("last")
	s.nothingLeft()
}
