package cmd

import (
	"errors"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/pod"
)

func (p *program) scaleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scale --replicas=N KIND/NAME...",
		Short: "Change how many pods a workload has",
		Long: `Change how many pods a deployment, statefulset or replicaset has. The manifest
stays as it is: the override ends when spec.replicas changes there, or with
--clear.`,
		Args: cobra.ArbitraryArgs,
		Example: `  nodectl scale --replicas=3 deployment/web
  nodectl scale --current-replicas=2 --replicas=3 statefulset/db
  nodectl scale --clear deployment/web`,
	}
	replicas := cmd.Flags().Int32("replicas", -1, "the number of pods")
	current := cmd.Flags().Int32("current-replicas", -1, "change nothing unless the workload has this number")
	end := cmd.Flags().Bool("clear", false, "end the override: the manifest decides again")
	for _, name := range []string{"replicas", "current-replicas"} {
		word(cmd.Flags(), name, "N")
		cmd.Flags().Lookup(name).DefValue = ""
	}
	f := p.addChange(cmd, pod.KindDeployment, pod.KindStatefulSet, pod.KindReplicaSet)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		changed := cmd.Flags().Changed
		switch {
		case *end && (changed("replicas") || changed("current-replicas")):
			return usage(cmd, errors.New("--clear and --replicas exclude each other"))
		case *end:
			return p.clear(cmd, args, "spec.replicas", f.kinds...)
		case !changed("replicas"):
			return usage(cmd, errors.New("--replicas is required"))
		case *replicas < 0:
			return usage(cmd, errors.New("--replicas: must not be negative"))
		case changed("current-replicas") && *current < -1:
			return usage(cmd, errors.New("--current-replicas: must not be negative"))
		}
		q := url.Values{"replicas": {strconv.Itoa(int(*replicas))}}
		if *current >= 0 {
			q.Set("currentReplicas", strconv.Itoa(int(*current)))
		}
		return p.change(cmd, f, args, "scale", q)
	}
	return cmd
}
