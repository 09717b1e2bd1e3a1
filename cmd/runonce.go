//go:build linux

package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent"
	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

type runonceFlags struct {
	until         *choice
	output        *choice
	timeout       time.Duration
	cleanup, down bool
}

func (p *program) runonceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runonce",
		Short: "Start pods, wait for them, report, exit",
		Long: `Start every pod of the manifests, wait, report, and exit; the pods keep running.
Every manifest is checked before any pod starts. A pod waits for the pods that
it depends on; these must be in the manifests, too.

--until sets the state to wait for: running (every container has started, or has
exited with code 0), ready (every pod is Ready or has Succeeded), done (every
container has terminated; sidecars are then stopped). Exit code 9 means that a
pod failed, 4 that a pod did not reach the state in time.

A Job is done when it has completed or failed. Any other workload is ready when
all its pods have its newest version and are available; it then counts as done,
too. A CronJob starts nothing.

runonce serves no Services: after its exit, nothing would update their
endpoints. Use serve for pods that call each other by the names of Services.`,
		Args: noArgs,
		Example: `  nodectl runonce -f web.yaml --until ready
  nodectl runonce -f job.yaml --until done --cleanup
  nodectl runonce -f manifests/ --down`,
	}
	var f runonceFlags
	p.addSources(cmd)
	p.addSettings(cmd.Flags(), agentSettings())
	f.until = addChoice(cmd, "until", "", "state to wait for: running, ready, done", "running", "ready", "done")
	f.output = addOutput(cmd, "text", "json", "yaml")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait; 0 means without limit")
	cmd.Flags().BoolVar(&f.cleanup, "cleanup", false, "remove the pods at the end")
	cmd.Flags().BoolVar(&f.down, "down", false, "remove the pods of these manifests instead of starting them")
	word(cmd.Flags(), "until", "STATE")
	cmd.MarkFlagsMutuallyExclusive("cleanup", "down")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.timeout < 0 {
			return usage(cmd, fmt.Errorf("--timeout: must not be negative (got %s)", f.timeout))
		}
		return p.runonce(cmd.Context(), f)
	}
	return cmd
}

// runonce reads and checks all sources, then runs the pods, then prints a report.
func (p *program) runonce(ctx context.Context, f runonceFlags) error {
	set, err := p.checkedSet(ctx)
	if err != nil {
		return err
	}
	wait, cancel := ctx, context.CancelFunc(func() {})
	if f.timeout > 0 {
		wait, cancel = context.WithTimeout(ctx, f.timeout)
	}
	defer cancel()
	a, err := agent.Open(wait, p.agentConfig(slog.LevelError))
	if err != nil {
		return err
	}
	defer a.Close()
	if f.goal() != agent.Gone {
		if names := set.NotServed(); len(names) > 0 {
			p.say(p.err.Notice(notServed(names)))
		}
		if err := a.CheckPodsMayStart(); err != nil {
			return err
		}
	}
	if err := a.Ready(wait); err != nil {
		return err
	}
	progress := newProgress(p, set.Merged)
	report, err := a.Once(wait, set, f.goal(), progress)
	progress.end()
	if f.cleanup {
		if lost := a.Remove(set); lost != nil {
			return lost
		}
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return failed(exitRuntime, err)
	}
	d := ui.NewRunReport(report)
	if f.goal() != agent.Gone {
		d.SetNotServed(set.NotServed())
	}
	if f.output.value == "text" {
		err = p.out.print(p.out.Report(d))
	} else {
		err = p.document(f.output.value, d)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil && !errors.Is(err, errClosed) {
		return err
	}
	return ended(reportCode(d))
}

// namedServices is the maximum number of Services that a notice names.
const namedServices = 5

// notServed returns the notice about Services that runonce does not serve.
func notServed(services []pod.Key) string {
	var names []string
	for _, key := range services[:min(len(services), namedServices)] {
		names = append(names, key.String())
	}
	if more := len(services) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "runonce serves no Services: pods reach " + strings.Join(names, ", ") + " neither by name nor by address; 'nodectl serve' with these manifests serves them"
}

// goal returns the state that runonce waits for.
func (f runonceFlags) goal() string {
	if f.down {
		return agent.Gone
	}
	return f.until.value
}

// reportCode returns the exit code of a report.
func reportCode(d ui.RunReport) int {
	codes := []int{exitOK}
	add := func(result string) {
		switch result {
		case feed.ResultFailed, feed.ResultRejected:
			codes = append(codes, exitPod)
		case feed.ResultTimeout:
			codes = append(codes, exitTimeout)
		}
	}
	for _, p := range d.Pods {
		add(p.Result)
	}
	for _, w := range d.Workloads {
		add(w.Result)
	}
	return worst(codes...)
}

// checkedSet reads every source once, and returns a set only if it has no problems and
// at least one pod or workload.
func (p *program) checkedSet(ctx context.Context) (set agent.Set, err error) {
	p.cfg.Kubeconfig, p.cfg.EtcdEndpoints = "", nil // for serve, which may use the same configuration file
	p.cfg, p.given = readonly.Absolute(p.cfg)
	cfg := p.readOnly(slog.LevelError)
	kept, err := cfg.Records()
	if err != nil {
		cfg.Log.Warn("Failed to read some records", "error", err)
	}
	if set.Merged, set.Sources, err = cfg.Manifests(ctx, kept); err != nil {
		return set, err
	}
	p.printSkipped(set.Merged)
	if code := p.printProblems(set.Merged, true); code != exitOK {
		return set, ended(code)
	}
	if set.Pods.Len() == 0 && !slices.ContainsFunc(set.Objects.Slice(), func(o *pod.Object) bool { return pod.IsWorkload(o.Kind) }) {
		names := slices.Clone(p.cfg.SourceNames())
		for i, name := range names {
			names[i] = p.given.AsWritten(name)
		}
		return set, failed(exitRejected, errors.New("no pod and no workload in "+strings.Join(names, ", ")), "name manifests of pods or workloads with -f")
	}
	return set, nil
}
