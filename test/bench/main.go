// Command bench measures nodectl against a plain CRI client on one containerd, in one run,
// and compares the figures with the limits of the issue and the documentation.
// docs/benchmarks.md has the method.
//
// A run owns everything it touches: its own containerd (test/node), the agent's processes,
// their directories. All of it is gone at the end, also after an error or a signal.
//
// The one rule: a figure is a ratio of medians from the same run, or an absolute one with the
// machine's noise recorded beside it. It never includes samples of another run, and no best
// run is picked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
)

// measureCount is how many measures there are.
const measureCount = 11

// options are the command's flags.
type options struct {
	quick     bool
	only      []int
	check     bool
	out       string
	binary    string
	waitQuiet time.Duration
	keepLogs  string
	logLevel  string
	traceFile string
}

func main() { program.Main(parse, run) }

// run measures and prints; with --check, a missed limit makes fine false.
func run(ctx context.Context, o options) (fine bool, err error) {
	report, err := measureAll(ctx, o)
	if report != nil {
		fmt.Print(markdown(report))
		if err == nil { // half a run does not replace a whole one
			err = report.Write(o.out)
		}
	}
	return err == nil && (!o.check || report.Missed() == 0), err
}

func parse(args []string) (options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "few repetitions and short windows: does it work, not how fast it is")
	f.StringVar(&only, "only", "", "the measures to take, as 1,3 (default all)")
	f.BoolVar(&o.check, "check", false, "exit 1 when a limit is missed")
	f.StringVar(&o.out, "out", filepath.Join(node.Repo(), "bin/bench.json"), "where the result goes, with every sample")
	f.StringVar(&o.binary, "binary", "", "the nodectl to measure (default: built from this tree)")
	f.DurationVar(&o.waitQuiet, "wait-quiet", 30*time.Second, "how long each measure waits for a quiet machine before it starts all the same")
	f.StringVar(&o.keepLogs, "keep-logs", "", "directory for the agent's logs")
	f.StringVar(&o.logLevel, "log-level", "info", "the agent's --log-level; debug costs time")
	f.StringVar(&o.traceFile, "trace", "", "file for the agents' CRI calls in measures 1 to 4; costs time")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	for s := range strings.SplitSeq(only, ",") {
		if s == "" {
			continue
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > measureCount {
			return o, fmt.Errorf("--only: %q is no measure; there are 1 to %d", s, measureCount)
		}
		o.only = append(o.only, n)
	}
	return o, nil
}

// bench is what all measures share.
type bench struct {
	options
	*lab.Lab
	nodectl *lab.Nodectl
	report  *result.Report
	trace   *trace
	socket  string // for the agents of measures 1 to 4: containerd's, or that of the tracing proxy
}

func (b *bench) wants(n int) bool { return len(b.only) == 0 || slices.Contains(b.only, n) }

// count returns how often to repeat: full, or quick with --quick.
func (b *bench) count(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
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
	b.nodectl.LogLevel, b.nodectl.KeepLogs = o.logLevel, o.keepLogs
	b.report = &result.Report{Time: time.Now(), Quick: o.quick}
	if b.report.Machine, err = b.Machine(ctx, b.nodectl.Binary); err != nil {
		return nil, err
	}
	b.socket = b.Node.Endpoint
	if b.traceFile != "" {
		b.trace = &trace{}
		p, err := criproxy.New(b.Node.Endpoint, filepath.Join(b.Dir, "trace.sock"), b.trace.hooks())
		if err != nil {
			return nil, err
		}
		b.socket = p.Endpoint()
		defer func() { err = errors.Join(err, p.Close(), b.trace.write(b.traceFile)) }()
	}
	return b.report, b.measures(ctx)
}

// measure begins a measure.
func (b *bench) measure(id int, name, method string) *result.Measure {
	lab.Say("measure %d: %s", id, name)
	return b.report.Begin(id, name, method)
}

// noise waits a while for a quiet machine, and records how quiet it is for the measures that
// begin now.
func (b *bench) noise(ctx context.Context, begin ...*result.Measure) {
	limit := b.waitQuiet
	if b.quick {
		limit = 0
	}
	n := b.Noise(ctx, limit)
	for _, m := range begin {
		m.Noise = n
	}
}

func (b *bench) measures(ctx context.Context) error {
	steps := []struct {
		of  []int
		run func(context.Context) error
	}{
		{[]int{1, 2}, b.measureDrop},
		{[]int{3}, b.measureOnce},
		{[]int{4}, b.measureCrash},
		{[]int{5, 6}, b.measureNode},
		{[]int{7, 8, 9, 10}, b.measureSources},
		{[]int{11}, b.measureMerge},
	}
	for _, s := range steps {
		if !slices.ContainsFunc(s.of, b.wants) {
			continue
		}
		err := firstError(s.run(ctx), b.Clear(ctx))
		switch {
		case err != nil && ctx.Err() != nil:
			return errors.New("interrupted")
		case err != nil:
			return fmt.Errorf("measure %s: %w", strings.Trim(fmt.Sprint(s.of), "[]"), err)
		}
	}
	return nil
}
