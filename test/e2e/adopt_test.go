package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// long asks for the long forms of some tests, see make test-long: every ending at
// every step, 30 s of SIGSTOP, 50 pods under a containerd that is killed.
var long = os.Getenv("NODECTL_E2E_LONG") != ""

// An ending is how an agent stops being there.
type ending string

const (
	killed   ending = "kill -9"
	left     ending = "SIGTERM"
	stood    ending = "SIGSTOP" // and goes on after a while
	upgraded ending = "upgrade" // killed, and another build comes
)

var endings = []ending{killed, left, stood, upgraded}

// pauseOf is how long one that stood stands: enough for a gap to be noticed (F5).
func pauseOf() time.Duration {
	if long {
		return 30 * time.Second
	}
	return 1500 * time.Millisecond
}

// end ends a, or lets it stand still for a while.
func (how ending) end(a *agent) {
	switch how {
	case stood:
		_ = a.cmd.Process.Signal(syscall.SIGSTOP)
		<-time.After(pauseOf())
		_ = a.cmd.Process.Signal(syscall.SIGCONT)
	case left:
		a.asked.Store(true)
		_ = a.cmd.Process.Signal(syscall.SIGTERM)
		<-a.done
	default:
		a.asked.Store(true)
		_ = a.cmd.Process.Kill()
		<-a.done
	}
}

// next returns the agent that serves after a has ended so.
func (how ending) next(a *agent, more ...string) *agent {
	a.Helper()
	cmd := a.command(append([]string{"serve", "-f", a.manifests}, more...)...)
	switch how {
	case stood:
		return a
	case upgraded:
		cmd.Path = otherBuild(a.T)
	}
	return a.stage.start(cmd)
}

