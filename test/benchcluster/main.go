// Command benchcluster measures the real kubelet and nodectl as nodes of one control plane,
// in one run, one at a time and in turn. It measures how long a pod takes from its creation
// to Running as a watch on the API server sees it, and the cost of an idle agent with 110
// pods. docs/benchmarks.md has the method.
//
// Package stage starts control plane, containerd and agents; test/bench's packages lab and
// result look at processes and keep samples.
//
// The one rule: all figures of a table are from one run. No other run is averaged in, no best
// run is picked, no sample is left out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
)

// options are the command's flags.
type options struct {
	only      []string
	quick     bool
	check     bool
	docs      bool
	from      string
	out       string
	binary    string
	kubelet   string
	keepLogs  string
	arm       string
	waitQuiet time.Duration

	rounds, perRound int   // of single pods
	batches          []int // pods at once; the last is the fleet for idle measures
	batchRounds      int
	settle, idle     time.Duration
}

func main() { program.Main(parse, run) }

func parse(args []string) (options, error) {
	var o options
	var only, batches string
	f := flag.NewFlagSet("benchcluster", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "3 single pods, 10 at once, short windows: does it work, not how fast it is")
	f.StringVar(&only, "only", "", "the parts to measure, of single,batch,idle (default all)")
	f.IntVar(&o.rounds, "rounds", 5, "turns of each agent with single pods")
	f.IntVar(&o.perRound, "per-round", 5, "single pods in each")
	f.StringVar(&batches, "batches", "50,110", "how many pods are created at once; of the last the idle agent is measured")
	f.IntVar(&o.batchRounds, "batch-rounds", 5, "turns of each agent with each of them")
	f.DurationVar(&o.settle, "settle", 60*time.Second, "how long all pods run before an idle agent is looked at")
	f.DurationVar(&o.idle, "idle", 60*time.Second, "how long it is looked at, in six windows")
	f.StringVar(&o.arm, "arm", "", "kubelet or nodectl alone, to find out where its time goes: no ratios then")
	f.BoolVar(&o.check, "check", false, "exit 1 when a limit is missed")
	f.BoolVar(&o.docs, "docs", false, "write the section of docs/benchmarks.md; needs a whole run")
	f.StringVar(&o.from, "from", "", "a result to print, and to publish with --docs, instead of measuring")
	f.StringVar(&o.out, "out", filepath.Join(node.Repo(), "bin/bench-cluster.json"), "where the result goes, with every sample")
	f.StringVar(&o.binary, "binary", "", "the nodectl to measure (default: built from this tree)")
	f.StringVar(&o.kubelet, "kubelet", filepath.Join(node.Repo(), "bin/kubelet/kubelet"), "the kubelet to measure")
	f.StringVar(&o.keepLogs, "keep-logs", "", "directory for the agents' logs; nodectl's with all it does")
	f.DurationVar(&o.waitQuiet, "wait-quiet", 20*time.Second, "how long to wait for a quiet machine before starting all the same")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	if o.quick {
		o.rounds, o.perRound, o.batchRounds, o.settle, o.idle, o.waitQuiet = 1, 3, 1, 5*time.Second, 6*time.Second, 0
		batches = "10"
	}
	for s := range strings.SplitSeq(only, ",") {
		if s != "" && !slices.Contains(parts, s) {
			return o, fmt.Errorf("--only: %q is no part; there are %v", s, parts)
		}
		if s != "" {
			o.only = append(o.only, s)
		}
	}
	for s := range strings.SplitSeq(batches, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > stage.MaxPods {
			return o, fmt.Errorf("--batches: %q is no number of pods", s)
		}
		o.batches = append(o.batches, n)
	}
	return o, nil
}

var parts = []string{"single", "batch", "idle"}

func (o options) wants(part string) bool { return len(o.only) == 0 || slices.Contains(o.only, part) }

// run measures and prints; with --check, a missed limit makes fine false.
func run(ctx context.Context, o options) (fine bool, err error) {
	var report *result.Report
	if o.from != "" {
		report, err = result.Read(o.from)
	} else {
		report, err = measureAll(ctx, o)
	}
	if report == nil {
		return false, err
	}
	addFigures(report)
	fmt.Print(text(report))
	if err == nil && o.from == "" {
		err = report.Write(o.out)
	}
	if err == nil && o.docs {
		err = section.Write(report, text(report))
	}
	return err == nil && (!o.check || report.Missed() == 0), err
}

