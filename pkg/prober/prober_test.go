package prober

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// ward answers the probes of every container, and records when each ran.
type ward struct {
	t     *testing.T
	begin time.Time
	p     *Prober

	mu      sync.Mutex
	text    strings.Builder                        // of the log
	answers map[string]func(context.Context) error // by container and kind; nil succeeds
	asked   []string                               // "1.5s web readiness"
	now     int                                    // running
	most    int                                    // running at once
	skip    time.Duration                          // by which the prober's clock is ahead
	wakes   int
	said    []string // statuses: "1.5s web readiness true"
}

// probing runs f beside a prober, in a bubble, from time zero.
func probing(t *testing.T, f func(w *ward)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &ward{t: t, begin: time.Now(), answers: make(map[string]func(context.Context) error)}
		w.p = New(w, slog.New(slog.NewTextHandler(w, nil)), nil)
		w.p.now = func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.wakes++
			return time.Now().Add(w.skip)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { w.p.Run(ctx) })
		wg.Go(func() {
			for {
				select {
				case s := <-w.p.Statuses():
					w.mu.Lock()
					w.said = append(w.said, fmt.Sprintf("%s %s %s %t", time.Since(w.begin), s.Container, s.Kind, s.OK))
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

// Write receives the prober's log.
func (w *ward) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(line)
}

// sees reads the ward under its lock.
func sees[V any](w *ward, f func() V) V {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

func (w *ward) logged() string { return sees(w, w.text.String) }
func (w *ward) running() int   { return sees(w, func() int { return w.now }) }
func (w *ward) atOnce() int    { return sees(w, func() int { return w.most }) }
func (w *ward) wakeups() int   { return sees(w, func() int { return w.wakes }) }

// jump advances the prober's clock.
func (w *ward) jump(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skip = d
}

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

// answer sets the result of a container's probe from now on.
func (w *ward) answer(name string, f func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[name] = f
}

// pass advances the time.
func (w *ward) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// tell sends a pod's targets and waits until they are taken.
func (w *ward) tell(name string, list ...Target) {
	w.p.SetTargets(w.t.Context(), pod.Key{Name: name}, list)
	synctest.Wait()
}

// questions and sayings return the probes that ran and the statuses since the last call.
func (w *ward) questions() []string { return w.take(&w.asked) }
func (w *ward) sayings() []string   { return w.take(&w.said) }

func (w *ward) take(list *[]string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := *list
	*list = nil
	slices.SortFunc(got, cmpTimes)
	return got
}

// cmpTimes orders by time, then by name: events at the same time have no order.
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

// patient returns the container of the tests: all three probes, each with its own period and
// a failure threshold of 1.
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

// aim returns the target of a container that starts now; it is ready if it has started.
func (w *ward) aim(kind pod.ProbeKind, c *v1.Container, started bool) Target {
	return Target{Key: pod.Key{Name: c.Name}, Kind: kind, Container: c, ContainerID: "id-" + c.Name,
		StartedAt: time.Now(), Started: started, Ready: started}
}

// all returns the three targets of a container that started at began.
func (w *ward) all(c *v1.Container, began time.Time, started, ready bool) []Target {
	var list []Target
	for _, kind := range []pod.ProbeKind{pod.Readiness, pod.Liveness, pod.Startup} {
		t := w.aim(kind, c, started)
		t.StartedAt, t.Ready = began, ready
		list = append(list, t)
	}
	return list
}

var (
	errIll = &pod.ProbeFailure{Message: "ill"}
	ill    = func(context.Context) error { return errIll }
	unable = func(context.Context) error { return errors.New("trouble") }
)

// hung does not answer for d, unless it is cancelled.
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

// Shows: C-1.29.6
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
		w.want(w.questions(), "12s web startup") // and no more: it has its final result
		w.want(w.sayings(), "12s web startup true")

		w.tell("web", w.all(c, began, true, false)...) // the worker has read it
		w.pass(15 * time.Second)
		w.want(w.questions(), "29s web liveness", "29s web readiness", "39s web liveness", "39s web readiness")
		w.want(w.sayings(), "29s web readiness true")
	})
}

// Shows: C-1.29.9
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

		live.Ready = false // an update of the same container changes nothing
		w.tell("web", live)
		w.pass(time.Minute)
		w.want(w.questions())

		live.ContainerID, live.StartedAt = "another", time.Now()
		w.answer("web liveness", nil)
		w.tell("web", live)
		w.pass(11 * time.Second)
		w.want(w.questions(), "2m0s web liveness", "2m10s web liveness")

		w.answer("web startup", ill)
		start := w.aim(pod.Startup, c, false)
		start.StartedAt = began
		w.tell("web", start)
		w.pass(time.Minute)
		w.want(w.questions(), "2m11s web startup")
		w.want(w.sayings(), "2m11s web startup false")
	})
}

