package cmd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) restartCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restart POD... [-c CONTAINER]",
		Short: "Restart the containers of pods",
		Long: `Restart the containers of pods, or those that -c names. The agent stops each
container with its preStop hook and grace period, and starts it again in the
same pod, whatever its restart policy. It does so even if this command does not
wait.`,
		Example: `  nodectl restart web
  nodectl restart web -c nginx --wait
  nodectl restart web --grace-period 1`,
		Args: cobra.ArbitraryArgs,
	}
	namespace := addNamespace(cmd, "the namespace of the pods")
	names := cmd.Flags().StringSliceP("container", "c", nil, "only these containers")
	grace := cmd.Flags().Int64("grace-period", -1, "grace period in seconds (default: the pod's)")
	wait := cmd.Flags().Bool("wait", false, "wait until the containers run again and are ready")
	timeout := cmd.Flags().Duration("timeout", 0, "with --wait, exit with code 4 after this time")
	word(cmd.Flags(), "container", "NAMES")
	word(cmd.Flags(), "grace-period", "SECONDS")
	cmd.Flags().Lookup("grace-period").DefValue = ""
	_ = cmd.RegisterFlagCompletionFunc("container", p.completeContainers())
	cmd.ValidArgsFunction = p.completePods(true)
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		seconds, err := gracePeriod(cmd, *grace)
		switch {
		case err != nil:
			return usage(cmd, err)
		case len(args) == 0:
			return usage(cmd, errors.New("restart needs a pod"))
		case ofWorkloads(args):
			return failed(exitUsage, errors.New("restart restarts the containers of pods, not "+args[0]), "nodectl rollout restart "+strings.Join(args, " ")+" replaces the pods of a workload")
		case *timeout < 0, *timeout > 0 && !*wait:
			return usage(cmd, errors.New("--timeout needs --wait, and must not be negative"))
		}
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		pods, err := findPods(cmd.Context(), c, *namespace, args)
		if err != nil {
			return err
		}
		for _, it := range pods {
			if err := c.Restart(cmd.Context(), it.Namespace, it.Name, *names, seconds); err != nil {
				return clientError(err)
			}
			if err := p.out.print("pod/" + ui.Clean(it.Name) + " restarted\n"); err != nil {
				return err
			}
		}
		if !*wait {
			return nil
		}
		return p.waitFor(cmd.Context(), c, *timeout, pods, func(before, now *v1.Pod) (bool, error) { return client.IsRestarted(before, now, *names) })
	}
	return cmd
}

// gracePeriod returns --grace-period, or nil for the pod's own.
func gracePeriod(cmd *cobra.Command, seconds int64) (*int64, error) {
	switch {
	case !cmd.Flags().Changed("grace-period"), seconds == -1:
		return nil, nil
	case seconds < 0:
		return nil, errors.New("--grace-period: must not be negative")
	}
	return &seconds, nil
}

// findPods returns the pods with these names, each once.
func findPods(ctx context.Context, c *client.Client, namespace string, names []string) (pods []*v1.Pod, err error) {
	all, err := c.Pods(ctx)
	if err != nil {
		return nil, clientError(err)
	}
	for _, name := range names {
		parsed, err := client.ParseName(name, namespace)
		if err != nil {
			return nil, failed(exitUsage, err)
		}
		one, err := onePod(parsed, all)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(pods, one) {
			pods = append(pods, one)
		}
	}
	return pods, nil
}

// waitFor waits until done returns true for every pod, or an error for one. now is nil for a pod
// that is gone.
func (p *program) waitFor(ctx context.Context, c *client.Client, timeout time.Duration, pods []*v1.Pod, done func(before, now *v1.Pod) (bool, error)) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errWaited)
		defer cancel()
	}
	type key struct{ namespace, name string }
	open := map[key]*v1.Pod{}
	for _, it := range pods {
		open[key{it.Namespace, it.Name}] = it
	}
	left := func() (names []string) {
		for k := range open {
			names = append(names, "pods/"+k.name)
		}
		slices.Sort(names)
		return names
	}
	look := func(it *v1.Pod, gone bool) error {
		k := key{it.Namespace, it.Name}
		now := it
		if gone {
			now = nil
		}
		before := open[k]
		if before == nil {
			return nil
		}
		ok, err := done(before, now)
		if ok {
			delete(open, k)
		}
		return err
	}
	before := make([]v1.Pod, 0, len(pods))
	for _, it := range pods {
		before = append(before, *it)
	}
	for change, err := range c.WatchPods(ctx, before) {
		if err == nil {
			err = look(change.Object, change.Type == "DELETED")
		}
		if err != nil || len(open) == 0 {
			return p.waitEnd(err, left())
		}
	}
	if ctx.Err() != nil {
		return p.waitEnd(context.Cause(ctx), left())
	}
	return failed(exitFailure, errors.New("the agent has stopped; the next agent continues"))
}
