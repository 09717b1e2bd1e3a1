// Command benchcluster measures the real kubelet and nodectl as nodes of one control plane,
// in one run, one at a time and in turn. It measures how long a pod takes from its creation
// to Running as a watch on the API server sees it, and the cost of an idle agent with 110
// pods. docs/benchmarks.md has the method.
//
// Package stage starts control plane, containerd and agents.
//
// All figures of a table are from one run. No other run is averaged in, no best run is
// picked, no sample is left out.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// bench has the common state of all parts.
type bench struct {
	program.Bench
	*stage.Stage
	pods *stage.Pods

	one              string // the only arm
	rounds, perRound int    // of single pods
	batches          []int  // pods at once; the last is the fleet for idle measures
	batchRounds      int
	settle, idle     time.Duration
	rest             time.Duration
}

func main() { program.Main(parse, run) }

func parse(args []string) (*bench, error) {
	b := &bench{}
	f := b.Flags("benchcluster", "bench-cluster.json")
	b.KubeletFlags(f)
	f.IntVar(&b.rounds, "rounds", 5, "turns of each agent with single pods")
	f.IntVar(&b.perRound, "per-round", 5, "single pods in each")
	batches := f.String("batches", "50,110", "how many pods are created at once; of the last the idle agent is measured")
	f.IntVar(&b.batchRounds, "batch-rounds", 5, "turns of each agent with each of them")
	f.DurationVar(&b.settle, "settle", 60*time.Second, "how long all pods run before an idle agent is looked at")
	f.DurationVar(&b.idle, "idle", 60*time.Second, "how long it is looked at, in six windows")
	f.DurationVar(&b.rest, "rest", 10*time.Minute, "how long its disk writes are counted")
	f.StringVar(&b.one, "arm", "", "kubelet or nodectl alone, to find out where its time goes: no ratios then")
	if err := b.Parse(f, args, program.Step{Of: "single", Run: b.single}, program.Step{Of: "batch", Run: b.batch}, program.Step{Of: "idle", Run: b.fleet}, program.Step{Of: "writes", Run: b.writes}); err != nil {
		return b, err
	}
	if b.Quick {
		b.rounds, b.perRound, b.batchRounds, b.settle, b.idle, b.rest = 1, 3, 1, 5*time.Second, 6*time.Second, time.Minute
		*batches = "10"
	}
	for s := range strings.SplitSeq(*batches, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > stage.MaxPods {
			return b, fmt.Errorf("--batches: %q is no number of pods", s)
		}
		b.batches = append(b.batches, n)
	}
	return b, nil
}

func run(ctx context.Context, b *bench) (fine bool, err error) {
	return b.Run(func() error { return b.measureAll(ctx) }, addFigures, text, func(r *report.Report) error { return section.Write(r, text(r)) })
}

// The measures. A batch of n pods is batchID + n.
const (
	singleID = 1
	idleID   = 2
	memoryID = 3
	writesID = 4
	batchID  = 1000
)

// measureAll starts a stage, takes the measures, and closes the stage.
func (b *bench) measureAll(ctx context.Context) (err error) {
	arm.Say("starting a control plane and a containerd")
	if b.Stage, err = stage.Open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Stage.Close()) }()
	if err := b.Open(ctx, b.Stage.Lab, ""); err != nil {
		return err
	}
	for _, a := range b.Agents {
		if err := b.Configure(a); err != nil {
			return err
		}
		if b.KeepLogs != "" {
			a.LogLevel = "debug"
		}
	}
	b.Agents = slices.DeleteFunc(b.Agents, func(a *arm.Agent) bool { return b.one != "" && a.Name != b.one })
	if len(b.Agents) == 0 {
		return fmt.Errorf("--arm: %q is no agent", b.one)
	}
	if b.pods, err = b.Watch(ctx); err != nil {
		return err
	}
	defer b.pods.Close()
	// Each agent starts once, unmeasured, with one pod, so that programs and image are in memory.
	if err := b.take(ctx, &report.Measure{Name: "warm"}, 1, func(t *stage.Turn, _ int) error {
		_, err := b.start(ctx, t, "warm", 1)
		return err
	}); err != nil {
		return err
	}
	return b.Measure(ctx)
}

// settled is how long a ready agent is left alone before its first sample.
const settled = 3 * time.Second

// take gives each agent its turn in every round.
func (b *bench) take(ctx context.Context, m *report.Measure, rounds int, do func(t *stage.Turn, round int) error) error {
	return b.Take(ctx, m, rounds, program.Each(b.Agents, func(a *arm.Agent, round int) (err error) {
		t, err := b.Stage.Begin(ctx, a, a.Name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Finish(), b.awaitNone(context.WithoutCancel(ctx))) }()
		if err := arm.Pause(ctx, settled); err != nil {
			return err
		}
		return do(t, round)
	})...)
}
