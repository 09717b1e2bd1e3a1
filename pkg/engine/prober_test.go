package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ward is what the prober's tests probe: it answers for every container, and
// writes down when it was asked.
type ward struct {
	t     *testing.T
	begin time.Time
	p     *prober

	mu      sync.Mutex
	text    strings.Builder                        // of the log
	answers map[string]func(context.Context) error // by container and kind; none is well
	asked   []string                               // "1.5s web readiness"
	now     int                                    // running
	most    int                                    // running at once
	skip    time.Duration                          // by which the prober's clock is ahead
	wakes   int
	said    []string // verdicts: "1.5s web readiness true"
}

// probing runs f beside a prober, in a bubble, from second zero.
func probing(t *testing.T, f func(w *ward)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &ward{t: t, begin: time.Now(), answers: make(map[string]func(context.Context) error)}
		w.p = newProber(w, slog.New(slog.NewTextHandler(w, nil)))
		w.p.now = func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.wakes++
			return time.Now().Add(w.skip)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { w.p.run(ctx) })
		wg.Go(func() {
			for {
				select {
				case v := <-w.p.verdicts:
					w.mu.Lock()
					w.said = append(w.said, fmt.Sprintf("%s %s %s %t", time.Since(w.begin), v.container, v.kind, v.OK))
					w.mu.Unlock()
				case <-ctx.Done():
					return
				}
			}
		})
		synctest.Wait()
		f(w)
		cancel()
		wg.Wait() // every probe has ended
		if n := w.running(); n != 0 {
			t.Errorf("%d probes are still running", n)
		}
	})
}

// Write takes the prober's log.
func (w *ward) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(line)
}

// sees looks at the ward while nobody writes to it.
func sees[V any](w *ward, f func() V) V {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

func (w *ward) logged() string { return sees(w, w.text.String) }
func (w *ward) running() int   { return sees(w, func() int { return w.now }) }
func (w *ward) atOnce() int    { return sees(w, func() int { return w.most }) }
func (w *ward) wakeups() int   { return sees(w, func() int { return w.wakes }) }

// jump puts the prober's clock ahead.
func (w *ward) jump(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skip = d
}

func (w *ward) Hook(context.Context, pod.HookRequest) error { return errors.ErrUnsupported }

func (w *ward) Probe(ctx context.Context, r pod.ProbeRequest) error {
	name := r.Container.Name + " " + string(kindOf(r))
	w.mu.Lock()
	w.asked = append(w.asked, time.Since(w.begin).String()+" "+name)
	w.now++
	w.most = max(w.most, w.now)
	f := w.answers[name]
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.now--
	}()
	if f == nil {
		return nil
	}
	return f(ctx)
}

func kindOf(r pod.ProbeRequest) pod.ProbeKind {
	switch r.Probe {
	case r.Container.LivenessProbe:
		return pod.Liveness
	case r.Container.StartupProbe:
		return pod.Startup
	}
	return pod.Readiness
}

// answer sets what a container's probe gets from now on.
func (w *ward) answer(name string, f func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[name] = f
}

// pass lets time go by.
func (w *ward) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// tell sends a pod's targets and waits until they are taken.
func (w *ward) tell(name string, list ...target) {
	w.p.targets <- targetSet{key: pod.Key{Name: name}, list: list}
	synctest.Wait()
}

// questions and sayings return what was asked and published since they were last
// looked at.
func (w *ward) questions() []string { return w.take(&w.asked) }
func (w *ward) sayings() []string   { return w.take(&w.said) }

func (w *ward) take(list *[]string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := *list
	*list = nil
	slices.SortFunc(got, func(a, b string) int { return cmpTimes(a, b) })
	return got
}

// cmpTimes orders by time, then by name: what happens in one instant has no order.
func cmpTimes(a, b string) int {
	ta, na, _ := strings.Cut(a, " ")
	tb, nb, _ := strings.Cut(b, " ")
	da, _ := time.ParseDuration(ta)
	db, _ := time.ParseDuration(tb)
	if da != db {
		return int(da - db)
	}
	return strings.Compare(na, nb)
}

func (w *ward) want(got []string, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Error(diff)
	}
}

