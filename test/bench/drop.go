package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
)

// spacing separates two samples, so that the end of one does not disturb the next.
const spacing = 400 * time.Millisecond

// measureDrop is measures 1 and 2: a manifest appears, a container runs. The samples of both
// arms alternate, while one agent serves throughout; the cost of that agent to the raw arm is
// recorded.
func (b *bench) measureDrop(ctx context.Context) (err error) {
	type shape struct {
		measure *result.Measure
		volumes bool
	}
	var shapes []shape
	if b.wants(1) {
		shapes = append(shapes, shape{b.measure(1, "manifest dropped → container started",
			"pod network, image present; raw: RunPodSandbox, CreateContainer, StartContainer"), false})
	}
	if b.wants(2) {
		shapes = append(shapes, shape{b.measure(2, "the same with an emptyDir, a configMap, a secret and a projected volume",
			"raw: directories, two tmpfs, their files and four mounts beside that"), true})
	}
	var begin []*result.Measure
	for _, s := range shapes {
		begin = append(begin, s.measure)
	}
	b.noise(ctx, begin...)
	d, err := b.NewDirs("drop")
	if err != nil {
		return err
	}
	a, err := b.nodectl.Serve(d, b.socket)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, a.End(syscall.SIGTERM)) }()
	if err := b.nodectl.Settle(ctx, a); err != nil {
		return err
	}
	rounds := b.count(20, 3)
	for i := range rounds {
		for _, s := range shapes {
			name := fmt.Sprintf("drop%d-%02d", s.measure.ID, i)
			before := lab.CPU(a.PID())
			shape := lab.RawShape{}
			if s.volumes {
				shape.Volumes = filepath.Join(b.Dir, "raw", name)
			}
			if err := b.sampleRaw(ctx, s.measure, "raw", name, shape); err != nil {
				return err
			}
			s.measure.Arm("agent's CPU while raw starts and removes a pod").Add(lab.CPU(a.PID()) - before)
			before = lab.CPU(a.PID())
			if err := b.sampleDrop(ctx, s.measure, d, name, lab.PodShape{Volumes: s.volumes}); err != nil {
				return err
			}
			s.measure.Arm("agent's CPU while it starts and removes a pod").Add(lab.CPU(a.PID()) - before)
			if s.volumes {
				continue
			}
			// Shows what the seccomp filter costs.
			if err := b.sampleRaw(ctx, s.measure, "raw without seccomp", name, lab.RawShape{Unconfined: true}); err != nil {
				return err
			}
		}
		lab.Say("drop: %d/%d", i+1, rounds)
	}
	for _, s := range shapes {
		limit := 1.25
		if s.volumes {
			limit = 1.35
		}
		s.measure.Ratio("nodectl / raw", "nodectl", "raw", limit)
		if !s.volumes {
			s.measure.Ratio("nodectl / raw without seccomp", "nodectl", "raw without seccomp", 0)
		}
	}
	return nil
}

// sampleRaw starts one pod by CRI calls, notes in an arm how long that took, and
// removes it.
func (b *bench) sampleRaw(ctx context.Context, m *result.Measure, arm, name string, shape lab.RawShape) error {
	begin := time.Now()
	p, err := b.StartRaw(ctx, name+"-"+strings.ReplaceAll(arm, " ", "-"), shape)
	if err != nil {
		return err
	}
	if err := b.noteStart(ctx, m, arm, begin, p.Container); err != nil {
		return err
	}
	for i, call := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		m.Arm(arm + ", " + call).Add(p.Calls[i])
	}
	if err := firstError(b.RemoveSandbox(ctx, p.Sandbox), p.RemoveVolumes()); err != nil {
		return err
	}
	return lab.Rest(ctx, m, spacing)
}

// sampleDrop drops one manifest, waits for its container, and takes it away.
func (b *bench) sampleDrop(ctx context.Context, m *result.Measure, d lab.Dirs, name string, shape lab.PodShape) error {
	mark := b.Events.Mark()
	begin, err := b.drop(d, name, shape)
	if err != nil {
		return err
	}
	e, err := b.Events.Await(ctx, mark, "start of "+name, lab.Started(name+"-"+lab.NodeName))
	if err != nil {
		return err
	}
	if err := b.noteStart(ctx, m, "nodectl", begin, e.ContainerId); err != nil {
		return err
	}
	if _, err := d.Remove(name); err != nil {
		return err
	}
	if err := b.AwaitNoPods(ctx); err != nil {
		return err
	}
	return lab.Rest(ctx, m, spacing)
}

// noteStart adds a start to an arm: the time that CRI reports, and for a check the time that
// the container's own program writes.
func (b *bench) noteStart(ctx context.Context, m *result.Measure, arm string, begin time.Time, id string) error {
	at, err := b.AwaitRunning(ctx, id)
	if err != nil {
		return err
	}
	stamp, err := b.Stamped(ctx, id)
	if err != nil {
		return err
	}
	m.Arm(arm).Add(at.Sub(begin))
	b.trace.add(begin, "> %s begins", arm)
	b.trace.add(at, "started")
	m.Arm(arm + ", by its own clock").Add(stamp.Sub(begin))
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// drop puts the manifest of one pod in place, and returns the moment before it
// appeared.
func (b *bench) drop(d lab.Dirs, name string, shape lab.PodShape) (time.Time, error) {
	if err := d.Stage(name, lab.Manifest(name, shape)); err != nil {
		return time.Time{}, err
	}
	return d.Drop(name)
}
