package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/report"
)

// measureDrop is measures 1 and 2: a manifest appears, a container runs. The samples of both
// arms alternate, while one agent serves throughout; the cost of that agent to the raw arm is
// recorded.
func (b *bench) measureDrop(ctx context.Context) error {
	bare, volumes := &report.Measure{}, &report.Measure{}
	if b.Wants("1") {
		bare = b.Begin(ctx, 1, "manifest dropped → container started",
			"pod network, image present; raw: RunPodSandbox, CreateContainer, StartContainer")
	}
	if b.Wants("2") {
		volumes = b.Begin(ctx, 2, "the same with an emptyDir, a configMap, a secret and a projected volume",
			"raw: directories, two tmpfs, their files and four mounts beside that")
	}
	rounds := b.Count(20, 3)
	err := b.serve(ctx, "drop", b.socket, func(t *arm.Turn) error {
		for i := range rounds {
			for _, m := range []*report.Measure{bare, volumes} {
				if m.ID == 0 {
					continue
				}
				if err := b.sampleBoth(ctx, m, t, fmt.Sprintf("drop%d-%02d", m.ID, i), m == volumes); err != nil {
					return err
				}
			}
			arm.Say("drop: %d/%d", i+1, rounds)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if bare.ID != 0 {
		bare.Ratio("nodectl / raw", "nodectl", "raw", 1.25)
		bare.Ratio("nodectl / raw without seccomp", "nodectl", "raw without seccomp", 0)
	}
	if volumes.ID != 0 {
		volumes.Ratio("nodectl / raw", "nodectl", "raw", 1.35)
	}
	return nil
}

// sampleBoth takes a sample of each arm.
func (b *bench) sampleBoth(ctx context.Context, m *report.Measure, t *arm.Turn, name string, volumes bool) error {
	before := arm.CPU(t.PID())
	shape := arm.RawShape{}
	if volumes {
		shape.Volumes = filepath.Join(b.Dir, "raw", name)
	}
	if err := b.sampleRaw(ctx, m, "raw", name, shape); err != nil {
		return err
	}
	m.Arm("agent's CPU while raw starts and removes a pod").Add(arm.CPU(t.PID()) - before)
	before = arm.CPU(t.PID())
	if err := b.sampleDrop(ctx, m, t, name, arm.PodShape{Volumes: volumes}); err != nil {
		return err
	}
	m.Arm("agent's CPU while it starts and removes a pod").Add(arm.CPU(t.PID()) - before)
	if volumes {
		return nil
	}
	// Shows the cost of the seccomp filter.
	return b.sampleRaw(ctx, m, "raw without seccomp", name, arm.RawShape{Unconfined: true})
}

// sampleRaw starts one pod by CRI calls, notes in an arm how long that took, and
// removes it.
func (b *bench) sampleRaw(ctx context.Context, m *report.Measure, as, name string, shape arm.RawShape) error {
	begin := time.Now()
	p, err := b.StartRaw(ctx, name+"-"+strings.ReplaceAll(as, " ", "-"), shape)
	if err != nil {
		return err
	}
	if err := b.noteStart(ctx, m, as, begin, p.Container); err != nil {
		return err
	}
	for i, call := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		m.Arm(as + ", " + call).Add(p.Calls[i])
	}
	if err := errors.Join(b.RemoveSandbox(ctx, p.Sandbox), p.RemoveVolumes()); err != nil {
		return err
	}
	return arm.Rest(ctx, m, arm.Spacing)
}

// sampleDrop drops one manifest, waits for its container, and takes it away.
func (b *bench) sampleDrop(ctx context.Context, m *report.Measure, t *arm.Turn, name string, shape arm.PodShape) error {
	begin, e, err := b.Start(ctx, t.Place, name, shape)
	if err != nil {
		return err
	}
	if err := b.noteStart(ctx, m, "nodectl", begin, e.ContainerId); err != nil {
		return err
	}
	if err := b.removed(ctx, t, name); err != nil {
		return err
	}
	return arm.Rest(ctx, m, arm.Spacing)
}

// removed takes the manifest of the only pod away, and returns when the pod is gone.
func (b *bench) removed(ctx context.Context, t *arm.Turn, name string) error {
	if _, err := t.Remove(name); err != nil {
		return err
	}
	return b.AwaitNoPods(ctx)
}

// noteStart adds a start to an arm, and to the trace.
func (b *bench) noteStart(ctx context.Context, m *report.Measure, as string, begin time.Time, id string) error {
	at, err := b.NoteStart(ctx, m, as, begin, id)
	b.trace.add(begin, "> %s begins", as)
	b.trace.add(at, "started")
	return err
}
