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

// Shows: F81
func TestF81_WaitingProbesCostNothing(t *testing.T) {
	probing(t, func(w *ward) {
		const containers = 1000
		goroutines := runtime.NumGoroutine()
		for i := range containers {
			c := patient(fmt.Sprint(i), func(c *v1.Container) {
				c.ReadinessProbe.PeriodSeconds = 600
				c.LivenessProbe.InitialDelaySeconds = 300
			})
			w.tell(c.Name, w.all(c, time.Now(), true, true)...)
		}
		w.pass(time.Second)
		if n := len(w.questions()); n != containers {
			t.Fatalf("%d probes ran at first, want %d", n, containers)
		}
		if n := runtime.NumGoroutine(); n > goroutines+20 { // other tests' may come and go
			t.Errorf("%d goroutines for %d containers, want about the %d there were", n, containers, goroutines)
		}
		before := w.wakeups()
		w.pass(290 * time.Second)
		if n := w.wakeups() - before; n != 0 {
			t.Errorf("woke up %d times with nothing to do", n)
		}
		w.want(w.questions())
	})
}

// One probe that hangs, whatever its period, does not delay any other.
//
// Shows: F81
func TestF81_SlowProbeDelaysNoOther(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("slow readiness", hung(45*time.Second))
		slow, well := patient("slow"), patient("well")
		began := time.Now()
		w.tell("slow", w.all(slow, began, true, true)[:2]...)
		w.tell("well", w.all(well, began, true, true)[0])
		w.pass(46 * time.Second)
		w.want(w.questions(),
			"0s slow liveness", "0s slow readiness", "0s well readiness",
			"10s slow liveness", "10s well readiness", "20s slow liveness", "20s well readiness",
			"30s slow liveness", "30s well readiness", "40s slow liveness", "40s well readiness",
			"45s slow readiness") // late, and only once
	})
}

// Shows: F81
func TestF81_ProbesAreCappedPerPod(t *testing.T) {
	probing(t, func(w *ward) {
		var list []Target
		for i := range 3 * podSlots {
			c := patient(fmt.Sprintf("c%02d", i))
			w.answer(c.Name+" readiness", hung(2*time.Second))
			ready := w.aim(pod.Readiness, c, true)
			ready.Key = pod.Key{Name: "big"}
			list = append(list, ready)
		}
		w.tell("big", list...)
		w.tell("small", w.aim(pod.Readiness, patient("small"), true))
		w.pass(6 * time.Second)
		if n := w.atOnce(); n != podSlots+1 {
			t.Errorf("%d probes ran at once, want %d of the big pod's and the small one's", n, podSlots)
		}
		asked := w.questions()
		if len(asked) != len(list)+1 || !slices.Contains(asked, "0s small readiness") {
			t.Errorf("probed %q, want each once, and the small one's at 0s", asked)
		}
	})
}

// When hanging probes take every slot of the node, a healthy pod's probe waits no longer than
// their timeout, and commands do not wait for connections.
//
// Shows: F81
func TestF81_HungProbesStarveNoOther(t *testing.T) {
	probing(t, func(w *ward) {
		for i := range 2 * netSlots {
			c := patient(fmt.Sprintf("h%03d", i))
			w.answer(c.Name+" readiness", hung(time.Second))
			w.tell(c.Name, w.aim(pod.Readiness, c, true))
		}
		w.tell("well", w.aim(pod.Readiness, patient("well"), true))
		command := patient("command", func(c *v1.Container) {
			c.ReadinessProbe.ProbeHandler = v1.ProbeHandler{Exec: &v1.ExecAction{}}
		})
		w.tell("command", w.aim(pod.Readiness, command, true))
		w.pass(9 * time.Second)
		if n := w.atOnce(); n != netSlots+1 {
			t.Errorf("%d probes ran at once, want %d connections and a command", n, netSlots)
		}
		asked := w.questions()
		for _, want := range []string{"0s command readiness", "2s well readiness"} {
			if !slices.Contains(asked, want) {
				t.Errorf("%q is missing", want)
			}
		}
	})
}

// Shows: F81
func TestF81_CommandsAreCappedPerNode(t *testing.T) {
	probing(t, func(w *ward) {
		for i := range 3 * execSlots {
			c := patient(fmt.Sprintf("c%03d", i), func(c *v1.Container) {
				c.ReadinessProbe.ProbeHandler = v1.ProbeHandler{Exec: &v1.ExecAction{}}
			})
			w.answer(c.Name+" readiness", hung(time.Second))
			w.tell(c.Name, w.aim(pod.Readiness, c, true))
		}
		w.pass(5 * time.Second)
		if n := w.atOnce(); n != execSlots {
			t.Errorf("%d commands ran at once, want %d", n, execSlots)
		}
		if n := len(w.questions()); n != 3*execSlots {
			t.Errorf("%d commands ran, want every one of %d", n, 3*execSlots)
		}
	})
}

