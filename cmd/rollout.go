package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

// rolled returns the kinds that have rollouts.
func rolled() []string { return []string{pod.KindDeployment, pod.KindStatefulSet, pod.KindDaemonSet} }

func (p *program) rolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Follow, undo, restart or pause a rollout",
		Long: `Follow, undo, restart or pause the rollout of a deployment, statefulset or
daemonset. A change is an override: it stays when the agent restarts, and ends
when its field changes in the manifest, or with --clear.`,
		Args: cobra.ArbitraryArgs,
		Example: `  nodectl rollout status deployment/web
  nodectl rollout undo deployment/web --to-revision=3`,
		RunE: needsSubcommand,
	}
	cmd.AddCommand(p.rolloutStatusCommand(), p.rolloutHistoryCommand(), p.rolloutUndoCommand(),
		p.rolloutChange("restart", "restart", "Start all pods again, as a rollout", rolled()...),
		p.rolloutPauseCommand("pause", "Keep changes of the template from being rolled out"),
		p.rolloutPauseCommand("resume", "Roll out changes again"))
	return cmd
}

// changeFlags are the flags of a command that changes workloads.
type changeFlags struct {
	endpoint  *endpoint
	namespace *string
	kinds     []string
}

func (p *program) addChange(cmd *cobra.Command, kinds ...string) changeFlags {
	f := changeFlags{namespace: addNamespace(cmd, "the namespace of the workload"), kinds: kinds}
	f.endpoint = p.addEndpoint(cmd)
	cmd.ValidArgsFunction = p.completeWorkloads(kinds...)
	return f
}

// change asks the agent to apply verb to each workload that args name, and prints the results.
func (p *program) change(cmd *cobra.Command, f changeFlags, args []string, verb string, q url.Values) error {
	refs, err := workloadRefs(args, f.kinds...)
	if err != nil {
		return usage(cmd, err)
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	all, err := p.workloads(cmd.Context(), c, "", false)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		w, err := oneWorkload(all, ref.workloadKind, *f.namespace, ref.name)
		if err != nil {
			return err
		}
		result, err := c.ChangeWorkload(cmd.Context(), w.Kind, w.Object.GetNamespace(), w.Object.GetName(), verb, q)
		if err != nil {
			return p.notChanged(err, ref, w)
		}
		if err := p.out.print(w.Ref() + " " + ui.Clean(result) + "\n"); err != nil {
			return err
		}
	}
	return nil
}

// notChanged returns the error of a command that the agent refused, in kubectl's words.
func (p *program) notChanged(err error, ref workloadRef, w *ui.Workload) error {
	refused, is := errors.AsType[*client.RefusedError](err)
	if !is || refused.Code != http.StatusConflict {
		return clientError(err)
	}
	text := refused.Message
	for _, begin := range []string{"is ", "can't "} {
		if strings.HasPrefix(text, begin) {
			text = fmt.Sprintf("%s %q %s", ref.grouped(), w.Object.GetName(), text)
			break
		}
	}
	hint := ""
	if owner := ownerOf(w); owner != "" {
		hint = "it belongs to " + owner + ": change that"
	}
	return failed(exitFailure, errors.New(text), hint)
}

// ownerOf returns the workload that a ReplicaSet or Job belongs to: "deployment/web".
func ownerOf(w *ui.Workload) string {
	for _, ref := range w.Object.GetOwnerReferences() {
		return strings.ToLower(ref.Kind) + "/" + ref.Name
	}
	return ""
}

// rolloutChange returns a subcommand of rollout without flags of its own.
func (p *program) rolloutChange(name, verb, short string, kinds ...string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     name + " KIND/NAME...",
		Short:   short,
		Args:    cobra.ArbitraryArgs,
		Example: "  nodectl rollout " + name + " " + strings.ToLower(kinds[0]) + "/web",
	}
	f := p.addChange(cmd, kinds...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.change(cmd, f, args, verb, nil) }
	return cmd
}

func (p *program) rolloutPauseCommand(name, short string) *cobra.Command {
	cmd := p.rolloutChange(name, name, short, pod.KindDeployment)
	end := cmd.Flags().Bool("clear", false, "end the override: the manifest decides again")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*end {
			return run(cmd, args)
		}
		return p.clear(cmd, args, "spec.paused", pod.KindDeployment)
	}
	return cmd
}

// clear ends the override of one field.
func (p *program) clear(cmd *cobra.Command, args []string, field string, kinds ...string) error {
	e := &endpoint{p: p}
	for name, to := range map[string]*string{"server": &e.server, "certificate-authority": &e.authority, "client-certificate": &e.cert, "client-key": &e.secret, "token-file": &e.token} {
		*to = cmd.Flag(name).Value.String()
	}
	namespace := cmd.Flag("namespace").Value.String()
	return p.change(cmd, changeFlags{e, &namespace, kinds}, args, "clear", url.Values{"field": {field}})
}

