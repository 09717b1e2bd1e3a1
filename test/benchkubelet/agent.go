package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
)

// An agent runs the pods of manifests.
type agent interface {
	// name is that of its arm.
	name() string
	// start starts it; the caller ends it.
	start(d lab.Dirs, endpoint string) (*lab.Process, error)
	// ready returns when it has found the runtime and waits for manifests.
	ready(ctx context.Context, p *lab.Process) error
	// reported returns when the restarted agent has reported n pods, all of them Running.
	// flips is how many of them it reported as not Ready meanwhile.
	reported(ctx context.Context, p *lab.Process, d lab.Dirs, n int) (at time.Time, flips int, err error)
	// logsDir is where logs of pods go.
	logsDir(d lab.Dirs) string
}

// running is an agent during its turn.
type running struct {
	agent
	*lab.Process
	dirs lab.Dirs
}

// drop puts a pod's manifest in place and returns the moment before.
func (r *running) drop(name string, s lab.PodShape) (time.Time, error) {
	if err := r.dirs.Stage(name, lab.Manifest(name, s)); err != nil {
		return time.Time{}, err
	}
	return r.dirs.Drop(name)
}

// fullName is the agents' name of a manifest's pod on this node.
func fullName(pod string) string { return pod + "-" + lab.NodeName }

// settled is how long a ready agent is left alone before its first sample.
const settled = 2 * time.Second

// turn gives the node to an agent: the agent starts on its own directories, do runs, and the
// agent is ended; then its pods are removed by CRI with all that is left of it. before writes
// manifests that the agent finds at its start.
func (b *bench) turn(ctx context.Context, a agent, name, endpoint string, before func(*running) error, do func(*running) error) (err error) {
	d, err := b.NewDirs(filepath.Join("turn", name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.empty()) }()
	r := &running{agent: a, dirs: d}
	if before != nil {
		if err := before(r); err != nil {
			return err
		}
	}
	if err := r.begin(endpoint); err != nil {
		return err
	}
	defer func() {
		if e := r.end(syscall.SIGTERM); e != nil && !errors.Is(err, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	if err := a.ready(ctx, r.Process); err != nil {
		return err
	}
	return do(r)
}

// begin starts the agent, for the first time or again.
func (r *running) begin(endpoint string) error {
	p, err := r.start(r.dirs, endpoint)
	r.Process = p
	return err
}

// end ends the agent if it runs.
func (r *running) end(s syscall.Signal) error {
	p := r.Process
	if p == nil {
		return nil
	}
	r.Process = nil
	return p.End(s)
}

// empty removes every pod, and what a turn left.
func (b *bench) empty() error { return arm.Empty(b.Node, b.Dir, b.Clear) }

// take gives every arm its turn in each round. The first round begins with the first arm, the
// second with the second, and so on, so that no arm always runs after the same other.
func (b *bench) take(ctx context.Context, m *result.Measure, rounds int, arms ...func(round int) error) error {
	for i := range rounds {
		for k := range arms {
			if err := arms[(i+k)%len(arms)](i); err != nil {
				return err
			}
			if err := lab.Rest(ctx, m, 500*time.Millisecond); err != nil {
				return err
			}
		}
		lab.Say("%s: round %d/%d", m.Name, i+1, rounds)
	}
	return nil
}

// each makes an arm of every agent.
func each(agents []agent, turn func(a agent, round int) error) []func(int) error {
	var arms []func(int) error
	for _, a := range agents {
		arms = append(arms, func(round int) error {
			if err := turn(a, round); err != nil {
				return fmt.Errorf("%s: %w", a.name(), err)
			}
			return nil
		})
	}
	return slices.Clip(arms)
}
