// Command benchkubelet measures a plain CRI client, the real kubelet and nodectl on one
// containerd, in one run, one at a time and in turn, and compares the figures with the limits
// of the issue. docs/benchmarks.md has the method.
//
// A run owns everything it touches, as test/bench does, whose parts it uses: package lab
// drives containerd and agents, package result keeps samples.
//
// The one rule: all figures of a table are from one run. No other run is averaged in, no best
// run is picked, no sample is left out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
)

// options are the command's flags.
type options struct {
	quick     bool
	only      []int
	check     bool
	goOn      bool
	from      string
	tuned     bool
	out       string
	docs      bool
	binary    string
	kubelet   string
	waitQuiet time.Duration
	keepLogs  string
}

func main() { program.Main(parse, run) }

// run measures and prints; with --check, a missed limit makes fine false.
func run(ctx context.Context, o options) (fine bool, err error) {
	var report *result.Report
	if o.from != "" {
		report, err = result.Read(o.from)
	} else {
		report, err = measureAll(ctx, o)
	}
	if report != nil {
		addFigures(report)
		fmt.Print(text(report))
		if err == nil && o.from == "" { // half a run does not replace a whole one
			err = report.Write(o.out)
		}
		if err == nil && o.docs {
			err = publish(report)
		}
	}
	return err == nil && (!o.check || report.Missed() == 0), err
}

func parse(args []string) (options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("benchkubelet", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "few repetitions and short windows: does it work, not how fast it is")
	f.StringVar(&only, "only", "", "the measures to take, as 1,4 for M1 and M4 (default all)")
	f.BoolVar(&o.goOn, "continue", false, "add to the result at --out what it lacks; refused unless machine and programs are the same")
	f.StringVar(&o.from, "from", "", "a result to print, and to publish with --docs, instead of measuring")
	f.BoolVar(&o.check, "check", false, "exit 1 when a limit is missed")
	f.BoolVar(&o.tuned, "tuned", false, "a third agent in M1, M2, M4 and M16: the kubelet as its friends would set it")
	f.StringVar(&o.out, "out", filepath.Join(node.Repo(), "bin/bench-kubelet.json"), "where the result goes, with every sample")
	f.BoolVar(&o.docs, "docs", false, "write the section of docs/benchmarks.md and the plots; needs a whole run")
	f.StringVar(&o.binary, "binary", "", "the nodectl to measure (default: built from this tree)")
	f.StringVar(&o.kubelet, "kubelet", filepath.Join(node.Repo(), "bin/kubelet/kubelet"), "the kubelet to measure")
	f.DurationVar(&o.waitQuiet, "wait-quiet", 20*time.Second, "how long each measure waits for a quiet machine before it starts all the same")
	f.StringVar(&o.keepLogs, "keep-logs", "", "directory for the agents' logs")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	for s := range strings.SplitSeq(only, ",") {
		if s == "" {
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(s, "M"))
		if err != nil || !slices.Contains(allMeasures(), n) {
			return o, fmt.Errorf("--only: %q is no measure; there are %v", s, allMeasures())
		}
		o.only = append(o.only, n)
	}
	return o, nil
}

// steps are the parts of a run. The measures of one step use the same pods.
var steps = []struct {
	of  []int
	run func(*bench, context.Context) error
}{
	{[]int{1, 4, 16}, (*bench).measureSingle},
	{[]int{2}, (*bench).measureBatch},
	{[]int{5}, (*bench).measureGone},
	{[]int{6, 7, 8, 9}, (*bench).measureFleet},
	{[]int{15}, (*bench).measureSize},
}

func allMeasures() []int {
	var all []int
	for _, s := range steps {
		all = append(all, s.of...)
	}
	slices.Sort(all)
	return all
}

// bench is what all measures share.
type bench struct {
	options
	*lab.Lab
	nodectl *lab.Nodectl
	agents  []agent // of every measure
	tuned   []agent // of latencies only
	report  *result.Report
	noise   result.Noise // before the present step
}

// wants reports whether a measure is requested, and not in the report yet.
func (b *bench) wants(n int) bool {
	return (len(b.only) == 0 || slices.Contains(b.only, n)) && b.report.Find(n) == nil
}

// count returns how often to repeat: full, or quick with --quick.
func (b *bench) count(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
}

// span is count for durations.
func (b *bench) span(full, quick time.Duration) time.Duration {
	if b.quick {
		return quick
	}
	return full
}

// begin begins a measure.
func (b *bench) begin(id int, name, method string) *result.Measure {
	lab.Say("M%d: %s", id, name)
	m := b.report.Begin(id, name, method)
	m.Noise = b.noise
	return m
}

// measureAll starts a node, takes the measures, and closes the node. It returns the measures
// taken before an error together with it.
func measureAll(ctx context.Context, o options) (_ *result.Report, err error) {
	b := &bench{options: o}
	lab.Say("starting containerd")
	if b.Lab, err = lab.Open(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Lab.Close()) }()
	if b.nodectl, err = b.NewNodectl(ctx, o.binary); err != nil {
		return nil, err
	}
	b.nodectl.KeepLogs = o.keepLogs
	k, err := newKubelet(b.Lab, o.kubelet, o.keepLogs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	b.agents = []agent{k, nodectl{b.nodectl, b.Node}}
	if o.tuned {
		t := *k
		t.arm, t.extra = "kubelet, tuned", tunedConfig
		b.tuned = []agent{&t}
	}
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	if err := b.warm(ctx); err != nil {
		return nil, err
	}
	for _, s := range steps {
		if !slices.ContainsFunc(s.of, b.wants) {
			continue
		}
		name := "M" + strings.Trim(fmt.Sprint(s.of), "[]")
		begin := time.Now()
		b.noise = b.Noise(ctx, b.span(b.waitQuiet, 0))
		if err := s.run(b, ctx); err != nil {
			if ctx.Err() != nil {
				return b.report, errors.New("interrupted")
			}
			return b.report, fmt.Errorf("%s: %w", name, err)
		}
		lab.Say("%s took %s", name, time.Since(begin).Round(time.Second))
	}
	return b.report, nil
}

// open begins a report. With --continue it continues the existing one, if that is of this
// boot of this machine and of these programs.
func (b *bench) open(ctx context.Context) error {
	machine, err := b.Machine(ctx, b.nodectl.Binary)
	if err != nil {
		return err
	}
	if machine["kubelet"], err = lab.Describe(b.kubelet); err != nil {
		return err
	}
	if machine["kubelet version"], err = arm.Version(b.kubelet); err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	machine["boot"] = strings.TrimSpace(string(boot))
	b.report = &result.Report{Time: time.Now(), Quick: b.quick, Machine: machine}
	if !b.goOn {
		return nil
	}
	begun, err := result.Read(b.out)
	if err != nil {
		return err
	}
	if begun.Quick != b.quick || !maps.Equal(begun.Machine, machine) {
		return fmt.Errorf("--continue: %s is of another machine, another tree or other programs", b.out)
	}
	for _, m := range begun.Measures {
		m.Figures = nil // computed again
	}
	b.report = begun
	return nil
}

// warm starts each agent once, unmeasured: its program is then in memory, and the kubelet has
// its certificate.
func (b *bench) warm(ctx context.Context) error {
	for _, a := range b.latencyAgents() {
		err := b.turn(ctx, a, "warm", b.Node.Endpoint, nil, func(*running) error { return nil })
		if err != nil {
			return fmt.Errorf("start %s: %w", a.name(), err)
		}
	}
	return nil
}

func (b *bench) latencyAgents() []agent { return slices.Concat(b.agents, b.tuned) }
