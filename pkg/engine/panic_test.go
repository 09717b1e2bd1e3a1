package engine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// trap is a Volumes, or a Prober, that panics over one pod while it is set.
type trap struct {
	*disk
	name string
	left int // times it still goes off
}

func (t *trap) Ready(want *pod.Spec, instance int) bool {
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
		if log := m.log.String(); strings.Count(log, "panicked; it is tried again") != 2 || strings.Count(log, "stack=") != 1 {
			t.Error("two panics are not told as two, with one stack")
		}
	})
}

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

// A panic in the goroutine of a call is the worker's, not the agent's.
func TestF8_APanicInACallIsTheWorkersOwn(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.alter = func(c *Config) { c.Runtime = &tripwire{Runtime: c.Runtime, left: 1} }
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(time.Second)
		m.src.set()
		m.pass(time.Minute)
		m.want()
		if !strings.Contains(m.log.String(), "Worker of the pod panicked") {
			t.Error("nobody panicked")
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

func TestF7_BeatSaysThatTheLoopTurns(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		ctx, cancel := context.WithCancel(context.Background())
		e := New(m.config(m.rt.Connect()))
		short, done := context.WithTimeout(ctx, time.Second)
		if err := e.Beat(short); err == nil {
			t.Error("an engine that does not run has a pulse")
		}
		done()
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()
		m.pass(time.Second)
		if err := e.Beat(ctx); err != nil {
			t.Errorf("no pulse: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
