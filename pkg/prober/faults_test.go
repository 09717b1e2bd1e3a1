package prober

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A probe that is not due has no goroutine, and the prober does not wake up before one is.
//
// Shows: F81
func TestF81_WaitingProbesCostNothing(t *testing.T) {
	withProber(t, func(f *fixture) {
		const containers = 1000
		goroutines := runtime.NumGoroutine()
		for i := range containers {
			c := probedContainer(fmt.Sprint(i), func(c *v1.Container) {
				c.ReadinessProbe.PeriodSeconds = 600
				c.LivenessProbe.InitialDelaySeconds = 300
			})
			f.setTargets(c.Name, targets(c, time.Now(), true, true)...)
		}
		f.advance(time.Second)
		if n := len(f.probesRun()); n != containers {
			t.Fatalf("%d probes ran at first, want %d", n, containers)
		}
		if n := runtime.NumGoroutine(); n > goroutines+20 { // those of other tests may start and end
			t.Errorf("%d goroutines for %d containers, want about the %d of before", n, containers, goroutines)
		}
		before := f.wakeups()
		f.advance(290 * time.Second)
		if n := f.wakeups() - before; n != 0 {
			t.Errorf("woke up %d times with nothing to do", n)
		}
		f.want(f.probesRun())
	})
}

// A probe that hangs for longer than its period delays neither the other probe of its
// container nor those of other pods.
//
// Shows: F81
func TestF81_SlowProbeDelaysNoOther(t *testing.T) {
	withProber(t, func(f *fixture) {
		f.answer("slow readiness", hung(45*time.Second))
		slow, web := probedContainer("slow"), probedContainer("web")
		startedAt := time.Now()
		f.setTargets("slow", targets(slow, startedAt, true, true)[:2]...)
		f.setTargets("web", targets(web, startedAt, true, true)[0])
		f.advance(46 * time.Second)
		f.want(f.probesRun(),
			"0s slow liveness", "0s slow readiness", "0s web readiness",
			"10s slow liveness", "10s web readiness", "20s slow liveness", "20s web readiness",
			"30s slow liveness", "30s web readiness", "40s slow liveness", "40s web readiness",
			"45s slow readiness") // overdue, and run only once
	})
}

// Shows: F81
func TestF81_ProbesAreCappedPerPod(t *testing.T) {
	withProber(t, func(f *fixture) {
		var list []Target
		for i := range 3 * podSlots {
			c := probedContainer(fmt.Sprintf("c%02d", i))
			f.answer(c.Name+" readiness", hung(2*time.Second))
			ready := target(pod.Readiness, c, true)
			ready.Key = pod.Key{Name: "big"}
			list = append(list, ready)
		}
		f.setTargets("big", list...)
		f.setTargets("small", target(pod.Readiness, probedContainer("small"), true))
		f.advance(6 * time.Second)
		if n := f.maxRunning(); n != podSlots+1 {
			t.Errorf("%d probes ran at once, want %d of the big pod and one of the small pod", n, podSlots)
		}
		runs := f.probesRun()
		if len(runs) != len(list)+1 || !slices.Contains(runs, "0s small readiness") {
			t.Errorf("probed %q, want each container once, and the small pod's at 0s", runs)
		}
	})
}

// Hanging probes of other pods take every net slot, and as many more are queued. The probe
// that is queued last runs when both rounds have ended, after 2 s. An exec probe does not
// wait, since it needs no net slot.
//
// Shows: F81
func TestF81_HungProbesTakeEverySlot_OthersWaitInOrder(t *testing.T) {
	withProber(t, func(f *fixture) {
		for i := range 2 * netSlots {
			c := probedContainer(fmt.Sprintf("h%03d", i))
			f.answer(c.Name+" readiness", hung(time.Second))
			f.setTargets(c.Name, target(pod.Readiness, c, true))
		}
		f.setTargets("web", target(pod.Readiness, probedContainer("web"), true))
		command := probedContainer("command", func(c *v1.Container) {
			c.ReadinessProbe.ProbeHandler = v1.ProbeHandler{Exec: &v1.ExecAction{}}
		})
		f.setTargets("command", target(pod.Readiness, command, true))
		f.advance(9 * time.Second)
		if n := f.maxRunning(); n != netSlots+1 {
			t.Errorf("%d probes ran at once, want %d connections and a command", n, netSlots)
		}
		runs := f.probesRun()
		for _, want := range []string{"0s command readiness", "2s web readiness"} {
			if !slices.Contains(runs, want) {
				t.Errorf("%q is missing", want)
			}
		}
	})
}

// Shows: F81
func TestF81_CommandsAreCappedPerNode(t *testing.T) {
	withProber(t, func(f *fixture) {
		for i := range 3 * execSlots {
			c := probedContainer(fmt.Sprintf("c%03d", i), func(c *v1.Container) {
				c.ReadinessProbe.ProbeHandler = v1.ProbeHandler{Exec: &v1.ExecAction{}}
			})
			f.answer(c.Name+" readiness", hung(time.Second))
			f.setTargets(c.Name, target(pod.Readiness, c, true))
		}
		f.advance(5 * time.Second)
		if n := f.maxRunning(); n != execSlots {
			t.Errorf("%d commands ran at once, want %d", n, execSlots)
		}
		if n := len(f.probesRun()); n != 3*execSlots {
			t.Errorf("%d commands ran, want every one of %d", n, 3*execSlots)
		}
	})
}

