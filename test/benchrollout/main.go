// Command benchrollout updates a Deployment behind a Service under load, and counts the requests
// that fail: while versions that work follow each other, and while versions that fail are undone.
// It does so with nodectl, with the real control plane, kube-proxy and the kubelet, and with podman
// and compose, one after the other. docs/benchmarks.md has the method.
//
// A run owns everything it touches: its own containerd (test/node), the agents' processes, their
// directories. Rules of the packet filter, routes and mounts are in namespaces of the command, and
// are gone at the end, also after an error or a signal.
//
// Every request counts. A client repeats a request only if the protocol allows that, and no round
// is left out.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// wholeRounds is how many rounds a run has that is published.
const wholeRounds = 100

// The measures of nodectl; those of the other arms have higher numbers.
const (
	updatesID = 1
	badID     = 2
)

// bench has the common parts of both measures.
type bench struct {
	program.Bench
	rounds, rate int
	deadline     time.Duration
	arms         []string // that are measured
	goOn         bool
}

func main() { program.Main(parse, run) }

func parse(args []string) (*bench, error) {
	b := &bench{}
	var steps []program.Step
	for i, k := range kinds {
		b.arms = append(b.arms, k.name)
		of := fmt.Sprintf("%d %d", updatesOf(i), badOf(i))
		steps = append(steps, program.Step{Of: of, Run: func(ctx context.Context) error { return b.runArm(ctx, k, i) }})
	}
	f := b.Flags("benchrollout", "bench-rollout.json")
	f.IntVar(&b.rounds, "rounds", wholeRounds, fmt.Sprintf("updates, and bad versions; of other arms than nodectl's at most %d", mostCompared))
	arms := f.String("arm", strings.Join(b.arms, ","), "the arms to measure")
	f.BoolVar(&b.goOn, "continue", false, "add to the result at --out what it lacks; refused unless machine and programs are the same")
	f.StringVar(&b.Kubelet, "kubelet", program.Kubelet(), "the kubelet to measure")
	f.IntVar(&b.rate, "rate", 1000, "requests a second, half of them over kept connections")
	f.DurationVar(&b.deadline, "deadline", 10*time.Second, "progressDeadlineSeconds")
	f.StringVar(&b.From, "from", "", "a result to print, and to publish with --docs, instead of measuring")
	f.BoolVar(&b.Docs, "docs", false, "write the section of docs/benchmarks.md; needs a whole run")
	if err := b.Parse(f, args, steps...); err != nil {
		return b, err
	}
	b.arms = strings.Split(*arms, ",")
	for _, name := range b.arms {
		if !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == name }) {
			return b, fmt.Errorf("--arm: %q is no arm", name)
		}
	}
	if !slices.Contains(b.arms, "kubelet") {
		b.Kubelet = ""
	}
	if b.Quick {
		b.rounds = min(b.rounds, 5)
	}
	b.Quick = b.Quick || b.rounds < wholeRounds
	if b.rounds < 1 || b.rate < 2 || b.deadline < minReady+time.Second || b.deadline%time.Second != 0 {
		return b, fmt.Errorf("--rounds %d, --rate %d or --deadline %s: too small, or no whole number of seconds", b.rounds, b.rate, b.deadline)
	}
	return b, nil
}

// takes reports whether an arm is measured.
func (b *bench) takes(k kind) bool { return slices.Contains(b.arms, k.name) }

func run(ctx context.Context, b *bench) (fine bool, err error) {
	if b.From == "" && os.Getenv(inside) == "" {
		return isolate(ctx)
	}
	publish := func(r *report.Report) error { return section.Write(r, text(r)) }
	return b.Run(func() error { return b.measureAll(ctx) }, func(r *report.Report) { addFigures(r, b.deadline) }, text, publish)
}

// measureAll starts a node, takes the measures, and closes the node.
func (b *bench) measureAll(ctx context.Context) (err error) {
	arm.Say("starting containerd")
	l, err := arm.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := importImages(ctx, l.Node); err != nil {
		return err
	}
	if err := b.Open(ctx, l, ""); err != nil {
		return err
	}
	if err := b.resume(); err != nil {
		return err
	}
	b.Nodectl.Args = []string{"--service-cidr", serviceRange, "--dns=false"}
	if err := routeClients(ctx, clientRange, true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, routeClients(context.WithoutCancel(ctx), clientRange, false)) }()
	return b.Measure(ctx)
}

// resume continues the report of an earlier run with --continue, if that is of the same machine and
// programs.
func (b *bench) resume() error {
	if !b.goOn {
		return nil
	}
	begun, err := report.Read(b.Out)
	if err != nil {
		return err
	}
	for name, is := range b.Report.Machine {
		if was, known := begun.Machine[name]; known && was != is {
			return fmt.Errorf("--continue: %s is of another machine, another tree or other programs: %s is %q now, and was %q", b.Out, name, is, was)
		}
	}
	maps.Copy(begun.Machine, b.Report.Machine)
	begun.Quick = begun.Quick || b.Quick
	b.Report = begun
	return nil
}

// importImages gives the node the web server; it has the image of the tests.
func importImages(ctx context.Context, n *node.Node) error {
	images, err := node.Images()
	if err != nil {
		return err
	}
	for _, a := range images {
		if a.Ref == good(0).image {
			if _, err := bundle.ImportFile(ctx, n.Endpoint, a.File); err != nil {
				return fmt.Errorf("import %s: %w", filepath.Base(a.File), err)
			}
			return nil
		}
	}
	return fmt.Errorf("no archive has %s", good(0).image)
}
