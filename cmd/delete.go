package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/suggest"
	"github.com/nodectl/nodectl/pkg/ui"
)

type deleteFlags struct {
	endpoint   *endpoint
	namespace  *string
	grace      int64
	now, force bool
	wait       bool
	ignore     bool
	timeout    time.Duration
}

func (p *program) deleteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete POD... | -f PATH",
		Short: "Delete pods or volumes",
		Long: `Delete pods. If a source still contains the pod, the agent starts a new instance
of it, and delete prints where its manifest is: remove that to keep the pod
deleted. Delete a pod of an API server with kubectl instead. With -f, delete the
pods of these manifests, and the pods of their workloads.`,
		Example: `  nodectl delete web
  nodectl delete pod/web --now
  nodectl delete -f manifests/
  nodectl delete volume data -n shop`,
		Args: cobra.ArbitraryArgs,
	}
	f := &deleteFlags{}
	f.namespace = addNamespace(cmd, "the namespace of the pods")
	p.addSettings(cmd.Flags(), []string{"filename", "recursive", "validate"})
	fl := cmd.Flags()
	fl.Int64Var(&f.grace, "grace-period", -1, "grace period in seconds (default: the pod's)")
	fl.BoolVar(&f.now, "now", false, "same as --grace-period 1")
	fl.BoolVar(&f.force, "force", false, "delete without a grace period, and do not wait")
	fl.BoolVar(&f.wait, "wait", true, "wait until the pods have ended")
	fl.BoolVar(&f.ignore, "ignore-not-found", false, "do not fail if a pod does not exist")
	fl.DurationVar(&f.timeout, "timeout", 0, "exit with code 4 after this time")
	fl.Lookup("grace-period").DefValue = ""
	word(fl, "grace-period", "SECONDS")
	cmd.ValidArgsFunction = p.completePods(true)
	f.endpoint = p.addEndpoint(cmd)
	cmd.AddCommand(p.deleteVolumeCommand())
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.delete(cmd, f, args) }
	return cmd
}

