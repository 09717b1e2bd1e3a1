//go:build !linux

package cmd

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/ui"
)

// Commands that act on the machine or use its runtime need Linux. On other systems the help
// lists them, and they return an error. Commands that only read sources or ask an agent work.

func (p *program) serveCommand() *cobra.Command {
	return onLinux("serve", "Run the pods of sources, and keep them in sync")
}

func (p *program) runonceCommand() *cobra.Command {
	return onLinux("runonce", "Start pods, wait for them, report, exit")
}

func (p *program) runtimeCommand() *cobra.Command {
	return onLinux("runtime", "Show or stop the bundled container runtime")
}

func (p *program) pullCommand() *cobra.Command { return onLinux("pull", "Pull images to this node") }

func (p *program) rmiCommand() *cobra.Command { return onLinux("rmi", "Remove images from this node") }

func (p *program) imageCommand() *cobra.Command {
	return onLinux("image", "Load, save and prune images")
}

// lookAtImages returns an error: there is no runtime.
func (p *program) lookAtImages(context.Context) ([]ui.ImageItem, error) {
	return nil, failed(exitFailure, readonly.NeedsLinux("get images"))
}

// forecastReclaim returns an error: there is no runtime.
func (p *program) forecastReclaim(context.Context, []string) (server.Reclaim, error) {
	return server.Reclaim{}, failed(exitFailure, readonly.NeedsLinux("reclaim without an agent"))
}

func (p *program) getVolumesCommand() *cobra.Command {
	cmd := onLinux("volumes", "Show the volumes that claims are bound to")
	cmd.Aliases = []string{"volume", "pvc"}
	return cmd
}

func (p *program) deleteVolumeCommand() *cobra.Command {
	return onLinux("volume", "Remove volumes that claims are bound to, with their content")
}

// onLinux returns a command that works on Linux only. It accepts any flags: its error must
// name the system, not a flag.
func onLinux(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short + " (Linux)",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, name, _ := strings.Cut(cmd.CommandPath(), " ")
			return failed(exitFailure, readonly.NeedsLinux(name))
		},
	}
}
