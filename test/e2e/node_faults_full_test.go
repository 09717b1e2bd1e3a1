//go:build full

package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// hold makes a container's process one that does not die: it is traced, and its tracer does
// not wait for it. As long as it exists, the kernel ends no other process of its PID
// namespace either. The returned function releases it.
func hold(pid int) (free func(), err error) {
	begun, end, over := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread() // a tracer is a thread
		defer runtime.UnlockOSThread()
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
		if errno != 0 {
			begun <- fmt.Errorf("trace %d: %w", pid, errno)
			return
		}
		begun <- nil
		<-end
		_, _ = unix.Wait4(pid, nil, unix.WALL, nil) // it is dead: the wait reaps it
	}()
	return func() { close(end); <-over }, <-begun
}

// TestF34_LeastQuota: the kernel takes the smallest quota. A container with it starts slowly,
// and the agent and its runtime look at it meanwhile.
//
// Shows: F34
func TestF34_LeastQuota(t *testing.T) {
	s := parallelStage(t)
	least := golden{"least", "{limits: {cpu: 5m}}",
		map[string]string{"cpu/cpu.shares": "5", "cpu/cpu.cfs_quota_us": "1000"},
		map[string]string{"cpu.max": "1000 100000", "memory.max": "max"}, -1}
	s.writeGolden(least)
	s.serve()
	s.checkGolden(least)
}

// TestF32_UnkillableProcess: a container that survives SIGKILL stays, and its pod's status
// says so after twice its grace period. Meanwhile other pods start and stop, and the agent
// exits in time and starts again. When the container has gone, so has its pod.
//
// Shows: F32, F4
func TestF32_UnkillableProcess(t *testing.T) {
	s := parallelStage(t)
	s.write("stays.yaml", manifest("stays", []string{container("main", "ignore, print, armed, forever", secret)}, "terminationGracePeriodSeconds: 1"))
	a := s.serve()
	main := s.awaitRunning("stays", "main")["main"]
	s.awaitLog("stays", "main", 0, "armed")
	over := make(chan struct{}) // closed when the command has exited
	go func() {
		defer close(over)
		_, _ = s.node.Runtime.ExecSync(context.Background(), &cri.ExecSyncRequest{ContainerId: main.id, Cmd: []string{"/app", "ignore", "print", "in", "forever"}})
	}()
	var free func()
	s.eventually(func() error {
		for _, p := range s.node.Processes(main.id) {
			if slices.Contains(p.Args, "in") {
				var err error
				free, err = hold(p.Pid)
				return err
			}
		}
		return errors.New("the command does not run")
	})
	done := sync.OnceFunc(func() { free(); <-over })
	t.Cleanup(done)

	s.remove("stays.yaml")
	s.write("other.yaml", simple("other"))
	s.awaitReady("other", true)
	s.remove("other.yaml")
	s.awaitGone("other")
	// A stop takes at least two seconds, so four are twice the grace period.
	overdue := func(st v1.PodStatus) bool {
		return st.Reason == "StopOverdue" && strings.HasSuffix(st.Message, ": main")
	}
	s.awaitStatus("stays", "overdue", overdue)
	const stays = "Container is still running after its grace period"
	said := a.await("level=WARN", stays, s.full("stays"))
	m := regexp.MustCompile(`stopping_for=(\S+)`).FindStringSubmatch(said)
	if m == nil {
		t.Fatalf("the message has no stopping_for: %s", said)
	}
	if age, err := time.ParseDuration(m[1]); err != nil || age < 4*time.Second { // more where the machine was busy
		t.Errorf("said at the age of %s, %v", m[1], err)
	}
	a.once("level=WARN", stays, s.full("stays"))
	if p := s.status("stays"); p.DeletionTimestamp == nil || p.Status.Phase != v1.PodRunning {
		t.Errorf("deleted at %v: %s", p.DeletionTimestamp, describe(p.Status))
	}
	if r := s.run("get", "pods"); !strings.Contains(r.out, "Terminating") {
		t.Errorf("get pods:\n%s", r.out)
	}
	if c := s.containers("stays"); len(c) != 1 || c[0].State != cri.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("the container that cannot die is %v", c)
	}
	if s.status("stays") == nil {
		t.Error("the pod is not reported any more")
	}
	a.leaveNow() // it does not wait for the hanging call
	a = s.serve()
	s.write("next.yaml", simple("next"))
	s.awaitReady("next", true)
	a.once("level=WARN", stays, s.full("stays"))
	if st := s.status("stays").Status; !overdue(st) {
		t.Errorf("for the next agent: %s", describe(st))
	}
	done()
	s.awaitGone("stays")
	if all := s.awaitEnded("stays", "main", 1); len(all) != 1 || all[0].exit != 137 {
		t.Errorf("lives: %+v, want one that was killed", all)
	}
	s.invariants()
}

