package cmd

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

type drainFlags struct {
	endpoint *endpoint
	grace    time.Duration
	undo     bool
	wait     bool
	timeout  time.Duration
}

func (p *program) drainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Stop all pods, and keep them stopped",
		Long: `Stop all pods of this node: those of the lowest priority first, and a pod after
the pods that depend on it. No pod starts until drain --undo or the next boot,
even if the agent restarts. In a cluster, use kubectl drain.`,
		Example: `  nodectl drain
  nodectl drain --grace 10s --timeout 1m
  nodectl drain --undo`,
		Args: noArgs,
	}
	f := &drainFlags{}
	fl := cmd.Flags()
	fl.DurationVar(&f.grace, "grace", 0, "longest grace period of a pod (default: the pod's own)")
	fl.BoolVar(&f.undo, "undo", false, "let the pods start again")
	fl.BoolVar(&f.wait, "wait", true, "wait until the pods have ended")
	fl.DurationVar(&f.timeout, "timeout", 0, "exit with code 4 after this time")
	fl.Lookup("grace").DefValue = ""
	f.endpoint = p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.drain(cmd, f) }
	return cmd
}

func (p *program) drain(cmd *cobra.Command, f *drainFlags) error {
	var grace *int64
	switch {
	case f.undo && (cmd.Flags().Changed("grace") || f.timeout != 0):
		return usage(cmd, errors.New("--undo takes neither --grace nor --timeout"))
	case f.grace < 0:
		return usage(cmd, errors.New("--grace: must not be negative"))
	case f.timeout < 0, f.timeout > 0 && !f.wait:
		return usage(cmd, errors.New("--timeout needs --wait, and must not be negative"))
	case cmd.Flags().Changed("grace"):
		grace = new(int64((f.grace + time.Second - 1) / time.Second))
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if f.undo {
		if err := c.Undrain(ctx); err != nil {
			return clientError(err)
		}
		return p.out.print("node undrained\n")
	}
	all, err := c.Pods(ctx)
	if err != nil {
		return clientError(err)
	}
	asked := time.Now()
	if err := c.Drain(ctx, grace); err != nil {
		return clientError(err)
	}
	if f.wait {
		if err := p.waitDrained(ctx, c, f.timeout, all, asked); err != nil {
			return err
		}
	}
	return p.out.print("node drained\n")
}

// waitDrained waits until all pods have stopped, and prints each one.
func (p *program) waitDrained(ctx context.Context, c *client.Client, timeout time.Duration, all []v1.Pod, asked time.Time) error {
	if len(all) == 0 {
		return nil
	}
	pods := make([]*v1.Pod, len(all))
	for i := range all {
		pods[i] = &all[i]
	}
	return p.waitFor(ctx, c, timeout, pods, func(before, now *v1.Pod) (bool, error) {
		if !client.HasEnded(before, now, asked) {
			return false, nil
		}
		result := " stopped\n"
		if pod.IsPhaseTerminal(before.Status.Phase) {
			result = " had already terminated\n"
		}
		return true, p.out.print("pod/" + ui.Clean(before.Name) + result)
	})
}
