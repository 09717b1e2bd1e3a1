package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/report"
)

// single measures pods one at a time.
func (b *bench) single(ctx context.Context) error {
	m := b.Bench.Begin(ctx, singleID, "one pod", "the API server is asked to create a bound pod → a watch shows it Running; the one before it is gone")
	return b.take(ctx, m, b.rounds, func(t *stage.Turn, round int) error {
		for i := range b.perRound {
			prefix := fmt.Sprintf("single-%d-%d", round, i)
			took, err := b.start(ctx, t, prefix, 1)
			if err != nil {
				return err
			}
			m.Arm(t.Name).Add(took[0])
			if err := b.remove(ctx, prefix+"-0"); err != nil {
				return err
			}
			if err := arm.Rest(ctx, m, 300*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
}

// batch measures many pods at once.
func (b *bench) batch(ctx context.Context) error {
	for _, n := range b.batches {
		m := b.Bench.Begin(ctx, batchID+n, fmt.Sprintf("%d pods at once", n),
			fmt.Sprintf("%d bound pods created one right after the other → a watch has shown the last of them Running, since the moment before the first was created", n))
		if err := b.take(ctx, m, b.batchRounds, func(t *stage.Turn, round int) error {
			return b.many(ctx, m, t, n)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) many(ctx context.Context, m *report.Measure, t *stage.Turn, n int) error {
	// CPU time used beside the agent.
	others := map[string]func() time.Duration{
		", the machine's CPU": arm.Worked,
		", control plane's CPU": func() time.Duration {
			return arm.Ticks(b.Cluster.APIServer.PID()) + arm.Ticks(b.Cluster.Etcd.Members[0].PID())
		},
	}
	before := map[string]time.Duration{}
	for who, used := range others {
		before[who] = used()
	}
	took, err := b.start(ctx, t, "batch", n)
	if err != nil {
		return err
	}
	for _, who := range slices.Sorted(maps.Keys(others)) {
		m.Arm(t.Name + who).Add(others[who]() - before[who])
	}
	slices.Sort(took)
	m.Arm(t.Name + ", first").Add(took[0])
	m.Arm(t.Name + ", p50").Add(took[len(took)/2])
	m.Arm(t.Name + ", last").Add(took[len(took)-1])
	m.Arm(t.Name + ", its CPU until then").Add(arm.CPU(t.PID()))
	return nil
}

// windows is the number of intervals of the idle time.
const windows = 6

// fleet measures the cost of an idle agent.
func (b *bench) fleet(ctx context.Context) error {
	n := b.batches[len(b.batches)-1]
	cpu := b.Bench.Begin(ctx, idleID, fmt.Sprintf("idle CPU a minute at %d pods", n),
		fmt.Sprintf("CPU time of the agent's threads in %d windows of %s, one after the other, %s after the last pod was Running", windows, b.idle/windows, b.settle))
	memory := b.Bench.Begin(ctx, memoryID, fmt.Sprintf("memory at %d pods", n), "Pss, RssAnon and VmRSS of the agent at the end of each of these windows")
	return b.take(ctx, cpu, 1, func(t *stage.Turn, _ int) error {
		if _, err := b.start(ctx, t, "fleet", n); err != nil {
			return err
		}
		if err := arm.Pause(ctx, b.settle); err != nil {
			return err
		}
		for range windows {
			w, err := b.Bench.Window(ctx, t.PID(), nil, b.idle/windows, n)
			if err != nil {
				return err
			}
			cpu.Arm(t.Name).Add(w.AgentExact)
			cpu.Arm(t.Name + ", containerd beside it").Add(w.RuntimeCPU)
			memory.Arm(t.Name + ", Pss").Value(float64(arm.Pss(t.PID())) / report.MB)
			memory.Arm(t.Name + ", RssAnon").Value(float64(w.Anon) / report.MB)
			memory.Arm(t.Name + ", VmRSS").Value(float64(w.RSS) / report.MB)
		}
		return nil
	})
}

// restPods is the number of pods of the measure of disk writes.
const restPods = 50

// writes measures the bytes that an idle agent and its containerd write to the disk.
func (b *bench) writes(ctx context.Context) error {
	m := b.Bench.Begin(ctx, writesID, fmt.Sprintf("disk writes at rest, %d pods", restPods),
		fmt.Sprintf("write_bytes of /proc/PID/io in one window of %s, %s after the last pod was Running", b.rest, b.settle))
	return b.take(ctx, m, 1, func(t *stage.Turn, _ int) error {
		if _, err := b.start(ctx, t, "rest", restPods); err != nil {
			return err
		}
		if err := arm.Pause(ctx, b.settle); err != nil {
			return err
		}
		w, err := b.Bench.Window(ctx, t.PID(), nil, b.rest, restPods)
		if err != nil {
			return err
		}
		m.Arm(t.Name + ", written").Value(float64(w.Written) / 1e3)
		m.Arm(t.Name + ", containerd's").Value(float64(w.RuntimeWritten) / 1e3)
		return nil
	})
}
