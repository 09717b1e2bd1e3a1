//go:build linux

package cmd

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) runtimeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runtime",
		Short: "Show or stop the bundled container runtime",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(p.runtimeStatusCommand(), p.runtimeStopCommand())
	return cmd
}

func (p *program) runtimeStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show whether the bundled runtime of --root-dir runs",
		Args:    noArgs,
		Example: "  nodectl runtime status -o json",
	}
	output := addOutput(cmd, "text", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := bundle.New(p.readOnly(slog.LevelWarn).Bundle()).Status(cmd.Context())
		if err != nil {
			return failed(exitRuntime, err)
		}
		d := ui.NewRuntimeStatus(s)
		if output.value == "text" {
			return p.out.print(p.out.RuntimeStatus(d))
		}
		return p.document(output.value, d)
	}
	return cmd
}

func (p *program) runtimeStopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "stop",
		Short:   "Stop the bundled runtime of --root-dir",
		Long:    "Stop the bundled runtime of --root-dir. If pods run on it, stop fails, unless\n--force kills them first, without their grace period.",
		Args:    noArgs,
		Example: "  nodectl runtime stop\n  nodectl runtime stop --force",
	}
	force := cmd.Flags().Bool("force", false, "kill the pods that run on it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := bundle.New(p.readOnly(slog.LevelWarn).Bundle()).Stop(cmd.Context(), *force)
		if _, ok := errors.AsType[*bundle.PodsRunningError](err); ok {
			return failed(exitFailure, err, "--force kills them; 'nodectl runonce --down -f …' stops them with their grace period")
		}
		return failed(exitRuntime, err)
	}
	return cmd
}