// otherBuild returns another build of the program, made when it is first asked
// for: to the kernel and to the root directory it is another version.
var otherBuild = func() func(t *testing.T) string {
	build := sync.OnceValues(func() (string, error) {
		path := filepath.Join(filepath.Dir(shared.RootDir), "nodectl-next")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X runtime.modinfo=next", "-o", path, ".")
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

// interrupter ends agents between the effect of one of their calls and the answer.
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

// after ends a after the nth mutating call from now, which happens makes it come
// to, and returns the agent that serves then, and all calls since.
func (i *interrupter) after(a *agent, n int, how ending, happens func()) (*agent, func() []string) {
	i.Helper()
	before := len(i.Mutations())
	d := &interruption{n: before + n, how: how, victim: a, over: make(chan struct{})}
	i.due.Store(d)
	happens()
	select {
	case <-d.over:
	case <-time.After(patience + pauseOf()):
		i.Fatalf("the agent was not ended; calls so far: %s", strings.Join(i.Mutations(), " "))
	}
	return how.next(a), func() []string { return i.Mutations()[before:] }
}

// wholePod is a pod with all that a life may have: an init container, a sidecar,
// hooks, and probes of all three kinds, which make no calls to the runtime. Each
// life and each hook leaves a line in a file.
func (s *stage) wholePod() string {
	mount := "volumeMounts: [{name: x, mountPath: /x}]"
	hooks := func(name string) string {
		return "lifecycle: {postStart: {exec: {command: [/app, append, /x/" + name + "-begins]}}, preStop: {exec: {command: [/app, append, /x/" + name + "-ends]}}}"
	}
	return manifest("web", []string{
		container("main", `append, /x/main, serve, ":8080", forever`, mount, hooks("main"), "ports: [{name: web, containerPort: 8080}]",
			"startupProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, failureThreshold: 30}",
			"readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, timeoutSeconds: 10}",
			"livenessProbe: {tcpSocket: {port: web}, periodSeconds: 1, timeoutSeconds: 10}"),
	}, s.scratchVolume(),
		"initContainers:", container("init", "append, /x/init", mount),
		container("proxy", `append, /x/proxy, serve, ":9090", forever`, mount, hooks("proxy"), "restartPolicy: Always",
			"startupProbe: {tcpSocket: {port: 9090}, periodSeconds: 1, failureThreshold: 30}"),
		"terminationGracePeriodSeconds: 20")
}

// Transcripts of the mutating calls of wholePod's life.
var (
	wholeStart   = strings.Fields("RunPodSandbox CreateContainer StartContainer CreateContainer StartContainer CreateContainer StartContainer")
	wholeRestart = strings.Fields("CreateContainer StartContainer")
	wholeStop    = strings.Fields("StopContainer StopContainer StopPodSandbox RemoveContainer RemoveContainer RemoveContainer RemovePodSandbox")
)

// counted fails unless files of scratch hold so many lines.
func (s *stage) counted(want map[string]int) {
	s.Helper()
	for file, n := range want {
		if got := s.stamps(file); got != n {
			s.Errorf("%s: %d times, want %d", file, got, n)
		}
	}
}

// steady fails when the pod was not ready, or its restarts fell, after it was
// ready first.
func (s *stage) steady(name string) {
	s.Helper()
	restarts := int32(0)
	for _, st := range s.reported(name) {
		if c := containerStatus(st, "main"); !ready(st) || st.Phase != v1.PodRunning || c.RestartCount < restarts {
			s.Errorf("%s was reported as %s", name, describe(st))
		} else {
			restarts = c.RestartCount
		}
	}
}

// TestF1_AdoptedAtEveryStepOfALife: whatever ends the agent at whatever step of
// the start, of a restart and of the end of a pod with all that pods have, the
// next one goes on where it was: no call is made twice, no container and no hook
// runs twice, the pod, once ready, stays so, and nothing is left of it.
func TestF1_AdoptedAtEveryStepOfALife(t *testing.T) {
	t.Parallel()
	for n := range len(wholeStop) + 1 { // the stop also removes the record of the life that crashed
		for e := range endings {
			if !long && e != n%len(endings) {
				continue
			}
			turn := func(k int) ending { return endings[(e+k)%len(endings)] }
			t.Run(fmt.Sprintf("%s at step %d", turn(0), n+1), func(t *testing.T) {
				s := parallelStage(t)
				i := s.interrupter()
				a := s.startInterrupted(i, n%len(wholeStart)+1, turn(0))
				a = s.restartInterrupted(i, a, (n+n/len(endings))%len(wholeRestart)+1, turn(1)) // each step by each ending, also in short
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

// restartInterrupted lets a container crash: it alone has another life, and one
// more restart is counted.
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

// stopInterrupted takes the pod away: each container ends by itself, in its turn.
func (s *stage) stopInterrupted(i *interrupter, a *agent, n int, how ending) {
	dead := len(s.awaitEnded("web", "main", 1))
	_, calls := i.after(a, n, how, func() { s.remove("web.yaml") })
	s.awaitGone("web")
	s.nothingLeft()
	got := calls()
	want := slices.Clone(wholeStop)
	want = slices.Insert(want, 3, slices.Repeat([]string{"RemoveContainer"}, dead)...)
	// A sandbox that has stopped is stopped again by the next agent: it cannot see
	// whether its network is down, too.
	if first := slices.Index(got, "StopPodSandbox"); first >= 0 && (how == killed || how == left || how == upgraded) {
		rest := slices.Clone(got[first+1:])
		if again := slices.Index(rest, "StopPodSandbox"); again >= 0 {
			got = append(slices.Clone(got[:first+1]), slices.Delete(rest, again, again+1)...)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("%s after call %d of the stop: calls:\n%v, want\n%v", how, n, got, want)
	}
	s.counted(map[string]int{"init": 1, "main": 2, "main-ends": 1, "proxy": 1, "proxy-ends": 1})
	main, proxy := s.awaitEnded("web", "main", 2), s.awaitEnded("web", "proxy", 1)
	if len(main) != 2 || len(proxy) != 1 || main[1].exit != 0 || proxy[0].exit != 0 || proxy[0].to.Before(main[1].to) {
		s.Errorf("lives: %v, %v", main, proxy)
	}
}

// TestB7_AdoptionOfAPodWithEverything: over all endings, one after the other,
// nothing is asked of the runtime that changes anything, nothing runs again, and
// nobody who looks sees the pod as anything but ready.
func TestB7_AdoptionOfAPodWithEverything(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	s.write("web.yaml", s.wholePod())
	a := s.serve()
	s.awaitReady("web", true)
	was := s.awaitRunning("web", "main", "proxy")
	s.quiet(p)
	before := len(p.Mutations())
	for _, how := range append(endings, killed) {
		s.steady("web") // each agent begins a new journal
		how.end(a)
		a = how.next(a)
		a.await("All pods reported", "pods=1")
		for range 2 { // its probes go on
			if st := a.shows("web"); !ready(st) || containerStatus(st, "main").State.Running == nil {
				t.Errorf("after %s the agent shows %s", how, describe(st))
			}
			<-time.After(500 * time.Millisecond)
		}
		s.untouched("web", was)
		if all := s.readiness("web"); how != stood && slices.Contains(all, false) { // from its first line on
			t.Errorf("after %s readiness was reported as %v", how, all)
		}
	}
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
	s.steady("web")
	s.counted(map[string]int{"init": 1, "proxy": 1, "proxy-begins": 1, "main": 1, "main-begins": 1, "main-ends": 0, "proxy-ends": 0})
}

// shows returns what the agent answers of a pod on its socket.
func (a *agent) shows(name string) v1.PodStatus {
	a.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(a.root, "nodectl.sock"))
	}}}
	var list struct{ Items []v1.Pod }
	a.eventually(func() error {
		answer, err := client.Get("http://nodectl/v1/pods")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var text bytes.Buffer
		if _, err := text.ReadFrom(answer.Body); err != nil {
			return err
		}
		return json.Unmarshal(text.Bytes(), &list)
	})
	for _, p := range list.Items {
		if p.Name == a.full(name) {
			return p.Status
		}
	}
	a.Errorf("the agent does not show %s", name)
	return v1.PodStatus{}
}

// TestF1_BackoffGoesOnToTheSecond: a back-off that one agent began ends when it
// would have, whatever became of that agent.
func TestF1_BackoffGoesOnToTheSecond(t *testing.T) {
	t.Parallel()
	const (
		delay  = 10 * time.Second
		halted = 8 * time.Second // the agent's end, after that of the second life: a back-off begun anew is over at 18 s at the earliest
	)
	for _, how := range endings {
		t.Run(string(how), func(t *testing.T) {
			s := parallelStage(t)
			otherBuild(t) // it takes longer than any back-off
			limit := fmt.Sprint("--max-container-restart-period=", delay)
			s.write("loop.yaml", manifest("loop", []string{container("main", `append, /x/loop, exit, "1"`, scratchMount)}, s.scratchVolume()))
			a := s.serve(limit)
			s.awaitStatus("loop", "in back-off", func(st v1.PodStatus) bool {
				return waiting(st, "main").Reason == "CrashLoopBackOff" && containerStatus(st, "main").RestartCount == 1
			})
			<-time.After(time.Until(s.awaitEnded("loop", "main", 2)[1].to.Add(halted)))
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
			late := delay + halted - 500*time.Millisecond
			if how == stood {
				late += pauseOf() // it may have stood until after the end of the back-off
			}
			if pause < delay-100*time.Millisecond || pause >= late {
				t.Errorf("the third life began %s after the second, want %s", pause, delay)
			}
		})
	}
}

// TestF21_ContainerdKilledSixTimes: pods run on as the same processes, and are
// never reported as anything but running and ready.
func TestF21_ContainerdKilledSixTimes(t *testing.T) {
	t.Parallel()
	pods := 8
	if long {
		pods = 50
	}
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
	names := slices.Sorted(maps.Keys(was)) // about as they start: each has its own patience
	for _, name := range names {
		was[name] = s.awaitRunning(name, "main")
		s.awaitReady(name, true)
	}
	for kill := range 6 {
		n.Kill(t)
		<-time.After(time.Duration(kill) * 200 * time.Millisecond) // it is away for longer and longer
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