// The result of a startup probe that still runs when its container counts as started is
// ignored.
//
// Shows: C-1.29.6
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

// Shows: C-1.29.8
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
		w.want(w.sayings()) // one success is not enough
		w.answer("web readiness", unable)
		w.pass(10 * time.Second) // C-1.29.7: does not count
		w.answer("web readiness", ill)
		w.pass(10 * time.Second)
		w.want(w.sayings(), "33s web readiness false")
		w.want(w.questions(), "3s web readiness", "13s web readiness", "23s web readiness", "33s web readiness")
	})
}

// C-1.29.11: a terminating pod has no liveness and startup targets.
//
// Shows: C-1.29.11
func TestC_1_29_11_OnlyReadinessGoesOnWhilePodStops(t *testing.T) {
	probing(t, func(w *ward) {
		c := patient("web")
		began := time.Now()
		w.tell("web", w.all(c, began, true, true)...)
		w.pass(time.Second)
		w.questions()
		w.answer("web readiness", ill)
		ready := w.aim(pod.Readiness, c, true)
		ready.StartedAt = began
		w.tell("web", ready)
		w.pass(20 * time.Second)
		w.want(w.questions(), "10s web readiness", "20s web readiness")
		w.want(w.sayings(), "0s web readiness true", "10s web readiness false")
		w.tell("web")
		w.pass(time.Minute)
		w.want(w.questions())
	})
}

// C-1.29.19: an update of a container that is started and not ready probes it at once, and
// starts its period.
//
// Shows: C-1.29.19
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
		w.want(w.questions(), "24s web readiness") // ready: no early probe
	})
}

// An update does not shorten an initial delay, nor the time before an adopted container's
// first probe.
//
// Shows: C-1.29.5
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
		w.tell("slow", w.all(d, began, true, false)[0]) // it starts before its delay is over
		w.pass(16 * time.Second)
		w.tell("web")
		w.want(w.questions(), "18s web readiness", "28s web readiness", "35s slow readiness")
	})
}

// Containers that ran before the agent are first probed at random times of their period, and
// updates do not change that.
//
// Shows: C-1.29.3
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
			t.Errorf("%d of %d containers were first probed at %d times within their period: %v", len(asked), containers, len(times), times)
		}
	})
}

// An edited probe takes effect at once, also where the old one would have waited.
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

// A probe that cannot run is logged once if that lasts; at the end of a container it is not
// logged.
//
// Shows: C-1.29.7
func TestC_1_29_7_LastingErrorIsLoggedOnce(t *testing.T) {
	probing(t, func(w *ward) {
		w.answer("web readiness", unable)
		w.tell("web", w.aim(pod.Readiness, patient("web"), true))
		w.pass(5 * time.Second)
		if got := w.logged(); got != "" {
			t.Errorf("logged at once: %s", got)
		}
		w.pass(time.Minute)
		if n := strings.Count(w.logged(), "Failed to run probe"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		w.want(w.sayings())
	})
}
