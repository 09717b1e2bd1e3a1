package program

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

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

// A Bench is a benchmark: its flags, its arms and its report.
type Bench struct {
	Quick, Check, Docs bool
	From, Out          string
	Binary, Kubelet    string // programs; no kubelet is measured if the second is ""
	KeepLogs           string
	WaitQuiet          time.Duration
	only               []string

	*arm.Lab
	Nodectl *arm.Agent
	Agents  []*arm.Agent // the kubelet's, where there is one, and nodectl's
	Report  *report.Report

	steps   []Step
	noise   report.Noise
	noiseAt time.Time
}

// A Step takes the measures of some parts, whose names are separated by blanks. They use the
// same pods.
type Step struct {
	Of  string
	Run func(context.Context) error
}

// Flags returns the flags that all benchmarks have. The result goes to a file in bin/.
func (b *Bench) Flags(name, out string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.BoolVar(&b.Quick, "quick", false, "few repetitions and short windows: does it work, not how fast it is")
	f.BoolVar(&b.Check, "check", false, "exit 1 when a limit is missed")
	f.StringVar(&b.Out, "out", filepath.Join(node.Repo(), "bin", out), "where the result goes, with every sample")
	f.StringVar(&b.Binary, "binary", "", "the nodectl to measure (default: built from this tree)")
	f.DurationVar(&b.WaitQuiet, "wait-quiet", 20*time.Second, "how long each measure waits for a quiet machine before it starts all the same")
	f.StringVar(&b.KeepLogs, "keep-logs", "", "directory for the agents' logs")
	return f
}

// KubeletFlags adds the flags of a benchmark that measures the kubelet too, for the docs.
func (b *Bench) KubeletFlags(f *flag.FlagSet) {
	f.StringVar(&b.Kubelet, "kubelet", Kubelet(), "the kubelet to measure")
	f.StringVar(&b.From, "from", "", "a result to print, and to publish with --docs, instead of measuring")
	f.BoolVar(&b.Docs, "docs", false, "write the section of docs/benchmarks.md; needs a whole run")
}

// Kubelet is where hack/kubelet puts the real kubelet.
func Kubelet() string { return filepath.Join(node.Repo(), "bin/kubelet/kubelet") }

// Parse parses the flags of a benchmark with these steps.
func (b *Bench) Parse(f *flag.FlagSet, args []string, steps ...Step) error {
	b.steps = steps
	var parts []string
	for _, s := range steps {
		parts = append(parts, strings.Fields(s.Of)...)
	}
	only := f.String("only", "", "the measures to take, of "+strings.Join(parts, ",")+" (default all)")
	if err := Flags(f, args); err != nil {
		return err
	}
	for s := range strings.SplitSeq(*only, ",") {
		if s == "" {
			continue
		}
		if s = strings.TrimPrefix(s, "M"); !slices.Contains(parts, s) {
			return fmt.Errorf("--only: %q is no measure; there are %v", s, parts)
		}
		b.only = append(b.only, s)
	}
	return nil
}

// Wants reports whether a part is requested, and not in the report yet.
func (b *Bench) Wants(part string) bool {
	id, err := strconv.Atoi(part)
	return (len(b.only) == 0 || slices.Contains(b.only, part)) && (err != nil || b.Report == nil || b.Report.Find(id) == nil)
}

// Count returns how often to repeat: full, or quick with --quick.
func (b *Bench) Count(full, quick int) int {
	if b.Quick {
		return quick
	}
	return full
}

// Span is Count for durations.
func (b *Bench) Span(full, quick time.Duration) time.Duration {
	if b.Quick {
		return quick
	}
	return full
}

// Run measures, or reads a result, adds its figures, and prints, keeps and publishes it. With
// --check, a missed limit makes fine false.
func (b *Bench) Run(measure func() error, figures func(*report.Report), text func(*report.Report) string, publish func(*report.Report) error) (fine bool, err error) {
	if b.From != "" {
		b.Report, err = report.Read(b.From)
	} else {
		err = measure()
	}
	if b.Report == nil {
		return false, err
	}
	figures(b.Report)
	fmt.Print(text(b.Report))
	if err == nil && b.From == "" { // half a run does not replace a whole one
		err = b.Report.Write(b.Out)
	}
	if err == nil && b.Docs {
		err = publish(b.Report)
	}
	return err == nil && (!b.Check || b.Report.Missed() == 0), err
}

// Open builds the agents, a kubelet with more lines of configuration, and begins the report.
func (b *Bench) Open(ctx context.Context, l *arm.Lab, config string) (err error) {
	b.Lab = l
	if b.Nodectl, err = arm.NewNodectl(ctx, l.Dir, b.Binary); err != nil {
		return err
	}
	b.Agents = []*arm.Agent{b.Nodectl}
	if b.Kubelet != "" {
		k, err := arm.NewKubelet(b.Kubelet, config)
		if err != nil {
			return err
		}
		b.Agents = []*arm.Agent{k, b.Nodectl}
	}
	for _, a := range b.Agents {
		a.KeepLogs = b.KeepLogs
	}
	machine, err := l.Machine(ctx, b.Agents...)
	if err != nil {
		return err
	}
	b.Report = &report.Report{Time: time.Now(), Quick: b.Quick, Machine: machine}
	return nil
}

// Measure takes the requested steps, and empties the node after each.
func (b *Bench) Measure(ctx context.Context) error {
	for _, s := range b.steps {
		if !slices.ContainsFunc(strings.Fields(s.Of), b.Wants) {
			continue
		}
		begin := time.Now()
		if err := errors.Join(s.Run(ctx), b.Empty()); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return fmt.Errorf("measure %s: %w", s.Of, err)
		}
		arm.Say("%s took %s", s.Of, time.Since(begin).Round(time.Second))
	}
	return nil
}

// Begin begins a measure when the machine is quiet, or has not become so for a while. Measures
// that begin together look at it once.
func (b *Bench) Begin(ctx context.Context, id int, name, method string) *report.Measure {
	if time.Since(b.noiseAt) > 5*time.Second {
		b.noise = b.Noise(ctx, b.Span(b.WaitQuiet, 0))
		b.noiseAt = time.Now()
	}
	arm.Say("measure %d: %s", id, name)
	m := b.Report.Begin(id, name, method)
	m.Noise = b.noise
	return m
}

// Take gives every arm its turn in each round. The first round begins with the first arm, the
// second with the second, and so on, so that no arm always runs after the same other.
func (b *Bench) Take(ctx context.Context, m *report.Measure, rounds int, arms ...func(round int) error) error {
	for i := range rounds {
		for k := range arms {
			if err := arms[(i+k)%len(arms)](i); err != nil {
				return err
			}
			if err := arm.Rest(ctx, m, 500*time.Millisecond); err != nil {
				return err
			}
		}
		arm.Say("%s: round %d/%d", m.Name, i+1, rounds)
	}
	return nil
}

// Each makes an arm of every agent.
func Each(agents []*arm.Agent, turn func(a *arm.Agent, round int) error) (arms []func(round int) error) {
	for _, a := range agents {
		arms = append(arms, func(round int) error {
			if err := turn(a, round); err != nil {
				return fmt.Errorf("%s: %w", a.Name, err)
			}
			return nil
		})
	}
	return arms
}
