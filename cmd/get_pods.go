package cmd

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

// podFlags are the flags of get pods.
type podFlags struct {
	*listing
	followFlags
	endpoint  *endpoint
	namespace *string
	selector  string
	fields    string
}

func (p *program) getPodsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pods [NAME...]",
		Aliases: []string{"pod", "po"},
		Short:   "Show the pods of this node, of every namespace",
		Long: `Show the pods of this node as the agent reports them. If no agent runs, show its
last report, updated from the runtime. A name may be given with or without the
node's suffix. A pod that waits for an image has the status Pulling:45%, or
Pulling:12s if the runtime reports no progress.`,
		Example: `  nodectl get pods
  nodectl get pods web -o yaml
  nodectl get pods -n kube-system -o wide
  nodectl get pods -l app=web -w
  nodectl get pod/web -o jsonpath='{.status.podIP}'`,
	}
	f := podFlags{listing: addListing(cmd)}
	f.addLabels(cmd)
	f.namespace = addNamespace(cmd, "only pods of this namespace")
	addAll(cmd)
	fl := cmd.Flags()
	fl.StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, such as app=web")
	fl.StringVar(&f.fields, "field-selector", "", "only pods with these fields, such as status.phase=Running")
	f.followFlags.add(cmd)
	word(fl, "selector", "LABELS")
	word(fl, "field-selector", "FIELDS")
	f.endpoint = p.addEndpoint(cmd)
	cmd.ValidArgsFunction = p.completePods(true)
	cmd.RunE = func(cmd *cobra.Command, names []string) error { return p.getPods(cmd, f, names) }
	return cmd
}

func (p *program) getPods(cmd *cobra.Command, f podFlags, names []string) error {
	pick, err := client.NewPodSelector(*f.namespace, f.selector, f.fields, names)
	if err != nil {
		return usage(cmd, err)
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	if f.follows() {
		return p.watchPods(cmd.Context(), c, f, pick)
	}
	pods, err := p.pods(cmd.Context(), c)
	if err != nil {
		return err
	}
	pods, missing := pick.Select(pods)
	if f.sortBy != "" {
		if err := ui.Sort(pods, f.sortBy); err != nil {
			return failed(exitFailure, err)
		}
	}
	if len(pods) == 0 && len(names) == 0 && f.format.Table() {
		p.say(p.err.Notice("no pods on this node"))
	}
	var pulls []ui.Pull
	if f.format.Table() {
		pulls = pullsFor(cmd.Context(), c, pods)
	}
	now := time.Now()
	for i := range pods {
		pods[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	}
	err = show(p, f.listing, pods, len(names) == 1 && len(missing) == 0, ui.PodNames(pods),
		func(all []v1.Pod) any { return ui.PodList(all) }, func(all []v1.Pod) ui.Grid { return ui.PullingPodGrid(all, pulls, f.columns, now) })
	if err != nil {
		return err
	}
	for _, name := range missing {
		p.say(p.err.Error("pod " + name + " not found"))
	}
	if len(missing) > 0 {
		return ended(exitFailure)
	}
	return nil
}

// pullsFor returns the image pulls of the agent of this machine if a pod may wait for one.
func pullsFor(ctx context.Context, c *client.Client, pods []v1.Pod) []ui.Pull {
	if !c.Local() || !slices.ContainsFunc(pods, ui.WaitsForImages) {
		return nil
	}
	var answer struct {
		Pulls []ui.Pull `json:"pulls"`
	}
	if c.Document(ctx, "/v1/pulls", nil, &answer) != nil {
		return nil
	}
	return answer.Pulls
}

// pods returns every pod of the node: from its agent, or without one, from the journal
// and the runtime.
func (p *program) pods(ctx context.Context, c *client.Client) ([]v1.Pod, error) {
	pods, err := c.Pods(ctx)
	if err != nil && c.Local() && (client.IsAbsent(err) || client.IsRefused(err, http.StatusServiceUnavailable)) {
		return p.readOnly(slog.LevelWarn).Pods(ctx) // no agent answers, or it has not read its pods yet
	}
	return pods, clientError(err)
}

// watchPods prints the current pods, then each change.
func (p *program) watchPods(ctx context.Context, c *client.Client, f podFlags, pick client.PodSelector) error {
	ctx, stop := untilClosed(ctx, p.out.file)
	defer stop()
	flow := p.out.Flow(f.columns)
	there, err := c.Pods(ctx)
	if err != nil {
		return clientError(err)
	}
	states := client.NewPodStates(there)
	first, _ := pick.Select(there)
	if !f.watchOnly {
		if err := p.printChanges(f, flow, first, "ADDED"); err != nil {
			return err
		}
	}
	followed := false
	for change, err := range c.WatchPods(ctx, there) {
		if !followed && (client.IsAbsent(err) || client.IsRefused(err, http.StatusServiceUnavailable)) {
			break // the agent ended after the list
		}
		if err != nil {
			return clientError(err)
		}
		followed = true
		if ok, _ := pick.Matches(change.Object); !ok || !states.IsNew(change) {
			continue
		}
		if err := p.printChanges(f, flow, []v1.Pod{*change.Object}, change.Type); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		p.say(p.err.Notice("the agent has stopped; its pods keep running"))
	}
	return nil
}

// printChanges prints pods of a watch with the type of their change: rows of a table, or
// documents.
func (p *program) printChanges(f podFlags, flow *ui.Flow, pods []v1.Pod, kind string) error {
	if f.format.Table() {
		g := ui.PodGrid(pods, f.columns, time.Now())
		if f.watchTypes {
			g.Lead("EVENT", kind)
		}
		return p.out.print(flow.Rows(g))
	}
	for i := range pods {
		pods[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		var d any = pods[i]
		if f.watchTypes {
			d = map[string]any{"type": kind, "object": pods[i]}
		}
		text, err := streamed(f.format, d, ui.PodNames(pods[i:i+1]))
		if err != nil {
			return failed(exitFailure, err)
		}
		if err := p.out.print(text); err != nil {
			return err
		}
	}
	return nil
}

// streamed returns one document of a stream: a line of JSON, YAML after a separator, a name, or
// the output of the template.
func streamed(f ui.Format, d any, name string) (string, error) {
	switch f.Kind {
	case "json":
		return ui.JSONLine(d)
	case "yaml":
		text, err := ui.YAML(d)
		return "---\n" + text, err
	case "name":
		return name, nil
	}
	return f.Render(d)
}