func (p *program) rolloutUndoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undo KIND/NAME...",
		Short: "Return to an older revision",
		Long: `Return to the previous revision, or to that of --to-revision. The manifest stays
as it is: the override ends when the template in the manifest changes. Without
--to-revision, undo skips revisions that failed and were rolled back.`,
		Args: cobra.ArbitraryArgs,
		Example: `  nodectl rollout undo deployment/web
  nodectl rollout undo statefulset/db --to-revision=2
  nodectl rollout undo deployment/web --clear`,
	}
	to := cmd.Flags().Int64("to-revision", 0, "the revision to return to (default: the previous one)")
	end := cmd.Flags().Bool("clear", false, "end the override: the manifest decides again")
	word(cmd.Flags(), "to-revision", "N")
	cmd.Flags().Lookup("to-revision").DefValue = ""
	f := p.addChange(cmd, rolled()...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *to < 0:
			return usage(cmd, errors.New("--to-revision: must not be negative"))
		case *end && *to > 0:
			return usage(cmd, errors.New("--clear and --to-revision exclude each other"))
		case *end:
			return p.clear(cmd, args, "spec.template", f.kinds...)
		}
		return p.change(cmd, f, args, "undo", url.Values{"revision": {strconv.FormatInt(*to, 10)}})
	}
	return cmd
}

func (p *program) rolloutHistoryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history KIND/NAME",
		Short: "Show the revisions, and why some were rolled back",
		Long: `Show the revisions of the pod template. CHANGE-CAUSE is the annotation
kubernetes.io/change-cause of the workload, or why the revision was rolled back.`,
		Args: cobra.ArbitraryArgs,
		Example: `  nodectl rollout history deployment/web
  nodectl rollout history deployment/web --revision=2`,
	}
	number := cmd.Flags().Int64("revision", 0, "show the details of this revision")
	word(cmd.Flags(), "revision", "N")
	cmd.Flags().Lookup("revision").DefValue = ""
	f := p.addChange(cmd, rolled()...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *number < 0 {
			return usage(cmd, errors.New("--revision: must not be negative"))
		}
		return p.eachWorkload(cmd, f, args, func(_ *client.Client, w *ui.Workload) error {
			text, err := ui.RolloutHistory(w), error(nil)
			if *number > 0 {
				text, err = ui.RolloutRevision(w, *number)
			}
			if err != nil {
				return failed(exitFailure, err)
			}
			return p.out.print(text)
		})
	}
	return cmd
}

// eachWorkload calls do for each workload that args name, with its history.
func (p *program) eachWorkload(cmd *cobra.Command, f changeFlags, args []string, do func(*client.Client, *ui.Workload) error) error {
	refs, err := workloadRefs(args, f.kinds...)
	if err != nil {
		return usage(cmd, err)
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	for _, ref := range refs {
		w, err := p.workloadNamed(cmd.Context(), c, ref.workloadKind, *f.namespace, ref.name)
		if err == nil {
			err = do(c, w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// workloadNamed reads one workload with its history.
func (p *program) workloadNamed(ctx context.Context, c *client.Client, k workloadKind, namespace, name string) (*ui.Workload, error) {
	all, err := p.workloads(ctx, c, k.kind, true)
	if err != nil {
		return nil, err
	}
	return oneWorkload(all, k, namespace, name)
}

func (p *program) rolloutStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status KIND/NAME",
		Short: "Follow a rollout until it is done",
		Long: `Follow a rollout until all pods are of the newest revision and available. Exit
with code 1 if it fails or was rolled back, and with code 4 after --timeout.`,
		Args: cobra.ArbitraryArgs,
		Example: `  nodectl rollout status deployment/web --timeout=2m
  nodectl rollout status statefulset/db --watch=false`,
	}
	watch := cmd.Flags().BoolP("watch", "w", true, "wait until it is done")
	timeout := cmd.Flags().Duration("timeout", 0, "exit with code 4 after this time; 0 means never")
	number := cmd.Flags().Int64("revision", 0, "fail when another revision is the newest one")
	word(cmd.Flags(), "revision", "N")
	cmd.Flags().Lookup("revision").DefValue = ""
	f := p.addChange(cmd, rolled()...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *timeout < 0 || *number < 0 {
			return usage(cmd, errors.New("--timeout, --revision: must not be negative"))
		}
		ctx := cmd.Context()
		if *timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, *timeout, errWaited)
			defer cancel()
		}
		err := p.eachWorkload(cmd, f, args, func(c *client.Client, w *ui.Workload) error {
			return p.followRollout(ctx, c, f, w, *watch, *number)
		})
		if errors.Is(err, errWaited) {
			p.say(p.err.Error("timed out waiting for the condition"))
			return ended(exitTimeout)
		}
		return err
	}
	return cmd
}

// followRollout prints the status of a rollout, and each change of it, until it is done.
func (p *program) followRollout(ctx context.Context, c *client.Client, f changeFlags, w *ui.Workload, watch bool, number int64) error {
	k, _ := workloadKindOf(w.Kind)
	namespace, name, last := w.Object.GetNamespace(), w.Object.GetName(), ""
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		text, done, err := ui.RolloutStatus(w)
		if why := rolledBack(w); why != "" && err == nil {
			err = errors.New(k.singular() + " " + strconv.Quote(name) + ": " + why)
		}
		if n := len(w.History); number > 0 && n > 0 && w.History[n-1].Revision != number {
			err = fmt.Errorf("desired revision (%d) is different from the running revision (%d)", number, w.History[n-1].Revision)
		}
		if err != nil {
			return failed(exitFailure, err)
		}
		if text != last {
			if err := p.out.print(ui.Clean(text) + "\n"); err != nil {
				return err
			}
			last = text
		}
		if done || !watch {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		next, err := p.workloadNamed(ctx, c, k, namespace, name)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		w = next
	}
}

// rolledBack returns the reason of a rollback that is in effect, or "".
func rolledBack(w *ui.Workload) string {
	if i := slices.IndexFunc(w.Overrides, func(o ui.WorkloadOverride) bool { return o.Rollback }); i >= 0 {
		return w.Overrides[i].Why
	}
	return ""
}
