package cmd

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/ui"
)

type mergeFlags struct {
	dryRun      bool
	against     string
	exitCode    bool
	showSecrets bool
	output      *choice
}

func (p *program) mergeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "merge",
		Short: "Print the merged set, or what serving it would change",
		Long: `Read every source once and print the merged set as a List. With --dry-run,
print what serving it would change instead, field by field, and whether it
restarts anything. merge takes no lock and writes nothing.

Exit codes: 0 nothing would change, 1 changes pending, 2 usage, 3 a manifest was
rejected, 5 a source could not be read, 6 container runtime, 7 anything else.`,
		Args: noArgs,
		Example: `  nodectl merge -f manifests/ -f https://cfg.example/pods.yaml
  nodectl merge --dry-run -f manifests/
  nodectl merge -f manifests/ > before.yaml
  nodectl merge --dry-run -f manifests/ --against before.yaml -o json`,
	}
	var f mergeFlags
	p.addSources(cmd)
	p.addClusterSources(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what serving the set would change")
	cmd.Flags().StringVar(&f.against, "against", "auto", "compare with: auto, runtime, none, or a file that merge wrote")
	word(cmd.Flags(), "against", "WHAT")
	_ = cmd.RegisterFlagCompletionFunc("against", cobra.FixedCompletions([]string{"auto", "none", "runtime"}, cobra.ShellCompDirectiveDefault)) // else a file
	cmd.Flags().BoolVar(&f.exitCode, "exit-code", true, "exit 1 when --dry-run finds changes")
	cmd.Flags().BoolVar(&f.showSecrets, "show-secrets", false, "print values of Secrets")
	f.output = addOutput(cmd, "yaml", "json", "name", "wide", "text")
	describeOutput(cmd, "text, wide, json, yaml, name (default yaml, with --dry-run text)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"against", "exit-code"} {
			if !f.dryRun && cmd.Flags().Changed(name) {
				return usage(cmd, errors.New("--"+name+" needs --dry-run"))
			}
		}
		if f.dryRun && f.showSecrets {
			return usage(cmd, errors.New("--dry-run never shows values of Secrets"))
		}
		if f.dryRun && !cmd.Flags().Changed("output") {
			f.output.value = "text"
		}
		if f.dryRun {
			return p.dryRun(cmd.Context(), f)
		}
		return p.merge(cmd.Context(), f)
	}
	return cmd
}

// merge prints the merged set.
func (p *program) merge(ctx context.Context, f mergeFlags) error {
	state, err := p.readOnly(slog.LevelWarn).Merge(ctx)
	if err != nil {
		return err
	}
	p.printSkipped(state)
	switch f.output.value {
	case "name":
		err = p.out.print(ui.Names(state))
	case "text", "wide":
		if state.Pods.Len()+state.Objects.Len() == 0 {
			p.say(p.err.Notice("the merged set is empty"))
		}
		err = p.out.print(p.out.Set(state, f.output.value == "wide"))
	default:
		err = p.document(f.output.value, ui.NewList(state, f.showSecrets))
	}
	code := p.printProblems(state, true)
	if err != nil && !errors.Is(err, errClosed) {
		return err
	}
	return ended(code)
}

// dryRun prints the changes that serving the set would make.
func (p *program) dryRun(ctx context.Context, f mergeFlags) error {
	preview, err := p.readOnly(slog.LevelWarn).DryRun(ctx, f.against)
	if err != nil {
		return err
	}
	for _, n := range preview.Notices {
		p.say(p.err.Notice(n))
	}
	p.printSkipped(preview.State)
	plan := ui.NewMergePlan(preview)
	text := f.output.value == "text" || f.output.value == "wide"
	switch {
	case text:
		err = p.out.print(p.out.Plan(plan, f.output.value == "wide", time.Now()))
	case f.output.value == "name":
		err = p.out.print(plan.Names())
	default:
		err = p.document(f.output.value, plan)
	}
	code := p.printProblems(preview.State, !text)
	if err != nil && !errors.Is(err, errClosed) {
		return err
	}
	if plan.Summary.Changed && f.exitCode {
		code = worst(code, exitChanges)
	}
	return ended(code)
}

// printProblems prints the problems of a set and returns the exit code. Without all, it leaves out
// those that a plan shows: rejections, conflicts and unreadable sources.
func (p *program) printProblems(state *podconfig.Merged, all bool) int {
	codes := []int{exitOK}
	for _, l := range state.Layers {
		if l.Error == "" {
			continue
		}
		codes = append(codes, exitSource)
		if all || l.Location == config.DefaultManifests {
			p.say(p.err.Error(ui.Clean(l.Source+" "+p.given.AsWritten(l.Location)+": "+l.Error), p.sourceHint(l)))
		}
	}
	if len(state.Problems) > 0 {
		codes = append(codes, exitRejected)
	}
	if all {
		for _, problem := range state.Problems {
			problem.File = p.given.AsWritten(problem.File)
			p.say(p.err.Problem(problem))
		}
		for _, c := range state.Conflicts {
			c.Winner.File, c.Loser.File = p.given.AsWritten(c.Winner.File), p.given.AsWritten(c.Loser.File)
			p.say(p.err.Conflict(c.Key, c.Winner, c.Loser, c.Reason))
		}
	}
	return worst(codes...)
}

// printSkipped prints the files that sources skipped. Callers print them before the answer: there
// may be many, and they are less important.
func (p *program) printSkipped(state *podconfig.Merged) {
	for _, s := range state.Skipped {
		s.File = p.given.AsWritten(s.File)
		p.say(p.err.Notice(s.Error()))
	}
}

// sourceHint returns the hint for a layer that cannot be read.
func (p *program) sourceHint(l podconfig.LayerState) string {
	if len(p.cfg.Filename) == 0 && l.Location == config.DefaultManifests {
		return "no source is configured: name one with -f, or create the directory " + config.DefaultManifests
	}
	return ""
}
