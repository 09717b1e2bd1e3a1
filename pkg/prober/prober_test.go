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

// fixture is a running prober with a runner for its probes. It records the probes that ran
// and the statuses that the prober sent.
type fixture struct {
	t      *testing.T
	begin  time.Time
	prober *Prober

	mu         sync.Mutex                             // guards the fields below
	log        strings.Builder                        // the prober's
	answers    map[string]func(context.Context) error // by container and kind: "web readiness"; nil succeeds
	runs       []string                               // "1.5s web readiness"
	statuses   []string                               // "1.5s web readiness true"
	active     int                                    // probes that run now
	maxActive  int                                    // the most probes that ran at once
	clockAhead time.Duration                          // of the prober's clock
	wakes      int
}

// withProber calls test in a bubble in which a prober runs; the time in records begins at 0.
func withProber(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, begin: time.Now(), answers: make(map[string]func(context.Context) error)}
		f.prober = New(f, slog.New(slog.NewTextHandler(f, nil)), nil)
		f.prober.now = func() time.Time {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.wakes++
			return time.Now().Add(f.clockAhead)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { f.prober.Run(ctx) })
		wg.Go(func() {
			for {
				select {
				case s := <-f.prober.Statuses():
					f.mu.Lock()
					f.statuses = append(f.statuses, fmt.Sprintf("%s %s %s %t", time.Since(f.begin), s.Container, s.Kind, s.OK))
					f.mu.Unlock()
				case <-ctx.Done():
					return
				}
			}
		})
		synctest.Wait()
		test(f)
		cancel()
		wg.Wait() // every probe has ended
		if n := f.running(); n != 0 {
			t.Errorf("%d probes are still running", n)
		}
	})
}

// Write receives the prober's log.
func (f *fixture) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(line)
}

// locked calls read while it holds the lock of f.
func locked[V any](f *fixture, read func() V) V {
	f.mu.Lock()
	defer f.mu.Unlock()
	return read()
}

func (f *fixture) logged() string  { return locked(f, f.log.String) }
func (f *fixture) running() int    { return locked(f, func() int { return f.active }) }
func (f *fixture) maxRunning() int { return locked(f, func() int { return f.maxActive }) }
func (f *fixture) wakeups() int    { return locked(f, func() int { return f.wakes }) }

// setClockAhead sets how far the prober's clock is ahead of the bubble's, as after a stop of
// the process.
func (f *fixture) setClockAhead(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clockAhead = d
}

// Probe makes the fixture the prober's Runner.
func (f *fixture) Probe(ctx context.Context, r pod.ProbeRequest) error {
	name := r.Container.Name + " " + string(kindOf(r))
	f.mu.Lock()
	f.runs = append(f.runs, time.Since(f.begin).String()+" "+name)
	f.active++
	f.maxActive = max(f.maxActive, f.active)
	answer := f.answers[name]
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.active--
	}()
	if answer == nil {
		return nil
	}
	return answer(ctx)
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

// answer sets the function that answers a container's probe from now on.
func (f *fixture) answer(name string, answer func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[name] = answer
}

// advance advances the bubble's time.
func (f *fixture) advance(d time.Duration) { time.Sleep(d); synctest.Wait() }

// setTargets sets a pod's targets and waits until the prober has handled them.
func (f *fixture) setTargets(name string, list ...Target) {
	f.prober.SetTargets(f.t.Context(), pod.Key{Name: name}, list)
	synctest.Wait()
}

// probesRun returns the probes that ran since its last call.
func (f *fixture) probesRun() []string { return f.take(&f.runs) }

// statusesSent returns the statuses that were sent since its last call.
func (f *fixture) statusesSent() []string { return f.take(&f.statuses) }

func (f *fixture) take(list *[]string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	got := *list
	*list = nil
	slices.SortFunc(got, cmpTimes)
	return got
}

// cmpTimes orders by time, then by name: probes at the same time run in no order.
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

func (f *fixture) want(got []string, want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Error(diff)
	}
}

// probedContainer returns a container with all three probes, each with a period of 10 s and a
// failure threshold of 1.
func probedContainer(name string, edits ...func(*v1.Container)) *v1.Container {
	every := func(seconds int32) *v1.Probe {
		return &v1.Probe{PeriodSeconds: seconds, FailureThreshold: 1, SuccessThreshold: 1, TimeoutSeconds: 1,
			ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}}}
	}
	c := &v1.Container{Name: name, ReadinessProbe: every(10), LivenessProbe: every(10), StartupProbe: every(10)}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

// target returns a target of a container that starts now. The container is ready if started.
func target(kind pod.ProbeKind, c *v1.Container, started bool) Target {
	return Target{Key: pod.Key{Name: c.Name}, Kind: kind, Container: c, ContainerID: "id-" + c.Name,
		StartedAt: time.Now(), Started: started, Ready: started}
}

