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

// What acts on a machine, or looks at its runtime, is Linux's. On a person's own
// machine these commands are listed and say so; whatever only looks at sources
// or asks an agent is all there.

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

// lookAtPods says that there is no node to look at.
func (p *program) lookAtPods(context.Context) ([]v1.Pod, error) {
	return nil, failed(exitFailure, needsLinux("get pods"), "--server asks another node")
}

// onLinux returns a command that there is on Linux. It takes any flags: what is
// wrong is where it runs.
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

// machine is the runtime of this machine, as one may look at it.
type machine interface {
	plan.Observer
	Close() error
}

// observe says that there is no runtime to look at.
func (p *program) observe(context.Context) (machine, error) {
	return nil, needsLinux("merge --against runtime")
}

// kept returns what an agent kept of its pods: there is none here.
func (p *program) kept() ([]pod.Record, error) { return nil, nil }

// lastSets returns what an agent kept of its sources: there is none here.
func (p *program) lastSets() func() (map[string]podconfig.Restored, error) { return nil }