// patient returns the container of the tests: all three probes, each with its own
// period, of one failure unless told otherwise.
func patient(name string, edit ...func(*v1.Container)) *v1.Container {
	every := func(seconds int32) *v1.Probe {
		return &v1.Probe{PeriodSeconds: seconds, FailureThreshold: 1, SuccessThreshold: 1, TimeoutSeconds: 1,
			ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}}}
	}
	c := &v1.Container{Name: name, ReadinessProbe: every(10), LivenessProbe: every(10), StartupProbe: every(10)}
	for _, f := range edit {
		f(c)
	}
	return c
}

// aim returns the target of a container that starts now, ready once it is
// started.
func (w *ward) aim(kind pod.ProbeKind, c *v1.Container, started bool) target {
	return target{key: pod.Key{Name: c.Name}, kind: kind, container: c, containerID: "id-" + c.Name,
		startedAt: time.Now(), started: started, ready: started}
}

// all returns the three targets of a container whose life began at began.
func (w *ward) all(c *v1.Container, began time.Time, started, ready bool) []target {
	var list []target
	for _, kind := range []pod.ProbeKind{pod.Readiness, pod.Liveness, pod.Startup} {
		t := w.aim(kind, c, started)
		t.startedAt, t.ready = began, ready
		list = append(list, t)
	}
	return list
}

var (
	errIll = &pod.ProbeFailure{Message: "ill"}
	ill    = func(context.Context) error { return errIll }
	unable = func(context.Context) error { return errors.New("trouble") }
)

// hung does not answer for d, unless it is called off.
func hung(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return errIll
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestC_1_29_6_StartupProbeComesFirst(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web", func(c *v1.Container) { c.StartupProbe.PeriodSeconds, c.StartupProbe.FailureThreshold = 4, 5 })
		began := time.Now()
		w.answer("web startup", ill)
		w.tell("web", w.all(c, began, false, false)...)
		w.pass(9 * time.Second)
		w.want(w.questions(), "0s web startup", "4s web startup", "8s web startup")
		w.answer("web startup", nil)
		w.pass(20 * time.Second)
		w.want(w.questions(), "12s web startup") // and no more: it has said its word
		w.want(w.sayings(), "12s web startup true")

		w.tell("web", w.all(c, began, true, false)...) // the worker has seen it
		w.pass(15 * time.Second)
		w.want(w.questions(), "29s web liveness", "29s web readiness", "39s web liveness", "39s web readiness")
		w.want(w.sayings(), "29s web readiness true")
	})
}

func TestC_1_29_9_OnHoldAfterTheLastWord(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web", func(c *v1.Container) { c.LivenessProbe.FailureThreshold = 2 })
		began := time.Now()
		w.answer("web liveness", ill)
		live := w.aim(pod.Liveness, c, true)
		w.tell("web", live)
		w.pass(time.Minute)
		w.want(w.questions(), "0s web liveness", "10s web liveness")
		w.want(w.sayings(), "10s web liveness false")

		live.ready = false // news of the same life changes nothing
		w.tell("web", live)
		w.pass(time.Minute)
		w.want(w.questions())

		live.containerID, live.startedAt = "another", time.Now()
		w.answer("web liveness", nil)
		w.tell("web", live)
		w.pass(11 * time.Second)
		w.want(w.questions(), "2m0s web liveness", "2m10s web liveness")

		w.answer("web startup", ill)
		start := w.aim(pod.Startup, c, false)
		start.startedAt = began
		w.tell("web", start)
		w.pass(time.Minute)
		w.want(w.questions(), "2m11s web startup")
		w.want(w.sayings(), "2m11s web startup false")
	})
}

// A startup probe that is still under way when its container counts as started
// says nothing any more.
func TestC_1_29_6_LateStartupResultIsIgnored(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web")
		w.answer("web startup", hung(5*time.Second))
		w.tell("web", w.aim(pod.Startup, c, false))
		w.pass(time.Second)
		w.tell("web", w.aim(pod.Startup, c, true))
		w.pass(time.Minute)
		w.want(w.questions(), "0s web startup")
		w.want(w.sayings())
	})
}