// targets returns the readiness, liveness and startup targets of a container, in this order.
func targets(c *v1.Container, startedAt time.Time, started, ready bool) []Target {
	var list []Target
	for _, kind := range []pod.ProbeKind{pod.Readiness, pod.Liveness, pod.Startup} {
		t := target(kind, c, started)
		t.StartedAt, t.Ready = startedAt, ready
		list = append(list, t)
	}
	return list
}

var (
	errFailed = &pod.ProbeFailure{Message: "failed"}
	failing   = func(context.Context) error { return errFailed }
	cannotRun = func(context.Context) error { return errors.New("cannot run the probe") }
)

// hung fails after d, unless it is canceled.
func hung(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return errFailed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Shows: C-1.29.6
func TestC_1_29_6_StartupProbeComesFirst(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web", func(c *v1.Container) { c.StartupProbe.PeriodSeconds, c.StartupProbe.FailureThreshold = 4, 5 })
		startedAt := time.Now()
		f.answer("web startup", failing)
		f.setTargets("web", targets(c, startedAt, false, false)...)
		f.advance(9 * time.Second)
		f.want(f.probesRun(), "0s web startup", "4s web startup", "8s web startup")
		f.answer("web startup", nil)
		f.advance(20 * time.Second)
		f.want(f.probesRun(), "12s web startup") // none after that: its status is final
		f.want(f.statusesSent(), "12s web startup true")

		f.setTargets("web", targets(c, startedAt, true, false)...) // as the sync loop does after that status
		f.advance(15 * time.Second)
		f.want(f.probesRun(), "29s web liveness", "29s web readiness", "39s web liveness", "39s web readiness")
		f.want(f.statusesSent(), "29s web readiness true")
	})
}

// After a failure of liveness or any status of the startup probe, a probe does not run until
// the container has another ID.
//
// Shows: C-1.29.9
func TestC_1_29_9_StatusIsFinal_ProbeDoesNotRun(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web", func(c *v1.Container) { c.LivenessProbe.FailureThreshold = 2 })
		startedAt := time.Now()
		f.answer("web liveness", failing)
		live := target(pod.Liveness, c, true)
		f.setTargets("web", live)
		f.advance(time.Minute)
		f.want(f.probesRun(), "0s web liveness", "10s web liveness")
		f.want(f.statusesSent(), "10s web liveness false")

		live.Ready = false // another target of the same container changes nothing
		f.setTargets("web", live)
		f.advance(time.Minute)
		f.want(f.probesRun())

		live.ContainerID, live.StartedAt = "another", time.Now()
		f.answer("web liveness", nil)
		f.setTargets("web", live)
		f.advance(11 * time.Second)
		f.want(f.probesRun(), "2m0s web liveness", "2m10s web liveness")

		f.answer("web startup", failing)
		start := target(pod.Startup, c, false)
		start.StartedAt = startedAt
		f.setTargets("web", start)
		f.advance(time.Minute)
		f.want(f.probesRun(), "2m11s web startup")
		f.want(f.statusesSent(), "2m11s web startup false")
	})
}

// The prober ignores the result of a startup probe if the target says meanwhile that the
// container has started.
//
// Shows: C-1.29.6
func TestC_1_29_6_LateStartupResultIsIgnored(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web")
		f.answer("web startup", hung(5*time.Second))
		f.setTargets("web", target(pod.Startup, c, false))
		f.advance(time.Second)
		f.setTargets("web", target(pod.Startup, c, true))
		f.advance(time.Minute)
		f.want(f.probesRun(), "0s web startup")
		f.want(f.statusesSent())
	})
}

// Shows: C-1.29.8
func TestC_1_29_8_ThresholdsAndPeriods(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web", func(c *v1.Container) {
			c.ReadinessProbe.InitialDelaySeconds, c.ReadinessProbe.FailureThreshold = 3, 2
		})
		f.setTargets("web", target(pod.Readiness, c, true))
		f.advance(4 * time.Second)
		f.want(f.statusesSent(), "3s web readiness true") // C-1.29.5
		f.answer("web readiness", failing)
		f.advance(10 * time.Second)
		f.want(f.statusesSent()) // one failure is not enough
		f.answer("web readiness", cannotRun)
		f.advance(10 * time.Second) // an error does not count (C-1.29.7)
		f.answer("web readiness", failing)
		f.advance(10 * time.Second)
		f.want(f.statusesSent(), "33s web readiness false")
		f.want(f.probesRun(), "3s web readiness", "13s web readiness", "23s web readiness", "33s web readiness")
	})
}

// A terminating pod has readiness targets only: its other probes end.
//
// Shows: C-1.29.11
func TestC_1_29_11_PodStops_OnlyReadinessContinues(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web")
		startedAt := time.Now()
		f.setTargets("web", targets(c, startedAt, true, true)...)
		f.advance(time.Second)
		f.probesRun()
		f.answer("web readiness", failing)
		ready := target(pod.Readiness, c, true)
		ready.StartedAt = startedAt
		f.setTargets("web", ready)
		f.advance(20 * time.Second)
		f.want(f.probesRun(), "10s web readiness", "20s web readiness")
		f.want(f.statusesSent(), "0s web readiness true", "10s web readiness false")
		f.setTargets("web")
		f.advance(time.Minute)
		f.want(f.probesRun())
	})
}

