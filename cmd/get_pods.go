package cmd

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

// podFlags are those of get pods.
type podFlags struct {
	*listing
	reach      *reach
	namespace  *string
	selector   string
	fields     string
	watch      bool
	watchOnly  bool
	watchTypes bool
}

func (p *program) getPodsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pods [NAME...]",
		Aliases: []string{"pod", "po"},
		Short:   "Show the pods of this node, of every namespace",
		Long: `Show the pods of this node: what its agent says, and where none runs, what the
runtime shows now and what the agent last reported. A name may be given with or
without the node's suffix.`,
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
	fl.StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, as app=web")
	fl.StringVar(&f.fields, "field-selector", "", "only pods with these fields, as status.phase=Running")
	fl.BoolVarP(&f.watch, "watch", "w", false, "then follow what changes")
	fl.BoolVar(&f.watchOnly, "watch-only", false, "only follow what changes")
	fl.BoolVar(&f.watchTypes, "output-watch-events", false, "with -w, say what happened: ADDED, MODIFIED, DELETED")
	word(fl, "selector", "LABELS")
	word(fl, "field-selector", "FIELDS")
	f.reach = p.addReach(cmd)
	cmd.ValidArgsFunction = p.completePods(true)
	cmd.RunE = func(cmd *cobra.Command, names []string) error { return p.getPods(cmd, f, names) }
	return cmd
}

