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

	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source/file"
	"github.com/nodectl/nodectl/pkg/ui"
)

// runonceFlags are runonce's own.
type runonceFlags struct {
	until         *choice
	output        *choice
	timeout       time.Duration
	cleanup, down bool
}

// runtimePatience is how long runonce waits for a runtime that does not answer.
const runtimePatience = 5 * time.Second

func (p *program) runonceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runonce",
		Short: "Start pods, wait for them, report, exit",
		Long: `Start every pod of the manifests, wait, report, and exit; the pods stay. Every
manifest is checked before anything starts. A pod that depends on another waits
for it, among the pods of these manifests.

--until says what is waited for: running (every container has started, or has
ended well), ready (every pod is Ready or has Succeeded), done (every container
has ended for good; sidecars then end by themselves). Exit code 9 says that a
pod failed, 4 that one did not get there in time.`,
		Args: noArgs,
		Example: `  nodectl runonce -f web.yaml --until ready
  nodectl runonce -f job.yaml --until done --cleanup
  nodectl runonce -f manifests/ --down`,
	}
	var f runonceFlags
	p.addSources(cmd)
	p.addSettings(cmd.Flags(), agentSettings())
	f.until = addChoice(cmd, "until", "", "what is waited for: running, ready, done", "running", "ready", "done")
	f.output = addOutput(cmd, "text", "json", "yaml")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait; 0 is for ever")
	cmd.Flags().BoolVar(&f.cleanup, "cleanup", false, "remove the pods when it ends")
	cmd.Flags().BoolVar(&f.down, "down", false, "remove the pods of these manifests instead of starting them")
	word(cmd.Flags(), "until", "STATE")
	cmd.MarkFlagsMutuallyExclusive("cleanup", "down")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.timeout < 0 {
			return usage(cmd, fmt.Errorf("--timeout: %s is less than nothing", f.timeout))
		}
		return p.runonce(cmd.Context(), f)
	}
	return cmd
}

// runonce reads and checks all sources, then runs the pods, then prints a report.
func (p *program) runonce(ctx context.Context, f runonceFlags) error {
	log := p.logger(slog.LevelError)
	set, err := p.checkedSet(ctx, log)
	if err != nil {
		return err
	}
	wait, cancel := ctx, context.CancelFunc(func() {})
	if f.timeout > 0 {
		wait, cancel = context.WithTimeout(ctx, f.timeout)
	}
	defer cancel()
	n, err := p.openNode(wait, log)
	if err != nil {
		return err
	}
	defer n.close()
	if err := n.awaitRuntime(wait, runtimePatience); err != nil {
		return err
	}
	if err := n.images.Import(wait); err != nil && wait.Err() == nil {
		p.say(p.err.Notice(err.Error()))
	}
	progress := newProgress(p, set)
	leave := n.pulls(wait, progress)
	report, err := n.engine(nil, told{sinks: []engine.Sink{progress}}).Once(wait, set, f.goal())
	leave()
	progress.end()
	if f.cleanup {
		if lost := n.cleanup(set, log); lost != nil {
			return failed(exitRuntime, lost)
		}
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return failed(exitRuntime, err)
	}
	d := ui.NewRunReport(report)
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

// goal returns the state that runonce waits for.
func (f runonceFlags) goal() engine.Until {
	if f.down {
		return engine.UntilGone
	}
	return engine.Until(f.until.value)
}

// reportCode returns the exit code of a report.
func reportCode(d ui.RunReport) int {
	codes := []int{exitOK}
	for _, pod := range d.Pods {
		switch pod.Result {
		case feed.ResultFailed, feed.ResultRejected:
			codes = append(codes, exitPod)
		case feed.ResultTimeout:
			codes = append(codes, exitTimeout)
		}
	}
	return worst(codes...)
}

// checkedSet reads every source once, and returns a set only if it has no problems and
// at least one pod.
func (p *program) checkedSet(ctx context.Context, log *slog.Logger) (*podconfig.Merged, error) {
	kept, err := p.kept()
	if err != nil {
		log.Warn("Some records were not read", "error", err)
	}
	p.cfg.Kubeconfig, p.cfg.EtcdEndpoints = "", nil // of serve, which may share the configuration
	p.absolute()
	sources, err := p.podConfig(reading{kept: p.keptSpecs(kept), permissions: file.Say, log: log})
	if err != nil {
		return nil, err
	}
	set := sources.Once(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.skipped(set)
	if code := p.tell(set, true); code != exitOK {
		return nil, ended(code)
	}
	if set.Pods.Len() == 0 {
		names := slices.Clone(p.sourceNames())
		for i, name := range names {
			names[i] = p.asGiven(name)
		}
		return nil, failed(exitRejected, errors.New("no pod in "+strings.Join(names, ", ")), "runonce starts pods; -f names their manifests")
	}
	return set, nil
}

// cleanup removes the pods of set again; only its own time limit interrupts it.
func (n *node) cleanup(set *podconfig.Merged, log *slog.Logger) error {
	limit := time.Minute
	for spec := range set.Pods.All() {
		if g := spec.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
			limit = max(limit, time.Minute+time.Duration(*g)*time.Second)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	report, err := n.engine(nil, told{}).Once(ctx, set, engine.UntilGone)
	if err != nil {
		for _, r := range report.Pods {
			if r.Reason != "" {
				err = fmt.Errorf("%w: pod %s: %s: %s", err, r.Key, r.Reason, r.Message)
			}
		}
		return fmt.Errorf("clean up: %w", err)
	}
	log.Debug("Cleaned up")
	return nil
}