// TestF33_AllProcessesGone: after a reboot the runtime lists pods whose processes are gone.
// Desired ones run again, in new sandboxes, with their restart counts; terminated ones stay
// so.
//
// Shows: F33
func TestF33_AllProcessesGone(t *testing.T) {
	t.Parallel()
	s := newStage(t, node.New(t))
	s.endpoint = s.node.Endpoint
	s.write("web.yaml", s.stamping("web"))
	s.write("pair.yaml", manifest("pair", []string{container("main", "forever"), container("side", "forever")}, "hostNetwork: true"))
	s.write("job.yaml", manifest("job", []string{container("main", "append, /x/job", scratchMount)}, "restartPolicy: OnFailure", s.scratchVolume()))
	a := s.serve()
	s.awaitStamps("web", 1)
	s.crash(s.awaitLives("web", 1)[0].id)
	before := s.awaitLives("web", 2)[1]
	s.awaitRunning("pair", "main", "side")
	s.awaitPhase("job", v1.PodSucceeded)
	s.awaitStatus("web", "one restart", func(st v1.PodStatus) bool { return ready(st) && containerStatus(st, "main").RestartCount == 1 })
	box := s.sandbox("web").Id
	a.kill()
	s.node.Kill(t)
	s.eventually(func() error { // shims first, or they clean up
		left := s.node.Look().Processes
		for _, line := range left {
			if pid, err := strconv.Atoi(strings.Fields(line)[0]); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%d processes are left", len(left))
		}
		return nil
	})
	s.node.Restart(t)
	s.eventually(func() error { return s.networkWord(true) }) // the test's connection sees it
	s.serve()
	s.awaitRunning("pair", "main", "side")
	s.eventually(func() error {
		now, err := s.runningNow("web", "main")
		if err == nil && (now["main"].id == before.id || now["main"].attempt <= before.attempt) {
			err = fmt.Errorf("container main is %+v, was %+v", now["main"], before)
		}
		return err
	})
	if b := s.sandbox("web"); b.Id == box || b.Metadata.Attempt == 0 {
		t.Errorf("sandbox %s attempt %d, was %s", b.Id, b.Metadata.Attempt, box)
	}
	st := s.awaitReady("web", true)
	if n := containerStatus(st, "main").RestartCount; n < 2 {
		t.Errorf("%d restarts, had one", n)
	}
	s.awaitPhase("job", v1.PodSucceeded)
	s.awaitStamps("job", 1)
	s.invariants()
	for _, f := range s.files() {
		s.remove(f)
	}
	for _, name := range []string{"web", "pair", "job"} {
		s.awaitGone(name)
	}
	s.nothingLeft()
}

// TestF34_SliceOnACgroupfsRuntime: the agent reports a cgroup root that the runtime's driver
// does not support once, with the remedy, before it makes anything. Running pods run on.
//
// Shows: F34
func TestF34_SliceOnACgroupfsRuntime(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	kept := s.keep()
	s.awaitReady("keep", true)
	a.leave()
	s.write("next.yaml", simple("next"))
	before := len(s.front.Mutations())
	cmd := s.command("serve", "-f", s.manifests)
	cmd.Args = append(cmd.Args, "--cgroup-root", "/pods.slice")
	a = s.start(cmd)
	a.await("level=WARN", "Container runtime is not ready", "driver is cgroupfs", "set --cgroup-root /pods,")
	asked := s.front.Counts()["RuntimeConfig"]
	s.eventually(func() error { // it retries
		if n := s.front.Counts()["RuntimeConfig"] - asked; n < 2 {
			return fmt.Errorf("the runtime was asked %d times more for its driver", n)
		}
		return nil
	})
	a.once("level=WARN", "Container runtime is not ready")
	s.untouched("keep", kept)
	if made := s.front.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
	a.leave()
	s.serve()
	s.awaitReady("next", true)
	s.untouched("keep", kept)
	s.invariants()
}

// TestF31_OOMKilled: a container that is killed for its memory has that reason and restarts;
// an init container ends its pod. A child that is killed does not affect its container.
//
// Shows: F31
func TestF31_OOMKilled(t *testing.T) {
	s := parallelStage(t)
	const limit = "resources: {limits: {memory: 24Mi}}"
	s.write("fat.yaml", manifest("fat", []string{container("main", `alloc, "64", forever`, limit)}))
	s.write("parent.yaml", manifest("parent", []string{container("main", "append, /x/parent, forever", limit, scratchMount,
		`readinessProbe: {exec: {command: [/app, alloc, "64"]}, periodSeconds: 1, failureThreshold: 1}`)}, s.scratchVolume()))
	word := newLastWord()
	probes := s.through(criproxy.Hooks{After: word.note}).Fault(criproxy.Rule{Method: "ExecSync"})
	s.serve()
	s.awaitStatus("fat", "OOMKilled and restarted", func(st v1.PodStatus) bool {
		c := containerStatus(st, "main")
		return c.RestartCount > 0 && oomKilled(c.LastTerminationState.Terminated)
	})
	s.endsForMemory(word, "first", "init", func(name string) string {
		s.excuse(name) // its container never starts
		return manifest(name, []string{container("main", "forever")},
			"restartPolicy: Never", "initContainers:", container("init", `alloc, "64"`, limit))
	})
	main := s.awaitRunning("parent", "main")
	s.happens(probes, 4) // children have run and exited
	s.untouched("parent", main)
	if st := s.status("parent").Status; ready(st) || containerStatus(st, "main").RestartCount != 0 {
		t.Errorf("the parent: %s", describe(st))
	}
	s.awaitStamps("parent", 1)
}
