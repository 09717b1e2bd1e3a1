package engine

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// trap is a Volumes, or a Prober, that panics over one pod while it is set.
type trap struct {
	*disk
	name string
	left int // times it still panics
}

func (t *trap) Ready(want *pod.Spec, instance int) (put, current bool, until time.Time) {
	t.mu.Lock()
	goesOff := want.Name == t.name && t.left > 0
	if goesOff {
		t.left--
	}
	t.mu.Unlock()
	if goesOff {
		panic("the volumes of " + want.Name)
	}
	return t.disk.Ready(want, instance)
}

// Shows: F8
func TestF8_APanicCostsItsOwnPodAPauseAndNoOtherAnything(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.alter = func(c *Config) { c.Volumes = &trap{disk: m.disk, name: "web", left: 2} }
		m.src.set(mkpod("db"), mkpod("web"))
		m.arrive()
		if got := m.phase("db"); got != "Running" {
			t.Errorf("db is %s", got)
		}
		m.pass(5 * time.Second)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("web is %s after its worker's panics", got)
		}
		if log := m.log.String(); strings.Count(log, "panicked; retrying") != 2 || strings.Count(log, "stack=") != 1 {
			t.Error("two panics are not logged as two, with one stack")
		}
	})
}

// Shows: F8
func TestF8_ThreePanicsInAMinuteQuarantineThePod(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		v := &trap{disk: m.disk, name: "web", left: 3}
		m.alter = func(c *Config) { c.Volumes = v }
		m.src.set(mkpod("db"), mkpod("web"))
		m.arrive()
		m.pass(10 * time.Minute)
		line := m.disk.last(pod.Key{Namespace: "default", Name: "web"})
		if line == nil || line.pod.Status.Reason != "Quarantined" {
			t.Fatalf("web is reported as %+v", line)
		}
		if got := starts(m, "web"); got != 0 {
			t.Errorf("%d starts of a pod in quarantine", got)
		}
		m.src.set(mkpod("db"), mkpod("web", image("app:2")))
		m.pass(time.Second)
		if got := m.phase("web"); got != "Running" {
			t.Errorf("web is %s after the edit", got)
		}
		m.src.set()
		m.pass(time.Minute)
		m.want()
	})
}

// A panic in the goroutine of a call is handled by the worker, and does not end the agent.
//
// Shows: F8
func TestF8_APanicInACallIsTheWorkersOwn(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.alter = func(c *Config) { c.Runtime = &tripwire{Runtime: c.Runtime, left: 1} }
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(time.Second)
		m.src.set()
		m.pass(time.Minute)
		m.want()
		if !strings.Contains(m.log.String(), "Pod worker panicked") {
			t.Error("no worker panicked")
		}
	})
}

// tripwire panics at the first stops of a container.
type tripwire struct {
	Runtime
	left int
}

func (r *tripwire) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	if r.left > 0 {
		r.left--
		panic("stop")
	}
	return r.Runtime.StopContainer(ctx, id, grace)
}

// Shows: F7
func TestF7_BeatSaysThatTheLoopTurns(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		ctx, cancel := context.WithCancel(context.Background())
		e := New(m.config(m.rt.Connect()))
		short, done := context.WithTimeout(ctx, time.Second)
		if err := e.Healthy(short); err == nil {
			t.Error("an engine that does not run has a pulse")
		}
		done()
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()
		m.pass(time.Second)
		if err := e.Healthy(ctx); err != nil {
			t.Errorf("no pulse: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A panic while the record is saved during a stop blocks no other goroutine: the stops
// complete, then the worker begins again.
//
// Shows: F8
func TestF8_PanicBetweenHookAndStopBlocksNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.alter = func(c *Config) { c.Records = &tornRecords{Records: c.Records} }
		m.src.set(mkpod("db"), mkpod("web", preStopped, image("slow-term-20s")))
		m.arrive()
		m.pass(time.Second)
		m.src.set(mkpod("db"))
		m.pass(2 * time.Minute)
		if got := m.phase("web"); got != "gone" {
			t.Errorf("web is %s", got)
		}
		if n := strings.Count(m.log.String(), "panicked; retrying"); n != 1 {
			t.Errorf("%d panics were logged", n)
		}
		m.src.set()
		m.pass(time.Minute)
		m.want()
	})
}

// tornRecords panics at the first record with a completed preStop hook.
type tornRecords struct {
	Records
	torn bool
}

func (d *tornRecords) Save(r pod.Record) error {
	for _, l := range r.ContainerNotes {
		if l.PreStop && !d.torn {
			d.torn = true
			panic("the record of " + r.Name)
		}
	}
	return d.Records.Save(r)
}

// A pod in quarantine keeps running, is shown as it runs, and is removed when it is not
// desired any more.
//
// Shows: F8
func TestF8_QuarantineLeavesWhatRuns(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		v := &trap{disk: m.disk, name: "web"}
		m.alter = func(c *Config) { c.Volumes = v }
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(time.Second)
		was := m.rt.State()
		m.disk.mu.Lock()
		v.left = 3
		m.disk.mu.Unlock()
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }))
		m.pass(10 * time.Minute)
		line := m.disk.last(webKey)
		if line == nil || line.pod.Status.Reason != "Quarantined" || line.pod.Status.Phase != "Running" || !isReady(&line.pod.Status) {
			t.Errorf("web is reported as %+v", line)
		}
		if now := m.rt.State(); now != was {
			t.Errorf("was\n%s, is\n%s", was, now)
		}
		m.src.set()
		m.pass(time.Minute)
		m.want()
	})
}

// A blocked loop fails Healthy, and passes it again when it continues.
//
// Shows: F7
func TestF7_ABlockedLoopHasNoPulse(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		stuck := &gag{Handler: slog.NewTextHandler(&m.log, nil), at: "Pod removed", free: make(chan struct{})}
		cfg := m.config(m.rt.Connect())
		cfg.Log = slog.New(stuck)
		ctx, cancel := context.WithCancel(context.Background())
		e := New(cfg)
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()
		pulse := func() error {
			short, done := context.WithTimeout(ctx, time.Second)
			defer done()
			return e.Healthy(short)
		}
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		m.src.set()
		m.pass(time.Minute)
		if err := pulse(); err == nil || err.Error() != "the sync loop is not responding" {
			t.Errorf("pulse of a blocked loop: %v", err)
		}
		close(stuck.free)
		if err := pulse(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// gag blocks the goroutine that logs the line at until it is free.
type gag struct {
	slog.Handler
	at   string
	free chan struct{}
}

func (g *gag) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == g.at {
		<-g.free
	}
	return g.Handler.Handle(ctx, r)
}

func (g *gag) WithAttrs([]slog.Attr) slog.Handler { return g }

// Shows: F7
func TestF7_AWorkerLostInThoughtIsNamed(t *testing.T) {
	now := time.Now()
	l := &loop{pods: map[pod.Key]*entry{
		webKey:                            {key: webKey, link: link{planningSince: &atomic.Int64{}}},
		{Namespace: "default", Name: "x"}: {},
	}}
	for since, want := range map[time.Duration]string{
		0:                 "",
		29 * time.Second:  "",
		31 * time.Second:  "the worker of pod default/web hangs in planning",
		-10 * time.Minute: "", // the clock was set back (F14)
	} {
		planning := l.pods[webKey].planningSince
		if planning.Store(0); since != 0 {
			planning.Store(now.Add(-since).UnixNano())
		}
		got := ""
		if err := l.hungWorker(now); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("thinking for %s: %q, want %q", since, got, want)
		}
	}
}
