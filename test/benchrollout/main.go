// Command benchrollout updates a Deployment behind a Service under load, and counts the requests
// that fail: while versions that work follow each other, and while versions that fail are rolled
// back. docs/benchmarks.md has the method.
//
// A run owns everything it touches: its own containerd (test/node), the agent's processes, their
// directories. The rules of the Service and the route of the clients' addresses are in the network
// namespace of the command, and are gone at the end, also after an error or a signal.
//
// Every request counts. A client repeats a request only if the protocol allows that, and no round
// is left out.
package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// The measures.
const (
	updatesID = 1
	badID     = 2
)

// bench has the common parts of both measures.
type bench struct {
	program.Bench
	rounds, rate int
	deadline     time.Duration
}

func main() { program.Main(parse, run) }

func parse(args []string) (*bench, error) {
	b := &bench{}
	f := b.Flags("benchrollout", "bench-rollout.json")
	f.IntVar(&b.rounds, "rounds", wholeRounds, "updates, and bad versions")
	f.IntVar(&b.rate, "rate", 1000, "requests a second, half of them over kept connections")
	f.DurationVar(&b.deadline, "deadline", 10*time.Second, "progressDeadlineSeconds")
	f.StringVar(&b.From, "from", "", "a result to print, and to publish with --docs, instead of measuring")
	f.BoolVar(&b.Docs, "docs", false, "write the section of docs/benchmarks.md; needs a whole run")
	if err := b.Parse(f, args, program.Step{Of: "1", Run: b.updates}, program.Step{Of: "2", Run: b.badVersions}); err != nil {
		return b, err
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

func run(ctx context.Context, b *bench) (fine bool, err error) {
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
	b.Nodectl.Args = []string{"--service-cidr", serviceRange, "--dns=false"}
	if err := routeClients(ctx, clientRange, true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, routeClients(context.WithoutCancel(ctx), clientRange, false)) }()
	return b.Measure(ctx)
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

// section is the part of the docs that this command writes.
var section = report.Section{Command: "make bench-rollout", Needs: []int{updatesID, badID}}

// none is the limit of figures that have to be 0: a limit of 0 stands for none.
const none = 0.5

// addFigures adds the figures to the measures that were taken.
func addFigures(r *report.Report, deadline time.Duration) {
	for _, m := range r.Measures {
		m.Figures = nil
		if m.Lookup(failedKept) == nil {
			continue // it was interrupted
		}
		m.Max(failedKept, none, "requests")
		m.Max(failedFresh, none, "requests")
		if m.ID == updatesID {
			m.Max(updateTook, 0, "ms")
			continue
		}
		m.Max(slowest, deadline.Seconds()+1, "s")
	}
}

// text returns the report for people, which docs/benchmarks.md contains.
func text(r *report.Report) string {
	var b strings.Builder
	b.WriteString(report.Origin(r) + "| measure | figure | value | smallest–largest | limit | |\n|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, f := range m.Figures {
			limit := f.LimitText(f.Limit)
			if f.Limit == none {
				limit = "0"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s–%s | %s | %s |\n", m.Name, f.Name, f.Text(f.Value), f.Text(f.CI95[0]), f.Text(f.CI95[1]), limit, f.Outcome())
		}
	}
	label := func(m *report.Measure) string { return m.Name }
	b.WriteString(report.Samples(r, "| samples of | series |", label, 0, 0.5, 0.9, 1))
	for _, m := range r.Measures {
		fmt.Fprintf(&b, "- %s: %s.\n", m.Name, m.Method)
	}
	return b.String() + report.Notes(r, label)
}