// SetTargets without a target of the container cancels its running probe, which frees the slot.
//
// Shows: F81
func TestF81_TargetIsRemoved_RunningProbeIsCanceled(t *testing.T) {
	withProber(t, func(f *fixture) {
		f.answer("web readiness", hung(time.Hour))
		f.setTargets("web", target(pod.Readiness, probedContainer("web"), true))
		f.advance(time.Second)
		f.setTargets("web")
		f.advance(time.Second)
		if n := f.running(); n != 0 {
			t.Errorf("%d probes still run", n)
		}
		f.want(f.statusesSent())
	})
}

// The process is stopped for 30 s while two probes run. The prober discards their results,
// runs each overdue probe once, and sends no status.
//
// Shows: F5
func TestF5_StoppedDuringProbe_ResultIsDiscarded(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web")
		f.setTargets("web", targets(c, time.Now(), true, true)[:2]...)
		f.advance(9 * time.Second)
		f.want(f.statusesSent(), "0s web readiness true")
		f.probesRun()
		f.answer("web liveness", hung(time.Second))
		f.answer("web readiness", hung(time.Second))
		f.advance(1500 * time.Millisecond) // both have run for half a second
		f.setClockAhead(30 * time.Second)  // the stop
		f.answer("web liveness", nil)
		f.answer("web readiness", nil)
		f.advance(20 * time.Second)
		f.want(f.statusesSent())
		f.want(f.probesRun(),
			"10s web liveness", "10s web readiness",
			"11s web liveness", "11s web readiness", // overdue, once
			"21s web liveness", "21s web readiness")
	})
}

// A failure of a probe that took 45 s counts if the process was not stopped.
//
// Shows: F5
func TestF5_SlowResultWithoutGapCounts(t *testing.T) {
	withProber(t, func(f *fixture) {
		f.answer("web liveness", hung(45*time.Second))
		f.setTargets("web", target(pod.Liveness, probedContainer("web"), true))
		f.advance(time.Minute)
		f.want(f.statusesSent(), "45s web liveness false")
	})
}

// A stop of the process while no probe runs discards nothing.
//
// Shows: F5
func TestF5_GapWithNothingRunning(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web")
		f.setTargets("web", target(pod.Liveness, c, true))
		f.advance(5 * time.Second)
		f.answer("web liveness", failing)
		f.setClockAhead(time.Hour)
		f.advance(6 * time.Second)
		f.want(f.probesRun(), "0s web liveness", "10s web liveness")
		f.want(f.statusesSent(), "10s web liveness false")
	})
}

// A panic of a probe affects no other probe, and is logged once.
//
// Shows: F8
func TestF8_PanicOfAProbeIsItsOwn(t *testing.T) {
	withProber(t, func(f *fixture) {
		f.answer("broken readiness", func(context.Context) error { panic("bug") })
		f.setTargets("broken", target(pod.Readiness, probedContainer("broken"), true))
		f.setTargets("web", target(pod.Readiness, probedContainer("web"), true))
		f.advance(25 * time.Second)
		f.want(f.statusesSent(), "0s web readiness true")
		if n := strings.Count(f.logged(), "Probe panicked"); n != 1 {
			t.Errorf("the panic was logged %d times, want once:\n%s", n, f.logged())
		}
	})
}

// The schedule keeps nothing of a pod whose targets were removed, whatever its tasks did then.
func TestSchedule_TargetsAreRemoved_NothingIsLeft(t *testing.T) {
	now := time.Now()
	sched := newSchedule(now, slog.New(slog.DiscardHandler), func(Target, string, string) {})
	canceled := 0
	for i := range 50 {
		c := probedContainer(fmt.Sprint(i))
		key := pod.Key{Name: c.Name}
		sched.setTargets(podTargets{key, targets(c, now, true, true)}, now)
		ran := sched.startDue(now)
		for _, t := range ran {
			t.cancel = func() { canceled++ }
		}
		sched.finish(ran[0], nil, now)
		if i%2 == 0 { // only its startup probe is active
			sched.setTargets(podTargets{key, targets(c, now, false, false)}, now)
		}
		sched.setTargets(podTargets{key: key}, now)
		for _, t := range ran[1:] {
			sched.finish(t, nil, now)
		}
	}
	if canceled != 50 {
		t.Errorf("%d running probes were canceled, want 50", canceled)
	}
	sched.startDue(now)
	if len(sched.pods)+len(sched.waiting)+len(sched.queue)+len(sched.unsent)+sched.nets != 0 {
		t.Errorf("left: %d pods, %d waiting, %d queued, %d statuses, %d running", len(sched.pods), len(sched.waiting), len(sched.queue), len(sched.unsent), sched.nets)
	}
}

// The result of a probe that was edited while it ran does not count. Otherwise an edit that
// repairs a liveness probe would restart the container.
//
// Shows: F81
func TestF81_EditedProbeDoesNotCount(t *testing.T) {
	withProber(t, func(f *fixture) {
		f.answer("c liveness", hung(5*time.Second))
		startedAt := time.Now()
		f.setTargets("c", targets(probedContainer("c"), startedAt, true, true)[1])
		f.advance(time.Second)
		f.answer("c liveness", nil)
		f.setTargets("c", targets(probedContainer("c", func(c *v1.Container) { c.LivenessProbe.TimeoutSeconds = 30 }), startedAt, true, true)[1])
		f.advance(time.Minute)
		f.want(f.statusesSent())
		f.answer("c liveness", failing)
		f.advance(time.Minute)
		f.want(f.statusesSent(), "1m10s c liveness false")
	})
}