// SetTargets makes the readiness probe of a started container that is not ready run at once.
// Its period counts from that run.
//
// Shows: C-1.29.19
func TestC_1_29_19_ContainerIsNotReady_SetTargetsProbesItAtOnce(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web")
		startedAt := time.Now()
		f.answer("web readiness", failing)
		f.setTargets("web", targets(c, startedAt, true, false)[0])
		f.advance(4 * time.Second)
		f.setTargets("web", targets(c, startedAt, true, false)[0])
		f.advance(11 * time.Second)
		f.want(f.probesRun(), "0s web readiness", "4s web readiness", "14s web readiness")
		f.answer("web readiness", nil)
		f.advance(10 * time.Second)
		f.setTargets("web", targets(c, startedAt, true, true)[0])
		f.advance(4 * time.Second)
		f.want(f.probesRun(), "24s web readiness") // ready: no early probe
	})
}

// SetTargets does not shorten the initial delay, neither of a container that is not ready nor
// of one that counts as started before its delay is over.
//
// Shows: C-1.29.5
func TestC_1_29_5_SetTargetsDoesNotShortenTheDelay(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web", func(c *v1.Container) { c.ReadinessProbe.InitialDelaySeconds = 8 })
		startedAt := time.Now()
		f.setTargets("web", targets(c, startedAt, true, false)[0])
		f.advance(3 * time.Second)
		f.setTargets("web", targets(c, startedAt, true, false)[0])
		f.advance(12 * time.Second)
		f.want(f.probesRun(), "8s web readiness")

		d := probedContainer("slow", func(c *v1.Container) { c.ReadinessProbe.InitialDelaySeconds = 20 })
		startedAt = time.Now() // 15s
		f.setTargets("slow", targets(d, startedAt, false, false)[0])
		f.advance(5 * time.Second)
		f.setTargets("slow", targets(d, startedAt, true, false)[0]) // started before its delay is over
		f.advance(16 * time.Second)
		f.setTargets("web")
		f.want(f.probesRun(), "18s web readiness", "28s web readiness", "35s slow readiness")
	})
}

// Containers that started before the agent are first probed at random times within a period.
// SetTargets does not change these times.
//
// Shows: C-1.29.3
func TestC_1_29_3_AdoptedContainersAreSpread(t *testing.T) {
	withProber(t, func(f *fixture) {
		const containers = 50
		startedAt := f.begin.Add(-time.Hour)
		first := make(map[string]string) // time of the first run, by probe
		collect := func() {
			for _, run := range f.probesRun() {
				at, name, _ := strings.Cut(run, " ")
				if first[name] == "" {
					first[name] = at
				}
			}
		}
		setAll := func() {
			for i := range containers {
				c := probedContainer(fmt.Sprint(i))
				f.setTargets(c.Name, targets(c, startedAt, true, false)[0])
			}
		}
		setAll()
		f.advance(3 * time.Second)
		setAll()
		f.advance(7 * time.Second)
		collect()
		times := make(map[string]bool)
		for _, at := range first {
			times[at] = true
		}
		if len(first) != containers || len(times) < containers/2 || times["3s"] {
			t.Errorf("%d of %d containers were first probed at %d times within their period: %v", len(first), containers, len(times), times)
		}
	})
}

// The period of an edited probe applies at once and counts from the last run.
func TestSetTargets_PeriodIsEdited_AppliesAtOnce(t *testing.T) {
	withProber(t, func(f *fixture) {
		c := probedContainer("web", func(c *v1.Container) { c.LivenessProbe.PeriodSeconds = 3600 })
		f.setTargets("web", target(pod.Liveness, c, true))
		f.advance(7 * time.Second)
		f.setTargets("web", target(pod.Liveness, probedContainer("web"), true))
		f.advance(5 * time.Second)
		f.want(f.probesRun(), "0s web liveness", "10s web liveness")
	})
}

// An error that lasts is logged once, after the second run. The first one is not logged,
// since it may be due to the container's exit.
//
// Shows: C-1.29.7
func TestC_1_29_7_LastingErrorIsLoggedOnce(t *testing.T) {
	withProber(t, func(f *fixture) {
		f.answer("web readiness", cannotRun)
		f.setTargets("web", target(pod.Readiness, probedContainer("web"), true))
		f.advance(5 * time.Second)
		if got := f.logged(); got != "" {
			t.Errorf("logged after the first run: %s", got)
		}
		f.advance(time.Minute)
		if n := strings.Count(f.logged(), "Failed to run probe"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		f.want(f.statusesSent())
	})
}