// A probe whose container is gone is cancelled, and frees its slot.
//
// Shows: F81
func TestF81_ProbeOfWhatIsGoneIsCalledOff(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("web readiness", hung(time.Hour))
		w.tell("web", w.aim(pod.Readiness, patient("web"), true))
		w.pass(time.Second)
		w.tell("web")
		w.pass(time.Second)
		if n := w.running(); n != 0 {
			t.Errorf("%d probes still run", n)
		}
		w.want(w.sayings())
	})
}

// F5: the process is stopped for 30 s while a probe runs. The prober discards that probe's
// result, does not make up for missed periods, and changes no container's health.
//
// Shows: F5
func TestF5_ResultOverAGapIsThrownAway(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web")
		w.tell("web", w.all(c, time.Now(), true, true)[:2]...)
		w.pass(9 * time.Second)
		w.want(w.sayings(), "0s web readiness true")
		w.questions()
		w.answer("web liveness", hung(time.Second))
		w.answer("web readiness", hung(time.Second))
		w.pass(1500 * time.Millisecond) // they have run for half a second
		w.jump(30 * time.Second)        // the stop
		w.answer("web liveness", nil)
		w.answer("web readiness", nil)
		w.pass(20 * time.Second)
		w.want(w.sayings())
		w.want(w.questions(),
			"10s web liveness", "10s web readiness",
			"11s web liveness", "11s web readiness", // overdue, once
			"21s web liveness", "21s web readiness")
	})
}

// The same failures without the gap do count.
//
// Shows: F5
func TestF5_SlowResultWithoutGapCounts(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("web liveness", hung(45*time.Second))
		w.tell("web", w.aim(pod.Liveness, patient("web"), true))
		w.pass(time.Minute)
		w.want(w.sayings(), "45s web liveness false")
	})
}

// A gap in which no probe ran discards nothing.
//
// Shows: F5
func TestF5_GapWithNothingRunning(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web")
		w.tell("web", w.aim(pod.Liveness, c, true))
		w.pass(5 * time.Second)
		w.answer("web liveness", ill)
		w.jump(time.Hour)
		w.pass(6 * time.Second)
		w.want(w.questions(), "0s web liveness", "10s web liveness")
		w.want(w.sayings(), "10s web liveness false")
	})
}

// A panic of one probe affects only that probe, and is logged once.
//
// Shows: F8
func TestF8_PanicOfAProbeIsItsOwn(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("web readiness", func(context.Context) error { panic("bug") })
		w.tell("web", w.aim(pod.Readiness, patient("web"), true))
		w.tell("well", w.aim(pod.Readiness, patient("well"), true))
		w.pass(25 * time.Second)
		w.want(w.sayings(), "0s well readiness true")
		if n := strings.Count(w.logged(), "Probe panicked"); n != 1 {
			t.Errorf("the panic was logged %d times, want once:\n%s", n, w.logged())
		}
	})
}

// However targets are added and removed, the prober keeps nothing of pods that are gone.
func TestProberForgetsWhatIsGone(t *testing.T) {
	now := time.Now()
	all := newSchedule(now, slog.New(slog.DiscardHandler), func(Target, string, string) {})
	w := &ward{}
	called := 0
	for i := range 50 {
		c := patient(fmt.Sprint(i))
		key := pod.Key{Name: c.Name}
		all.setTargets(podTargets{key, w.all(c, now, true, true)}, now)
		ran := all.startDue(now)
		for _, t := range ran {
			t.cancel = func() { called++ }
		}
		all.finish(ran[0], nil, now)
		if i%2 == 0 { // its startup probe waits, the others do not
			all.setTargets(podTargets{key, w.all(c, now, false, false)}, now)
		}
		all.setTargets(podTargets{key: key}, now)
		for _, t := range ran[1:] {
			all.finish(t, nil, now)
		}
	}
	if called != 50 {
		t.Errorf("%d running probes were called off, want 50", called)
	}
	all.startDue(now)
	if len(all.pods)+len(all.waiting)+len(all.queue)+len(all.unsent)+all.nets != 0 {
		t.Errorf("left: %d pods, %d waiting, %d queued, %d statuses, %d running", len(all.pods), len(all.waiting), len(all.queue), len(all.unsent), all.nets)
	}
}

// The result of a probe that was edited while it ran does not count. Otherwise an edit that
// repairs a liveness probe would end the container (F81).
//
// Shows: F81
func TestF81_EditedProbeDoesNotCount(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("c liveness", hung(5*time.Second))
		began := time.Now()
		w.tell("c", w.all(patient("c"), began, true, true)[1])
		w.pass(time.Second)
		w.answer("c liveness", nil)
		w.tell("c", w.all(patient("c", func(c *v1.Container) { c.LivenessProbe.TimeoutSeconds = 30 }), began, true, true)[1])
		w.pass(time.Minute)
		w.want(w.sayings())
		w.answer("c liveness", ill)
		w.pass(time.Minute)
		w.want(w.sayings(), "1m10s c liveness false")
	})
}