func TestC_1_29_8_ThresholdsAndPeriods(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web", func(c *v1.Container) {
			c.ReadinessProbe.InitialDelaySeconds, c.ReadinessProbe.FailureThreshold = 3, 2
		})
		w.tell("web", w.aim(pod.Readiness, c, true))
		w.pass(4 * time.Second)
		w.want(w.sayings(), "3s web readiness true") // C-1.29.5
		w.answer("web readiness", ill)
		w.pass(10 * time.Second)
		w.want(w.sayings()) // one is not enough
		w.answer("web readiness", unable)
		w.pass(10 * time.Second) // C-1.29.7: counted for nothing
		w.answer("web readiness", ill)
		w.pass(10 * time.Second)
		w.want(w.sayings(), "33s web readiness false")
		w.want(w.questions(), "3s web readiness", "13s web readiness", "23s web readiness", "33s web readiness")
	})
}

// C-1.29.11: a pod that stops is told without liveness and startup targets.
func TestC_1_29_11_OnlyReadinessGoesOnWhilePodStops(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web")
		began := time.Now()
		w.tell("web", w.all(c, began, true, true)...)
		w.pass(time.Second)
		w.questions()
		w.answer("web readiness", ill)
		ready := w.aim(pod.Readiness, c, true)
		ready.startedAt = began
		w.tell("web", ready)
		w.pass(20 * time.Second)
		w.want(w.questions(), "10s web readiness", "20s web readiness")
		w.want(w.sayings(), "0s web readiness true", "10s web readiness false")
		w.tell("web")
		w.pass(time.Minute)
		w.want(w.questions())
	})
}

// C-1.29.19: news of a container that is started and not ready asks it at once,
// and its period begins there.
func TestC_1_29_19_NewsOfAnUnreadyContainerAsksAtOnce(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web")
		began := time.Now()
		w.answer("web readiness", ill)
		w.tell("web", w.all(c, began, true, false)[0])
		w.pass(4 * time.Second)
		w.tell("web", w.all(c, began, true, false)[0])
		w.pass(11 * time.Second)
		w.want(w.questions(), "0s web readiness", "4s web readiness", "14s web readiness")
		w.answer("web readiness", nil)
		w.pass(10 * time.Second)
		w.tell("web", w.all(c, began, true, true)[0])
		w.pass(4 * time.Second)
		w.want(w.questions(), "24s web readiness") // ready: nothing to hurry for
	})
}

// News does not shorten an initial delay, nor does the time before an adopted
// container's first probe.
func TestC_1_29_5_NewsDoesNotShortenTheDelay(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web", func(c *v1.Container) { c.ReadinessProbe.InitialDelaySeconds = 8 })
		began := time.Now()
		w.tell("web", w.all(c, began, true, false)[0])
		w.pass(3 * time.Second)
		w.tell("web", w.all(c, began, true, false)[0])
		w.pass(12 * time.Second)
		w.want(w.questions(), "8s web readiness")

		d := patient("slow", func(c *v1.Container) { c.ReadinessProbe.InitialDelaySeconds = 20 })
		began = time.Now() // 15s
		w.tell("slow", w.all(d, began, false, false)[0])
		w.pass(5 * time.Second)
		w.tell("slow", w.all(d, began, true, false)[0]) // it opens before its delay is over
		w.pass(16 * time.Second)
		w.tell("web")
		w.want(w.questions(), "18s web readiness", "28s web readiness", "35s slow readiness")
	})
}

// Containers that ran before the agent are first asked at random times of their
// period, and news of them does not change that.
func TestC_1_29_3_AdoptedContainersAreSpread(t *testing.T) {
	probing(t, func(w *ward) {
		const containers = 50
		began := w.begin.Add(-time.Hour)
		asked := make(map[string]string)
		note := func() {
			for _, q := range w.questions() {
				at, name, _ := strings.Cut(q, " ")
				if asked[name] == "" {
					asked[name] = at
				}
			}
		}
		news := func() {
			for i := range containers {
				c := patient(fmt.Sprint(i))
				w.tell(c.Name, w.all(c, began, true, false)[0])
			}
		}
		news()
		w.pass(3 * time.Second)
		news()
		w.pass(7 * time.Second)
		note()
		times := make(map[string]bool)
		for _, at := range asked {
			times[at] = true
		}
		if len(asked) != containers || len(times) < containers/2 || times["3s"] {
			t.Errorf("%d of %d containers were first asked at %d times within their period: %v", len(asked), containers, len(times), times)
		}
	})
}

