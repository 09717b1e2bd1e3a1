// Command bench measures nodectl against a plain CRI client on one containerd, in one run,
// and compares the figures with the limits of the issue and the documentation.
// docs/benchmarks.md has the method.
//
// A run owns everything it touches: its own containerd (test/node), the agent's processes,
// their directories. All of it is gone at the end, also after an error or a signal.
//
// A figure is a ratio of medians from the same run, or an absolute value with the machine's
// noise recorded beside it. It includes no samples of another run, and no best run is picked.
package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// bench has the common parts of all measures.
type bench struct {
	program.Bench
	logLevel, traceFile string

	trace  *trace
	socket string // for the agents of measures 1 to 4: containerd's, or that of the tracing proxy
}

func main() { program.Main(parse, run) }

func parse(args []string) (*bench, error) {
	b := &bench{}
	f := b.Flags("bench", "bench.json")
	f.StringVar(&b.logLevel, "log-level", "info", "the agent's --log-level; debug costs time")
	f.StringVar(&b.traceFile, "trace", "", "file for the agents' CRI calls in measures 1 to 4; costs time")
	steps := []program.Step{{Of: "1 2", Run: b.measureDrop}, {Of: "3", Run: b.measureOnce}, {Of: "4", Run: b.measureCrash}, {Of: "5 6 12", Run: b.measureNode}, {Of: "13", Run: b.measureMost}}
	for _, m := range treeMeasures {
		steps = append(steps, program.Step{Of: m.id, Run: func(ctx context.Context) error { return b.measureTree(ctx, m) }})
	}
	return b, b.Parse(f, args, append(steps, program.Step{Of: "11", Run: b.measureMerge})...)
}

func run(ctx context.Context, b *bench) (fine bool, err error) {
	return b.Run(func() error { return b.measureAll(ctx) }, func(*report.Report) {}, markdown, nil)
}

// measureAll starts a node, takes the measures, and closes the node.
func (b *bench) measureAll(ctx context.Context) (err error) {
	arm.Say("starting containerd")
	l, err := arm.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := b.Open(ctx, l, ""); err != nil {
		return err
	}
	b.Nodectl.LogLevel = b.logLevel
	b.socket = b.Node.Endpoint
	if b.traceFile != "" {
		b.trace = &trace{}
		p, err := criproxy.New(b.Node.Endpoint, filepath.Join(b.Dir, "trace.sock"), b.trace.hooks())
		if err != nil {
			return err
		}
		b.socket = p.Endpoint()
		defer func() { err = errors.Join(err, p.Close(), b.trace.write(b.traceFile)) }()
	}
	return b.Measure(ctx)
}

// serve runs do with an agent that serves on a socket, and has been idle for a moment.
func (b *bench) serve(ctx context.Context, name, socket string, do func(*arm.Turn) error) error {
	return b.Turn(ctx, b.Nodectl, name, socket, nil, func(t *arm.Turn) error {
		if err := arm.Pause(ctx, arm.Settled); err != nil {
			return err
		}
		return do(t)
	})
}
