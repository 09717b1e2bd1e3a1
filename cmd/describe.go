package cmd

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/suggest"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) describeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe KIND NAME... | node",
		Short: "Show the details of pods, workloads, Services or the node",
		Long: `Show the details of pods, workloads, Services or the node: spec, status and the
latest events. Values of Secrets are not shown. Kinds are pod, deployment,
statefulset, daemonset, replicaset, job, cronjob, service and node.`,
		Example: `  nodectl describe pod web
  nodectl describe deployment/web
  nodectl describe node`,
		Args: cobra.ArbitraryArgs,
	}
	namespace := addNamespace(cmd, "the namespace of the pod or workload")
	selector := cmd.Flags().StringP("selector", "l", "", "only those with these labels, such as app=web")
	events := cmd.Flags().Bool("show-events", true, "also show events")
	word(cmd.Flags(), "selector", "LABELS")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 && !strings.Contains(word, "/") {
			words := []string{"pod", "service", "node"}
			for _, k := range workloadKinds() {
				words = append(words, k.singular())
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		kind, _, slash := strings.Cut(word, "/")
		if len(args) > 0 && !slash {
			kind = args[0]
		}
		if k, ok := workloadKindOf(kind); ok {
			prefix := ""
			if slash {
				prefix = kind + "/"
			}
			return p.workloadNames(cmd, k, prefix), cobra.ShellCompDirectiveNoFileComp
		}
		if len(args) > 0 && !slices.Contains(client.PodPrefixes(), args[0]) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return podWordsFor(p.podsNow(cmd), args, word), cobra.ShellCompDirectiveNoFileComp
	}
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, names, err := kindAndNames(args)
		if err != nil {
			return usage(cmd, err)
		}
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		if kind == "service" {
			return p.describeServices(cmd, c, *namespace, names, *events)
		}
		if kind == "node" {
			return p.describeNode(cmd, c, names, *events)
		}
		if k, ok := workloadKindOf(kind); ok {
			return p.describeWorkloads(cmd, c, k, *namespace, *selector, names, *events)
		}
		return p.describePods(cmd, c, *namespace, *selector, names, *events)
	}
	return cmd
}

// kindAndNames reads "pod NAME…" or "pod/NAME…".
func kindAndNames(args []string) (kind string, names []string, err error) {
	if len(args) == 0 {
		return "", nil, errors.New("describe needs a kind, such as pod, deployment, service or node")
	}
	kindOf := func(text string) (string, error) {
		switch {
		case slices.Contains(client.PodPrefixes(), text):
			return "pod", nil
		case slices.Contains([]string{"node", "nodes", "no"}, text):
			return "node", nil
		case slices.Contains(serviceWords(), text):
			return "service", nil
		}
		known := []string{"pod", "pods", "service", "services", "node", "nodes"}
		if k, ok := workloadKindOf(text); ok {
			return k.singular(), nil
		}
		for _, k := range workloadKinds() {
			known = append(known, k.words()...)
		}
		wrong := `unknown kind "` + text + `": describe shows pods, workloads, services and the node`
		if like := suggest.Similar(text, known); like != "" {
			wrong = `unknown kind "` + text + `" (did you mean "` + like + `"?)`
		}
		return "", errors.New(wrong)
	}
	if !strings.Contains(args[0], "/") {
		kind, err = kindOf(args[0])
		return kind, args[1:], err
	}
	for _, a := range args {
		before, name, _ := strings.Cut(a, "/")
		one, err := kindOf(before)
		switch {
		case err != nil:
			return "", nil, err
		case kind != "" && kind != one:
			return "", nil, errors.New("describe takes one kind at a time")
		}
		kind, names = one, append(names, name)
	}
	return kind, names, nil
}

func (p *program) describePods(cmd *cobra.Command, c *client.Client, namespace, selector string, names []string, events bool) error {
	ctx := cmd.Context()
	all, err := p.pods(ctx, c)
	if err != nil {
		return err
	}
	var pods []*v1.Pod
	if len(names) > 0 {
		if pods, err = p.podsNamed(all, namespace, names, false); err != nil {
			return err
		}
	} else {
		pick, err := client.NewPodSelector(namespace, selector, "", nil)
		if err != nil {
			return usage(cmd, err)
		}
		some, _ := pick.Select(all)
		for i := range some {
			pods = append(pods, &some[i])
		}
		if len(pods) == 0 {
			p.say(p.err.Notice("no pods on this node"))
		}
	}
	for i, it := range pods {
		var about []v1.Event
		known := false
		if events {
			about, err = eventsAbout(ctx, c, "Pod", it.Namespace, it.Name, string(it.UID))
			known = err == nil
		}
		if i > 0 {
			if err := p.out.print("\n\n"); err != nil {
				return err
			}
		}
		if err := p.out.print(ui.DescribePod(it, ui.ObjectEvents{Events: about, Available: known, Requested: events}, time.Now())); err != nil {
			return err
		}
	}
	return nil
}

// describeWorkloads describes the named workloads of one kind, or without names all that the
// selector matches.
func (p *program) describeWorkloads(cmd *cobra.Command, c *client.Client, k workloadKind, namespace, selector string, names []string, events bool) error {
	ctx := cmd.Context()
	labelled, err := labels.Parse(selector)
	switch {
	case err != nil:
		return usage(cmd, errors.New("--selector: "+err.Error()))
	case len(names) > 0 && selector != "":
		return usage(cmd, errors.New("either names or a selector"))
	}
	all, err := p.workloads(ctx, c, "", true)
	if err != nil {
		return err
	}
	var some []*ui.Workload
	for _, name := range names {
		one, err := oneWorkload(all, k, namespace, name)
		if err != nil {
			return err
		}
		some = append(some, one)
	}
	if len(names) == 0 {
		for i := range all {
			o := all[i].Object
			if all[i].Kind == k.kind && (namespace == "" || o.GetNamespace() == namespace) && labelled.Matches(labels.Set(o.GetLabels())) {
				some = append(some, &all[i])
			}
		}
		if len(some) == 0 {
			p.say(p.err.Notice("no " + k.plural + " on this node"))
		}
	}
	pods, err := c.Pods(ctx)
	if err != nil {
		return clientError(err)
	}
	for i, w := range some {
		happened := ui.ObjectEvents{Requested: events}
		if events {
			happened.Events, err = eventsAbout(ctx, c, w.Kind, w.Object.GetNamespace(), w.Object.GetName(), "")
			happened.Available = err == nil
		}
		text := ui.DescribeWorkload(w, podsOfWorkload(w, all, pods), all, happened, time.Now())
		if i > 0 {
			text = "\n\n" + text
		}
		if err := p.out.print(text); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) describeNode(cmd *cobra.Command, c *client.Client, names []string, events bool) error {
	ctx := cmd.Context()
	node, err := c.Node(ctx)
	if err != nil {
		return clientError(err)
	}
	for _, name := range names {
		if name != node.Name {
			return failed(exitFailure, errors.New("node "+name+" not found"), "this node is "+node.Name)
		}
	}
	pods, err := c.Pods(ctx)
	if err != nil {
		return clientError(err)
	}
	happened := ui.ObjectEvents{Requested: events}
	if events {
		happened.Events, err = eventsAbout(ctx, c, "Node", "", node.Name, "")
		happened.Available = err == nil
	}
	return p.out.print(ui.DescribeNode(node, pods, happened, time.Now()))
}