// bench is what all parts share.
type bench struct {
	options
	*stage.Stage
	agents []*stage.Agent
	report *result.Report
	turns  int
	pods   *pods
}

// The measures. A batch of n pods is batchID + n.
const (
	singleID = 1
	idleID   = 2
	memoryID = 3
	batchID  = 1000
)

// measureAll starts a stage, takes the measures, and closes the stage. It returns the
// measures taken before an error together with it.
func measureAll(ctx context.Context, o options) (_ *result.Report, err error) {
	b := &bench{options: o}
	lab.Say("starting a control plane and a containerd")
	if b.Stage, err = stage.Open(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Stage.Close()) }()
	k, err := stage.Kubelet(o.kubelet)
	if err != nil {
		return nil, err
	}
	n, err := b.Nodectl(ctx, o.binary)
	if err != nil {
		return nil, err
	}
	n.Debug = o.keepLogs != ""
	if o.keepLogs != "" {
		if err := os.MkdirAll(o.keepLogs, 0o755); err != nil {
			return nil, err
		}
	}
	b.agents = slices.DeleteFunc([]*stage.Agent{k, n}, func(a *stage.Agent) bool { return o.arm != "" && a.Name != o.arm })
	if len(b.agents) == 0 {
		return nil, fmt.Errorf("--arm: %q is no agent", o.arm)
	}
	machine, err := b.Machine(ctx, n.Binary)
	if err != nil {
		return nil, err
	}
	if machine["kubelet"], err = lab.Describe(k.Binary); err != nil {
		return nil, err
	}
	machine["kubelet version"] = k.Version()
	b.report = &result.Report{Time: time.Now(), Quick: o.quick, Machine: machine}
	if b.pods, err = b.watch(ctx); err != nil {
		return nil, err
	}
	defer b.pods.close()
	for _, step := range []struct {
		part string
		run  func(context.Context) error
	}{{"", b.warm}, {"single", b.single}, {"batch", b.batch}, {"idle", b.fleet}} {
		begin := time.Now()
		if step.part != "" && !o.wants(step.part) {
			continue
		}
		if err := step.run(ctx); err != nil {
			return b.report, fmt.Errorf("%s: %w", step.part, err)
		}
		lab.Say("%s took %s", step.part, time.Since(begin).Round(time.Second))
	}
	return b.report, nil
}

// begin begins a measure.
func (b *bench) begin(ctx context.Context, id int, name, method string) *result.Measure {
	m := b.report.Begin(id, name, method)
	m.Noise = b.Noise(ctx, b.waitQuiet)
	return m
}

// warm starts each agent once, unmeasured, with one pod, so that programs and image are in
// memory.
func (b *bench) warm(ctx context.Context) error {
	return b.take(ctx, &result.Measure{Name: "warm"}, 1, func(t *stage.Turn, round int) error {
		_, err := b.start(ctx, t, "warm", 1)
		return err
	})
}

// take gives each agent its turn in every round. The first round begins with the first agent,
// the second with the second, so that none always runs after the other.
func (b *bench) take(ctx context.Context, m *result.Measure, rounds int, do func(t *stage.Turn, round int) error) error {
	for i := range rounds {
		for k := range b.agents {
			a := b.agents[(i+k)%len(b.agents)]
			if err := b.turn(ctx, a, func(t *stage.Turn) error { return do(t, i) }); err != nil {
				return fmt.Errorf("%s: %w", a.Name, err)
			}
			if err := lab.Rest(ctx, m, 500*time.Millisecond); err != nil {
				return err
			}
		}
		lab.Say("%s: round %d/%d", m.Name, i+1, rounds)
	}
	return nil
}

// settled is how long a ready agent is left alone before its first sample.
const settled = 3 * time.Second

func (b *bench) turn(ctx context.Context, a *stage.Agent, do func(*stage.Turn) error) (err error) {
	logFile := ""
	if b.keepLogs != "" {
		b.turns++
		logFile = filepath.Join(b.keepLogs, fmt.Sprintf("%s-%d.log", a.Name, b.turns))
	}
	t, err := b.Begin(ctx, a, a.Name, logFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Finish(), b.pods.awaitNone(context.WithoutCancel(ctx))) }()
	if err := lab.Pause(ctx, settled); err != nil {
		return err
	}
	return do(t)
}
