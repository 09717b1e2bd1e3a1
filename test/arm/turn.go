package arm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/report"
)

// A Turn is an agent in its place, during its turn.
type Turn struct {
	*Agent
	*Process // nil while it does not run
	Place
}

// Settled is how long a ready agent is left alone before its first sample.
const Settled = 2 * time.Second

// Turn gives the node to an agent: the agent starts in a place of its own, do runs, and the
// agent is ended; then its pods are removed by CRI with all that is left of it. before writes
// manifests that the agent finds at its start; it may be nil.
func (l *Lab) Turn(ctx context.Context, a *Agent, name, endpoint string, before, do func(*Turn) error) (err error) {
	p, err := l.NewPlace(filepath.Join("turn", name))
	if err != nil {
		return err
	}
	p.Endpoint = endpoint
	if a.kubelet { // its certificate outlives the turn
		p.Dir = filepath.Join(l.Dir, "kubelet")
		if err := os.MkdirAll(p.Dir, 0o700); err != nil {
			return err
		}
	}
	t := &Turn{Agent: a, Place: p}
	defer func() { err = errors.Join(err, l.Empty()) }()
	if before != nil {
		if err := before(t); err != nil {
			return err
		}
	}
	if err := t.Begin(); err != nil {
		return err
	}
	defer func() {
		if e := t.Finish(syscall.SIGTERM); e != nil && !errors.Is(err, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	if err := a.Ready(ctx, t.Process); err != nil {
		return err
	}
	return do(t)
}

// Begin starts the agent, for the first time or again.
func (t *Turn) Begin(args ...string) (err error) {
	t.Process, err = t.Start(t.Place, args...)
	return err
}

// Finish ends the agent if it runs.
func (t *Turn) Finish(s syscall.Signal) error {
	p := t.Process
	if t.Process = nil; p == nil {
		return nil
	}
	err := p.End(s)
	if t.kubelet && !errors.Is(err, errStays) {
		return nil // its exit code varies
	}
	return err
}

// Restart ends the agent, starts it again on the socket of an endpoint, and returns when it has
// reported n pods. It must not touch any of them. The noise between goes to m.
func (l *Lab) Restart(ctx context.Context, m *report.Measure, t *Turn, s syscall.Signal, endpoint string, n int) error {
	before, err := l.Everything(ctx)
	if err != nil {
		return err
	}
	if err := t.Finish(s); err != nil {
		return err
	}
	if err := Rest(ctx, m, time.Second); err != nil {
		return err
	}
	t.Endpoint = endpoint
	if err := t.Begin(); err != nil {
		return err
	}
	r, err := t.Reported(ctx, t.Process, t.Place, n)
	if err != nil {
		return err
	}
	m.Arm(t.Name).Add(r.At.Sub(t.Exec))
	m.Arm(t.Name + ", its CPU until then").Add(CPU(t.PID()))
	m.Arm(t.Name + ", pods that were said not to be Ready").Value(float64(r.Flips))
	if r.Asked > 0 {
		m.Arm("get pods -o json, right after").Add(r.Asked)
	}
	if err := Rest(ctx, m, Settled); err != nil {
		return err
	}
	after, err := l.Everything(ctx)
	if err != nil {
		return err
	}
	if !maps.Equal(before, after) {
		return fmt.Errorf("a restart changed containers: there were %d, there are %d", len(before), len(after))
	}
	return nil
}

// Empty removes every pod, and the remains of a turn.
func (l *Lab) Empty() error { return Empty(l.Node, l.Dir, l.Clear) }
