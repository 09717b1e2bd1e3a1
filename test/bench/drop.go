package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// spacing lies between two samples, so that one does not hear the other's end.
const spacing = 400 * time.Millisecond

// measureDrop is measures 1 and 2: a manifest appears, a container runs. The
// samples of both arms alternate, while one agent serves throughout; what it
// costs the raw arm to have an agent beside it is recorded.
func (b *bench) measureDrop(ctx context.Context) (err error) {
	type shape struct {
		measure *measure
		dir     bool
	}
	var shapes []shape
	if b.wants(1) {
		shapes = append(shapes, shape{b.report.measure(1, "manifest dropped → container started",
			"pod network, image present; raw: RunPodSandbox, CreateContainer, StartContainer"), false})
	}
	if b.wants(2) {
		shapes = append(shapes, shape{b.report.measure(2, "the same with an emptyDir",
			"raw: mkdir and a mount beside that"), true})
	}
	var begin []*measure
	for _, s := range shapes {
		begin = append(begin, s.measure)
	}
	b.noise(ctx, begin...)
	d, err := b.newDirs("drop")
	if err != nil {
		return err
	}
	a, err := b.serve(d, b.socket)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, a.end(syscall.SIGTERM)) }()
	if err := b.settle(ctx, a); err != nil {
		return err
	}
	rounds := b.count(20, 3)
	for i := range rounds {
		for _, s := range shapes {
			name := fmt.Sprintf("drop%d-%02d", s.measure.ID, i)
			before := cpuOf(a.pid())
			shape := rawShape{}
			if s.dir {
				shape.dir = filepath.Join(b.scratch, "raw", name)
			}
			if err := b.sampleRaw(ctx, s.measure, "raw", name, shape); err != nil {
				return err
			}
			s.measure.arm("agent's CPU while raw starts and removes a pod").add(cpuOf(a.pid()) - before)
			before = cpuOf(a.pid())
			if err := b.sampleDrop(ctx, s.measure, d, name, s.dir); err != nil {
				return err
			}
			s.measure.arm("agent's CPU while it starts and removes a pod").add(cpuOf(a.pid()) - before)
			if s.dir {
				continue
			}
			// What the filter costs, for whoever would leave it out of "raw".
			if err := b.sampleRaw(ctx, s.measure, "raw without seccomp", name, rawShape{unconfined: true}); err != nil {
				return err
			}
		}
		b.say("drop: %d/%d", i+1, rounds)
	}
	for _, s := range shapes {
		limit := 1.25
		if s.dir {
			limit = 1.35
		}
		s.measure.ratio("nodectl / raw", "nodectl", "raw", limit)
		if !s.dir {
			s.measure.ratio("nodectl / raw without seccomp", "nodectl", "raw without seccomp", 0)
		}
	}
	return nil
}

// sampleRaw starts one pod by CRI calls, notes in an arm how long that took, and
// removes it.
func (b *bench) sampleRaw(ctx context.Context, m *measure, arm, name string, shape rawShape) error {
	begin := time.Now()
	p, err := b.startRaw(ctx, name+"-"+strings.ReplaceAll(arm, " ", "-"), shape)
	if err != nil {
		return err
	}
	if err := b.noteStart(ctx, m, arm, begin, p.container); err != nil {
		return err
	}
	for i, call := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		m.arm(arm + ", " + call).add(p.calls[i])
	}
	if err := b.removeSandbox(ctx, p.sandbox); err != nil {
		return err
	}
	return m.rest(ctx, spacing)
}

// sampleDrop drops one manifest, waits for its container, and takes it away.
func (b *bench) sampleDrop(ctx context.Context, m *measure, d agentDirs, name string, emptyDir bool) error {
	mark := b.events.mark()
	begin, err := d.drop(name, emptyDir)
	if err != nil {
		return err
	}
	e, err := b.events.await(ctx, mark, "start of "+name, started(name+"-"+nodeName))
	if err != nil {
		return err
	}
	if err := b.noteStart(ctx, m, "nodectl", begin, e.ContainerId); err != nil {
		return err
	}
	if err := d.remove(name); err != nil {
		return err
	}
	if err := b.awaitNoPods(ctx); err != nil {
		return err
	}
	return m.rest(ctx, spacing)
}

// noteStart adds a start to an arm: as CRI tells it, and as the container's own
// first words do, for a check.
func (b *bench) noteStart(ctx context.Context, m *measure, arm string, begin time.Time, id string) error {
	at, err := b.awaitRunning(ctx, id)
	if err != nil {
		return err
	}
	stamp, err := b.stamped(ctx, id)
	if err != nil {
		return err
	}
	m.arm(arm).add(at.Sub(begin))
	b.trace.add(begin, "> %s begins", arm)
	b.trace.add(at, "started")
	m.arm(arm + ", by its own clock").add(stamp.Sub(begin))
	return nil
}

// awaitRunning returns when the container started. The event comes a moment
// before the runtime shows the container running.
func (b *bench) awaitRunning(ctx context.Context, id string) (time.Time, error) {
	for deadline := time.Now().Add(5 * time.Second); ; {
		r, err := b.node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return time.Time{}, err
		}
		if r.Status.State != cri.ContainerState_CONTAINER_CREATED || time.Now().After(deadline) {
			return b.startedAt(ctx, id)
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return time.Time{}, err
		}
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