func (p *program) delete(cmd *cobra.Command, f *deleteFlags, args []string) error {
	grace, err := f.seconds(cmd)
	if err != nil {
		return usage(cmd, err)
	}
	if len(args) > 0 && (args[0] == "pod" || args[0] == "pods" || args[0] == "po") {
		args = args[1:]
	}
	if len(args) > 1 && suggest.Similar(args[0], []string{"volume", "volumes"}) != "" {
		return unknownCommand(cmd, args[0]) // to delete a pod of such a name, write pod/NAME
	}
	if ofWorkloads(args) {
		return failed(exitUsage, errors.New("delete removes pods and volumes: remove "+strings.Join(args, " ")+" from its manifest"), "nodectl scale --replicas=0 stops the pods of a workload")
	}
	files := cmd.Flags().Changed("filename")
	if (len(args) > 0) == files {
		return usage(cmd, errors.New("delete needs pods, or -f"))
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	var state *podconfig.Merged
	code := exitOK
	if files {
		if state, code, err = p.readManifests(ctx); err != nil {
			return err
		}
	}
	desired := map[pod.Key]string{}
	if c.Local() {
		desired = desiredPods(ctx, c)
	}
	all, err := c.Pods(ctx) // the last request before the deletions: waitFor compares with these pods
	if err != nil {
		return clientError(err)
	}
	var pods []*v1.Pod
	if files {
		pods, code = p.podsOfFiles(state, code, all, f.ignore)
		if pods, code, err = p.withWorkloads(ctx, c, state, pods, code, all, f.ignore); err != nil {
			return err
		}
	} else if pods, err = p.podsNamed(all, *f.namespace, args, f.ignore); err != nil {
		return err
	}
	asked := time.Now()
	for _, it := range pods {
		if err := c.Delete(ctx, it.Namespace, it.Name, string(it.UID), grace); err != nil {
			return clientError(err)
		}
		if err := p.out.print("pod/" + ui.Clean(it.Name) + " deleted\n"); err != nil {
			return err
		}
		if from := desired[pod.KeyOf(it)]; from != "" {
			p.say(p.err.Notice("pod " + pod.KeyOf(it).String() + " starts again: it is in " + from + "; remove it there to keep it deleted"))
		}
	}
	if f.wait && !f.force && len(pods) > 0 {
		if err := p.waitFor(ctx, c, f.timeout, pods, func(before, now *v1.Pod) (bool, error) { return client.HasEnded(before, now, asked), nil }); err != nil {
			return err
		}
	}
	return ended(code)
}

// seconds returns the grace period that the flags set, or nil for the pod's own.
func (f *deleteFlags) seconds(cmd *cobra.Command) (*int64, error) {
	grace, err := gracePeriod(cmd, f.grace)
	switch {
	case err != nil:
		return nil, err
	case f.now && grace != nil:
		return nil, errors.New("--now and --grace-period exclude each other")
	case f.now:
		one := int64(1)
		return &one, nil
	case f.force && grace == nil:
		return new(int64), nil
	}
	return grace, nil
}

// podsNamed returns the pods with these names.
func (p *program) podsNamed(all []v1.Pod, namespace string, names []string, ignore bool) (pods []*v1.Pod, err error) {
	for _, name := range names {
		parsed, err := client.ParseName(name, namespace)
		if err != nil {
			return nil, failed(exitUsage, err)
		}
		if ignore && len(parsed.Find(all)) == 0 {
			continue
		}
		one, err := onePod(parsed, all)
		if err != nil {
			return nil, err
		}
		pods = append(pods, one)
	}
	return pods, nil
}

// readManifests reads the manifests of -f, prints their problems, and returns the exit code
// for the problems.
func (p *program) readManifests(ctx context.Context) (*podconfig.Merged, int, error) {
	state, _, err := p.readOnly(slog.LevelWarn).Manifests(ctx, nil)
	if err != nil {
		return nil, 0, err
	}
	return state, p.printProblems(state, true), nil
}

// podsOfFiles returns the existing pods of the manifests of -f. It reports missing pods, and
// returns the exit code for these and for code.
func (p *program) podsOfFiles(state *podconfig.Merged, code int, all []v1.Pod, ignore bool) ([]*v1.Pod, int) {
	here := map[pod.Key]*v1.Pod{}
	for i := range all {
		here[pod.KeyOf(&all[i])] = &all[i]
	}
	var pods []*v1.Pod
	for spec := range state.Pods.All() {
		switch it := here[spec.Key]; {
		case it != nil:
			pods = append(pods, it)
		case !ignore:
			p.say(p.err.Error("pod " + spec.Key.String() + " not found"))
			code = worst(code, exitFailure)
		}
	}
	return pods, code
}

// withWorkloads adds the pods of the workloads in the manifests of -f. It reports missing
// workloads, and returns the exit code for these and for code.
func (p *program) withWorkloads(ctx context.Context, c *client.Client, state *podconfig.Merged, pods []*v1.Pod, code int, here []v1.Pod, ignore bool) ([]*v1.Pod, int, error) {
	var workloads []*pod.Object
	for o := range state.Objects.All() {
		if pod.IsWorkload(o.Kind) {
			workloads = append(workloads, o)
		}
	}
	if len(workloads) == 0 {
		return pods, code, nil
	}
	all, err := p.workloads(ctx, c, "", false)
	if err != nil {
		return nil, code, err
	}
	for _, o := range workloads {
		k, _ := workloadKindOf(o.Kind)
		w, err := oneWorkload(all, k, o.Namespace, o.Name)
		if err != nil {
			if !ignore {
				p.say(p.err.Error(k.singular() + " " + o.Key.String() + " not found"))
				code = worst(code, exitFailure)
			}
			continue
		}
		its := podsOfWorkload(w, all, here)
		if len(its) == 0 {
			p.say(p.err.Notice(k.singular() + " " + o.Key.String() + " has no pod"))
		}
		pods = append(pods, its...)
	}
	return pods, code, nil
}

// sourcesPatience is how long desiredPods waits for the agent's set of desired pods.
const sourcesPatience = 2 * time.Second

// desiredPods returns the desired pods with the place of each manifest. If the agent does not
// answer in time, it returns the pods that it has received.
func desiredPods(ctx context.Context, c *client.Client) map[pod.Key]string {
	ctx, cancel := context.WithTimeout(ctx, sourcesPatience)
	defer cancel()
	all := map[pod.Key]string{}
	for line, err := range c.Lines(ctx, "/v1/updates", url.Values{"mode": {"snapshot"}, "max": {"1"}}) {
		var d ui.PodUpdate
		if err != nil || json.Unmarshal(line, &d) != nil {
			return all
		}
		for _, it := range d.Pods {
			from := d.Source + " " + it.Origin.File
			if d.Source == "*" {
				from = it.Origin.File
			}
			if it.Origin.Line > 0 {
				from += ":" + strconv.Itoa(it.Origin.Line)
			}
			all[pod.Key{Namespace: it.Namespace, Name: it.Name}] = from
		}
	}
	return all
}
