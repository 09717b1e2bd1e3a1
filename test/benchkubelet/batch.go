package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

const batchPods = 50

// rawAtOnce is how many pods the raw arm starts at once: with more, the total time is the
// same and single pods take longer (M2).
const rawAtOnce = 2

// measureBatch is M2.
func (b *bench) measureBatch(ctx context.Context) error {
	m := b.Begin(ctx, 2, fmt.Sprintf("%d at once", batchPods),
		fmt.Sprintf("%d manifests (S0) renamed one right after the other → started_at, since the first rename; raw: %d at once", batchPods, rawAtOnce))
	arms := append(program.Each(b.latencyAgents, func(a *arm.Agent, round int) error {
		return b.Turn(ctx, a, fmt.Sprintf("batch-%d", round), b.Node.Endpoint, nil, func(r *arm.Turn) error { return b.agentBatch(ctx, m, r) })
	}), func(round int) error { return b.rawBatch(ctx, m, round) })
	return b.Take(ctx, m, b.Count(7, 1), arms...)
}

func batchName(i int) string { return fmt.Sprintf("batch-%02d", i) }

func (b *bench) agentBatch(ctx context.Context, m *report.Measure, r *arm.Turn) error {
	if err := arm.Pause(ctx, arm.Settled); err != nil {
		return err
	}
	begin, err := b.dropMany(ctx, r, 0, batchPods)
	if err != nil {
		return err
	}
	list, err := b.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	if len(list.Containers) != batchPods {
		return fmt.Errorf("%d containers, want %d", len(list.Containers), batchPods)
	}
	var took []time.Duration
	for _, c := range list.Containers {
		at, err := b.AwaitRunning(ctx, c.Id)
		if err != nil {
			return err
		}
		took = append(took, at.Sub(begin))
	}
	noteBatch(m, r.Name, took)
	return nil
}

// dropMany drops the pods with the numbers from first to end, and returns when all of them
// have started. All are staged before the first appears.
func (b *bench) dropMany(ctx context.Context, r *arm.Turn, first, end int) (time.Time, error) {
	waiting := map[string]bool{}
	for i := first; i < end; i++ {
		waiting[arm.FullName(batchName(i))] = true
		if err := r.Stage(batchName(i), arm.Manifest(batchName(i), s0)); err != nil {
			return time.Time{}, err
		}
	}
	mark, begin := b.Events.Mark(), time.Now()
	for i := first; i < end; i++ {
		if _, err := r.Drop(batchName(i)); err != nil {
			return begin, err
		}
	}
	if len(waiting) == 0 {
		return begin, nil
	}
	_, err := b.Events.AwaitFor(ctx, 2*time.Minute, mark, "start of all pods", func(e arm.Seen) bool {
		if name := e.GetPodSandboxStatus().GetMetadata().GetName(); arm.Started(name)(e) {
			delete(waiting, name)
		}
		return len(waiting) == 0
	})
	if err != nil {
		return begin, fmt.Errorf("%d pods did not start: %w\n%s", len(waiting), err, r.Tail())
	}
	return begin, nil
}

func (b *bench) rawBatch(ctx context.Context, m *report.Measure, round int) error {
	took, err := b.StartRawBatch(ctx, fmt.Sprintf("batch-raw-%d", round), batchPods, rawAtOnce, arm.RawShape{HostNetwork: true})
	if err != nil {
		return err
	}
	noteBatch(m, "raw", took)
	return b.Empty()
}

func noteBatch(m *report.Measure, arm string, took []time.Duration) {
	slices.Sort(took)
	var all []float64
	for _, t := range took {
		m.Arm(arm + ", every pod").Add(t)
		all = append(all, float64(t))
	}
	m.Arm(arm + ", first").Add(took[0])
	m.Arm(arm + ", p50").Add(time.Duration(report.Quantile(all, 0.5)))
	m.Arm(arm + ", last").Add(took[len(took)-1])
}
