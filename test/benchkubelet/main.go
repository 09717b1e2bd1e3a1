// Command benchkubelet measures a plain CRI client, the real kubelet and nodectl on one
// containerd, in one run, one at a time and in turn, and compares the figures with the limits
// of the issue. docs/benchmarks.md has the method.
//
// A run owns everything it touches, as test/bench does.
//
// All figures of a table are from one run. No other run is averaged in, no best run is
// picked, no sample is left out.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// bench has the common parts of all measures.
type bench struct {
	program.Bench
	goOn, tuned bool

	latencyAgents []*arm.Agent
}

func main() { program.Main(parse, run) }

func run(ctx context.Context, b *bench) (fine bool, err error) {
	return b.Run(func() error { return b.measureAll(ctx) }, addFigures, text, publish)
}

func parse(args []string) (*bench, error) {
	b := &bench{}
	f := b.Flags("benchkubelet", "bench-kubelet.json")
	b.KubeletFlags(f)
	f.BoolVar(&b.goOn, "continue", false, "add to the result at --out what it lacks; refused unless machine and programs are the same")
	f.BoolVar(&b.tuned, "tuned", false, "a third agent in M1, M2, M4 and M16: the kubelet as its friends would set it")
	return b, b.Parse(f, args, b.steps()...)
}

func (b *bench) steps() []program.Step {
	return []program.Step{
		{Of: "1 4 16", Run: b.measureSingle}, {Of: "2", Run: b.measureBatch}, {Of: "5", Run: b.measureGone},
		{Of: "6 7 8 9", Run: b.measureFleet}, {Of: "15", Run: b.measureSize},
	}
}

// allMeasures are the measures of a whole run.
func allMeasures() (all []int) {
	for _, s := range new(bench).steps() {
		for _, name := range strings.Fields(s.Of) {
			id, _ := strconv.Atoi(name)
			all = append(all, id)
		}
	}
	return all
}

// config has the settings that a kubelet needs without an API server (authentication). It also sets
// the seccomp filter that nodectl's containers have by default, so that both start the same
// container.
const config = `seccompDefault: true
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`

// tunedConfig is a common configuration for a faster kubelet.
const tunedConfig = `serializeImagePulls: false
maxParallelImagePulls: 10
syncFrequency: 10m
fileCheckFrequency: 1m
nodeStatusUpdateFrequency: 1m
volumeStatsAggPeriod: -1s
`

// measureAll starts a node, takes the measures, and closes the node.
func (b *bench) measureAll(ctx context.Context) (err error) {
	arm.Say("starting containerd")
	l, err := arm.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := b.Open(ctx, l, config); err != nil {
		return err
	}
	b.latencyAgents = b.Agents
	if b.tuned {
		t := *b.Agents[0]
		t.Name, t.Config = "kubelet, tuned", config+tunedConfig
		b.latencyAgents = append(b.latencyAgents[:2:2], &t)
	}
	if err := b.resume(); err != nil {
		return err
	}
	// Each agent starts once, unmeasured: its program is then in memory, and the kubelet has its
	// certificate.
	for _, a := range b.latencyAgents {
		if err := b.Turn(ctx, a, "warm", b.Node.Endpoint, nil, func(*arm.Turn) error { return nil }); err != nil {
			return fmt.Errorf("start %s: %w", a.Name, err)
		}
	}
	return b.Measure(ctx)
}

// resume continues the report of an earlier run with --continue, if that is of this boot of
// this machine and of these programs.
func (b *bench) resume() error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	b.Report.Machine["boot"] = strings.TrimSpace(string(boot))
	if !b.goOn {
		return nil
	}
	begun, err := report.Read(b.Out)
	if err != nil {
		return err
	}
	if begun.Quick != b.Quick || !maps.Equal(begun.Machine, b.Report.Machine) {
		return fmt.Errorf("--continue: %s is of another machine, another tree or other programs", b.Out)
	}
	b.Report = begun
	return nil
}
