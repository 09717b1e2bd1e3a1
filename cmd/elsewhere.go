//go:build !linux

package cmd

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
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

// lookAtPods returns an error: there is no node.
func (p *program) lookAtPods(context.Context) ([]v1.Pod, error) {
	return nil, failed(exitFailure, needsLinux("get pods"), "--server asks another node")
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
			return failed(exitFailure, needsLinux(name))
		},
	}
}

func needsLinux(what string) error {
	return errors.New(what + " needs Linux")
}

// machine is read access to the runtime of this machine.
type machine interface {
	plan.Observer
	Close() error
}

// observe returns an error: there is no runtime.
func (p *program) observe(context.Context) (machine, error) {
	return nil, needsLinux("merge --against runtime")
}

// kept returns no records: there is no agent here.
func (p *program) kept() ([]pod.Record, error) { return nil, nil }

// lastSets returns no last good sets: there is no agent here.
func (p *program) lastSets() func() (map[string]podconfig.Restored, error) { return nil }
