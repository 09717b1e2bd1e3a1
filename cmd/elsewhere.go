//go:build !linux

package cmd

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent/look"
)

// Commands that act on the machine or use its runtime need Linux. Elsewhere they are
// listed and return an error. Commands that only read sources or ask an agent work.

func (p *program) serveCommand() *cobra.Command {
	return onLinux("serve", "Keep pods the way their sources want them")
}

func (p *program) runonceCommand() *cobra.Command {
	return onLinux("runonce", "Start pods, wait for them, report, exit")
}

func (p *program) runtimeCommand() *cobra.Command {
	return onLinux("runtime", "Look at or stop the bundled container runtime")
}

func (p *program) getVolumesCommand() *cobra.Command {
	cmd := onLinux("volumes", "Show the volumes that claims are bound to")
	cmd.Aliases = []string{"volume", "pvc"}
	return cmd
}

func (p *program) deleteVolumeCommand() *cobra.Command {
	return onLinux("volume", "Remove volumes that claims are bound to, with all that is in them")
}

// onLinux returns a command that works on Linux only. It accepts any flags, so that the
// error is about the system.
func onLinux(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short + " (Linux)",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, name, _ := strings.Cut(cmd.CommandPath(), " ")
			return failed(exitFailure, look.NeedsLinux(name))
		},
	}
}