// An edited probe holds from then on, also where the old one would have waited.
func TestEditedPeriodHoldsFromNowOn(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web", func(c *v1.Container) { c.LivenessProbe.PeriodSeconds = 3600 })
		w.tell("web", w.aim(pod.Liveness, c, true))
		w.pass(7 * time.Second)
		w.tell("web", w.aim(pod.Liveness, patient("web"), true))
		w.pass(5 * time.Second)
		w.want(w.questions(), "0s web liveness", "10s web liveness")
	})
}

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

// One probe that hangs, whatever its period, keeps no other from its time.
func TestF81_SlowProbeDelaysNobody(t *testing.T) {
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

func TestF81_ProbesAreCappedPerPod(t *testing.T) {
	probing(t, func(w *ward) {
		var list []target
		for i := range 3 * podSlots {
			c := patient(fmt.Sprintf("c%02d", i))
			w.answer(c.Name+" readiness", hung(2*time.Second))
			ready := w.aim(pod.Readiness, c, true)
			ready.key = pod.Key{Name: "big"}
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
			t.Errorf("asked %q, want everybody once, and the small one's at 0s", asked)
		}
	})
}

// With every slot of the node taken by probes that hang, a healthy pod's probe
// waits no longer than those may take, and commands do not wait for connections.
func TestF81_HungProbesStarveNobody(t *testing.T) {
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

// A probe whose container is gone is called off, and gives its slot back.
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

// F5: the process stands still for 30 s while a probe runs. What the probe says
// then is thrown away, the periods that were missed are not made up for, and
// nobody's health changes.
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
func TestF5_SlowResultWithoutGapCounts(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("web liveness", hung(45*time.Second))
		w.tell("web", w.aim(pod.Liveness, patient("web"), true))
		w.pass(time.Minute)
		w.want(w.sayings(), "45s web liveness false")
	})
}

// A gap in which no probe ran throws nothing away.
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

// A panic of one probe is that probe's trouble, said once.
func TestF8_PanicOfAProbeIsItsOwn(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("web readiness", func(context.Context) error { panic("bug") })
		w.tell("web", w.aim(pod.Readiness, patient("web"), true))
		w.tell("well", w.aim(pod.Readiness, patient("well"), true))
		w.pass(25 * time.Second)
		w.want(w.sayings(), "0s well readiness true")
		if n := strings.Count(w.logged(), "Probe panicked"); n != 1 {
			t.Errorf("the panic was said %d times, want once:\n%s", n, w.logged())
		}
	})
}

// Trouble that lasts is said once; that of a container's end is not.
func TestC_1_29_7_LastingTroubleIsSaidOnce(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("web readiness", unable)
		w.tell("web", w.aim(pod.Readiness, patient("web"), true))
		w.pass(5 * time.Second)
		if got := w.logged(); got != "" {
			t.Errorf("said at once: %s", got)
		}
		w.pass(time.Minute)
		if n := strings.Count(w.logged(), "Probe cannot be run"); n != 1 {
			t.Errorf("said %d times, want once", n)
		}
		w.want(w.sayings())
	})
}

// Whatever targets come and go, what is kept is what there is: nothing of pods
// that are gone.
func TestProberForgetsWhatIsGone(t *testing.T) {
	now := time.Now()
	all := newRound(now, slog.New(slog.DiscardHandler))
	w := &ward{}
	called := 0
	for i := range 50 {
		c := patient(fmt.Sprint(i))
		key := pod.Key{Name: c.Name}
		all.take(targetSet{key, w.all(c, now, true, true)}, now)
		ran := all.due(now)
		for _, w := range ran {
			w.cancel = func() { called++ }
		}
		all.done(ran[0], nil, now)
		all.take(targetSet{key, w.all(c, now, false, false)}, now) // its startup probe waits, the others do not
		all.take(targetSet{key: key}, now)
		for _, w := range ran[1:] {
			all.done(w, nil, now)
		}
	}
	if called != 50 {
		t.Errorf("%d running probes were called off, want 50", called)
	}
	all.due(now)
	if len(all.pods)+len(all.waiting)+len(all.queue)+len(all.out)+all.nets != 0 {
		t.Errorf("left: %d pods, %d waiting, %d queued, %d verdicts, %d running", len(all.pods), len(all.waiting), len(all.queue), len(all.out), all.nets)
	}
}