func (p *program) getPods(cmd *cobra.Command, f podFlags, names []string) error {
	pick, err := newPick(*f.namespace, f.selector, f.fields, names)
	if err != nil {
		return usage(cmd, err)
	}
	c, err := f.reach.client()
	if err != nil {
		return err
	}
	if f.watch || f.watchOnly {
		return p.watchPods(cmd.Context(), c, f, pick)
	}
	pods, err := p.pods(cmd.Context(), c)
	if err != nil {
		return err
	}
	pods, missing := pick.of(pods)
	if f.sortBy != "" {
		if err := ui.Sort(pods, f.sortBy); err != nil {
			return failed(exitFailure, err)
		}
	}
	if len(pods) == 0 && len(names) == 0 && f.format.Table() {
		p.say(p.err.Notice("no pods on this node"))
	}
	now := time.Now()
	for i := range pods {
		pods[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	}
	err = show(p, f.listing, pods, len(names) == 1 && len(missing) == 0, ui.PodNames(pods),
		func(all []v1.Pod) any { return ui.PodList(all) }, func(all []v1.Pod) ui.Grid { return ui.PodGrid(all, f.columns, now) })
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

// pods returns every pod of the node: from its agent, or without one, from the journal
// and the runtime.
func (p *program) pods(ctx context.Context, c *client.Client) ([]v1.Pod, error) {
	pods, err := c.Pods(ctx)
	if err != nil && c.Local() && (client.IsAbsent(err) || client.IsRefused(err, http.StatusServiceUnavailable)) {
		return p.look(slog.LevelWarn).Pods(ctx) // no agent answers, or it has not read its pods yet
	}
	return pods, unanswered(err)
}

// watchPods prints pods as they are, then each change.
func (p *program) watchPods(ctx context.Context, c *client.Client, f podFlags, pick pick) error {
	ctx, stop := untilClosed(ctx, p.out.file)
	defer stop()
	flow := p.out.Flow(f.columns)
	there, err := c.Pods(ctx)
	if err != nil {
		return unanswered(err)
	}
	known := newKnown(there)
	first, _ := pick.of(there)
	if !f.watchOnly {
		if err := p.printChanges(f, flow, first, "ADDED"); err != nil {
			return err
		}
	}
	followed := false
	for change, err := range c.WatchPods(ctx, there) {
		if !followed && (client.IsAbsent(err) || client.IsRefused(err, http.StatusServiceUnavailable)) {
			break // the agent left after the list
		}
		if err != nil {
			return unanswered(err)
		}
		followed = true
		if ok, _ := pick.takes(change.Object); !ok || !known.news(change) {
			continue
		}
		if err := p.printChanges(f, flow, []v1.Pod{*change.Object}, change.Type); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		p.say(p.err.Notice("the agent has left; its pods stay"))
	}
	return nil
}

// known is the state of pods that a reader has seen, by UID.
type known map[string]string

func newKnown(pods []v1.Pod) known {
	k := known{}
	for i := range pods {
		k.news(client.Changed[*v1.Pod]{Type: "ADDED", Object: &pods[i]})
	}
	return k
}

// news reports whether a change is new to the reader: a watch begins with the existing
// pods.
func (k known) news(c client.Changed[*v1.Pod]) bool {
	uid := string(c.Object.UID)
	c.Object.TypeMeta = metav1.TypeMeta{}
	text, err := ui.JSONLine(c.Object)
	if c.Type == "DELETED" {
		delete(k, uid)
		return true
	}
	if err == nil && k[uid] == text {
		return false
	}
	k[uid] = text
	return true
}

// printChanges prints pods of a watch: lines of a table, or one JSON document a
// line.
func (p *program) printChanges(f podFlags, flow *ui.Flow, pods []v1.Pod, what string) error {
	if f.format.Table() {
		g := ui.PodGrid(pods, f.columns, time.Now())
		if f.watchTypes {
			g.Lead("EVENT", what)
		}
		return p.out.print(flow.Rows(g))
	}
	for i := range pods {
		pods[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		var d any = pods[i]
		if f.watchTypes {
			d = map[string]any{"type": what, "object": pods[i]}
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

// streamed returns one document of a stream: JSON on a line, YAML after a line of
// its own, a name, or what the template makes of it.
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

// pick selects pods.
type pick struct {
	names  []called
	given  []string
	space  string
	labels labels.Selector
	fields fields.Selector
}

func newPick(namespace, selector, fieldSelector string, names []string) (k pick, err error) {
	k.space, k.given = namespace, names
	if k.labels, err = labels.Parse(selector); err != nil {
		return k, errors.New("--selector: " + err.Error())
	}
	if k.fields, err = fields.ParseSelector(fieldSelector); err != nil {
		return k, errors.New("--field-selector: " + err.Error())
	}
	known := podFields(&v1.Pod{})
	for _, r := range k.fields.Requirements() {
		if _, ok := known[r.Field]; !ok {
			return k, errors.New("--field-selector: " + r.Field + ` is not one of metadata.name, metadata.namespace, spec.nodeName, spec.restartPolicy, spec.schedulerName, spec.serviceAccountName, status.phase, status.podIP`)
		}
	}
	if len(names) > 0 && (selector != "" || fieldSelector != "") {
		return k, errors.New("either names or a selector")
	}
	for _, n := range names {
		who, err := callsPod(n, namespace)
		if err != nil {
			return k, err
		}
		k.names = append(k.names, who)
	}
	return k, nil
}

// podFields returns the fields by which an API server selects pods.
func podFields(p *v1.Pod) fields.Set {
	return fields.Set{
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy),
		"spec.schedulerName": p.Spec.SchedulerName, "spec.serviceAccountName": p.Spec.ServiceAccountName, "status.phase": string(p.Status.Phase), "status.podIP": p.Status.PodIP,
	}
}

// takes reports whether k selects a pod, and by which of the names.
func (k pick) takes(p *v1.Pod) (ok bool, name int) {
	if k.space != "" && p.Namespace != k.space || !k.labels.Matches(labels.Set(p.Labels)) || !k.fields.Matches(podFields(p)) {
		return false, 0
	}
	for i, who := range k.names {
		if (who.namespace == "" || who.namespace == p.Namespace) && (p.Name == who.name || p.Name == who.name+"-"+strings.ToLower(p.Spec.NodeName)) {
			return true, i
		}
	}
	return len(k.names) == 0, 0
}

// of returns the selected pods, and the names without a pod.
func (k pick) of(all []v1.Pod) (pods []v1.Pod, missing []string) {
	found := make([]bool, len(k.names))
	for i := range all {
		ok, name := k.takes(&all[i])
		if !ok {
			continue
		}
		pods = append(pods, all[i])
		if len(found) > 0 {
			found[name] = true
		}
	}
	for i, name := range k.given {
		if !found[i] {
			missing = append(missing, name)
		}
	}
	return pods, missing
}
