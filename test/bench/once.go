package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/report"
)

const oncePods = 20

// measureOnce is measure 3: runonce of many pods, from the start of the program to its exit,
// against raw calls at each of three concurrencies, of which the best counts.
func (b *bench) measureOnce(ctx context.Context) error {
	m := b.Begin(ctx, 3, fmt.Sprintf("runonce of %d pods", oncePods),
		"exec of nodectl → exit 0, a fresh root directory each time; raw: first call → last StartContainer returned, at its best concurrency of 1, 2, 4")
	rounds := b.Count(7, 1)
	atOnce := []int{1, 2, 4}
	for i := range rounds {
		for k := range 2 { // twice a round: one pod is over soon, and its median is a limit
			if err := b.sampleRaw(ctx, m, "raw", fmt.Sprintf("once-single%d-%d", k, i), arm.RawShape{}); err != nil {
				return err
			}
		}
		for _, n := range atOnce {
			took, err := b.StartRawBatch(ctx, fmt.Sprintf("once%d-%d", n, i), oncePods, n, arm.RawShape{})
			if err != nil {
				return err
			}
			m.Arm(fmt.Sprintf("raw, %d at once", n)).Add(took[oncePods-1])
			m.Arm(fmt.Sprintf("raw, %d at once, first pod", n)).Add(took[0])
			if err := b.emptied(ctx, m); err != nil {
				return err
			}
		}
		if err := b.sampleOnce(ctx, m, i); err != nil {
			return err
		}
		arm.Say("runonce: %d/%d", i+1, rounds)
	}
	best := "raw, 1 at once"
	for _, n := range atOnce[1:] {
		if name := fmt.Sprintf("raw, %d at once", n); m.Arm(name).Median < m.Arm(best).Median {
			best = name
		}
	}
	m.Ratio("nodectl / "+best, "nodectl", best, 1.2)
	m.Ratio("nodectl's first pod / one raw start", "nodectl, first pod", "raw", 2)
	return nil
}

// emptied removes all pods, with the cgroups of the nodectl that started them, which another
// one does not use, and lets the machine come to rest.
func (b *bench) emptied(ctx context.Context, m *report.Measure) error {
	if err := b.Empty(); err != nil {
		return err
	}
	return arm.Rest(ctx, m, time.Second)
}

// sampleOnce runs runonce once, on its own root directory.
func (b *bench) sampleOnce(ctx context.Context, m *report.Measure, round int) error {
	p, err := b.NewPlace(fmt.Sprintf("once-%d", round))
	if err != nil {
		return err
	}
	for i := range oncePods {
		if _, err := p.DropPod(fmt.Sprintf("once-%d-%02d", round, i), arm.PodShape{}); err != nil {
			return err
		}
	}
	p.Endpoint = b.socket
	args := p.On("runonce", "-f", p.Manifests, "--timeout", "2m", "-o", "json")
	begin := time.Now()
	out, cpu, err := b.Nodectl.Run(ctx, args...)
	took := time.Since(begin)
	b.trace.add(begin, "> runonce begins")
	b.trace.add(begin.Add(took), "runonce ended")
	if err != nil {
		return err
	}
	var said struct {
		Summary struct {
			OK   bool
			Pods int
		}
	}
	if err := json.Unmarshal(out, &said); err != nil {
		return fmt.Errorf("runonce -o json: %w", err)
	}
	if !said.Summary.OK || said.Summary.Pods != oncePods {
		return fmt.Errorf("runonce reports %+v, want %d pods", said.Summary, oncePods)
	}
	first, err := b.firstStart(ctx, oncePods)
	if err != nil {
		return err
	}
	m.Arm("nodectl").Add(took)
	m.Arm("nodectl's own CPU").Add(cpu)
	m.Arm("nodectl, first pod").Add(first.Sub(begin))
	return b.emptied(ctx, m)
}

// firstStart returns when the first of n containers started; all must run.
func (b *bench) firstStart(ctx context.Context, n int) (time.Time, error) {
	var first time.Time
	r, err := b.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return first, err
	}
	if len(r.Containers) != n {
		return first, fmt.Errorf("%d containers, want %d", len(r.Containers), n)
	}
	for _, c := range r.Containers {
		at, err := b.AwaitRunning(ctx, c.Id)
		if err != nil {
			return first, err
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first, nil
}
