package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

// pollInterval is the time between two requests for a state that the agent does not stream.
const pollInterval = 200 * time.Millisecond

// errWaited is the error of a timeout.
var errWaited = errors.New("timed out")

type waitFlags struct {
	endpoint  *endpoint
	namespace *string
	goal      string
	timeout   time.Duration
	selector  string
	all       bool
}

func (p *program) waitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait POD... | -f PATH --for=CONDITION",
		Short: "Wait for a condition of pods",
		Long: `Wait until every named pod meets --for. After --timeout, exit with code 4.
  condition=Ready        a condition is True; condition=Ready=false: it is False
  jsonpath={.x}=VALUE    a field has this value; jsonpath={.x}: it has any value
  create, delete         the pod exists, no longer exists
node/NAME and workloads, such as deployment/NAME, wait for a condition or a
field of theirs. With -f, wait for every pod and workload of these manifests.`,
		Example: `  nodectl wait web --for=condition=Ready --timeout 60s
  nodectl wait -l app=web --for=delete
  nodectl wait deployment/web --for=condition=Available
  nodectl wait -f manifests/ --for=condition=Available --timeout 2m
  nodectl wait pod/job --for=jsonpath='{.status.phase}'=Succeeded`,
		Args: cobra.ArbitraryArgs,
	}
	f := &waitFlags{}
	f.namespace = addNamespace(cmd, "the namespace of the pods")
	p.addSettings(cmd.Flags(), []string{"filename", "recursive", "validate"})
	fl := cmd.Flags()
	fl.StringVar(&f.goal, "for", "", "condition=…, jsonpath=…, create or delete")
	fl.DurationVar(&f.timeout, "timeout", 30*time.Second, "exit with code 4 after this time; 0 means never")
	fl.StringVarP(&f.selector, "selector", "l", "", "every pod with these labels, such as app=web")
	fl.BoolVar(&f.all, "all", false, "every pod of this node, or of -n")
	word(fl, "for", "CONDITION")
	word(fl, "selector", "LABELS")
	complete(cmd, "for", "condition=Ready", "condition=Initialized", "condition=ContainersReady", "condition=Available", "condition=Complete", "create", "delete", "jsonpath=")
	cmd.ValidArgsFunction = p.completePods(true)
	f.endpoint = p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error { return p.wait(cmd, f, names) }
	return cmd
}

func (p *program) wait(cmd *cobra.Command, f *waitFlags, names []string) error {
	files := cmd.Flags().Changed("filename")
	g, err := parseGoal(f.goal)
	switch {
	case err != nil:
		return usage(cmd, err)
	case f.timeout < 0:
		return usage(cmd, errors.New("--timeout: must not be negative"))
	case files && (len(names) > 0 || f.selector != "" || f.all):
		return usage(cmd, errors.New("either -f, or pods, -l or --all"))
	case files && *f.namespace != "":
		return usage(cmd, errors.New("-n and -f exclude each other: the manifests have their namespaces"))
	case !files && len(names) == 0 && f.selector == "" && !f.all:
		return usage(cmd, errors.New("wait needs pods, -f, -l or --all"))
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, errWaited)
		defer cancel()
	}
	if files {
		return p.waitFiles(ctx, c, g)
	}
	if kind, name, ok := cutKind(names, "node", "nodes", "no"); ok {
		return p.waitEnd(p.waitNode(ctx, c, g, name), []string{kind + "/" + name})
	}
	if ofWorkloads(names) {
		refs, err := workloadRefs(names, pod.WorkloadKinds()...)
		if err != nil {
			return usage(cmd, err)
		}
		left, err := p.waitWorkloads(ctx, c, g, *f.namespace, refs)
		return p.waitEnd(err, left)
	}
	pick, err := client.NewPodSelector(*f.namespace, f.selector, "", names)
	if err != nil {
		return usage(cmd, err)
	}
	left, err := p.waitPods(ctx, c, g, pick)
	return p.waitEnd(err, left)
}

// waitFiles waits for the pods and workloads of the manifests of -f. Other objects have no status.
func (p *program) waitFiles(ctx context.Context, c *client.Client, g goal) error {
	state, code, err := p.readManifests(ctx)
	if err != nil {
		return err
	}
	var names []string
	for spec := range state.Pods.All() {
		names = append(names, spec.Key.String())
	}
	var refs []workloadRef
	for o := range state.Objects.All() {
		if k, is := workloadKindOf(o.Kind); is {
			refs = append(refs, workloadRef{k, o.Key.String()})
		}
	}
	if len(names)+len(refs) == 0 {
		return failed(worst(code, exitFailure), errors.New("no pod and no workload in the manifests of -f"))
	}
	if len(names) > 0 {
		pick, err := client.NewPodSelector("", "", "", names)
		if err != nil {
			return failed(exitFailure, err)
		}
		left, err := p.waitPods(ctx, c, g, pick)
		if err != nil {
			return p.waitEnd(err, append(left, refNames(refs)...))
		}
	}
	left, err := p.waitWorkloads(ctx, c, g, "", refs)
	if err != nil {
		return p.waitEnd(err, left)
	}
	return ended(code)
}

// cutKind reads one KIND/NAME. kinds are the words for one kind, the first one its name.
func cutKind(args []string, kinds ...string) (kind, name string, ok bool) {
	if len(args) != 1 {
		return "", "", false
	}
	before, name, ok := strings.Cut(args[0], "/")
	return kinds[0], name, ok && slices.Contains(kinds, before)
}

// waitEnd returns the error of the command. After a timeout it reports the objects in left, which
// have not met the condition.
func (p *program) waitEnd(err error, left []string) error {
	if errors.Is(err, errWaited) {
		for _, l := range left {
			p.say(p.err.Error("timed out waiting for the condition on " + l))
		}
		return ended(exitTimeout)
	}
	return clientError(err)
}

// goal is the state that wait waits for.
type goal struct {
	kind  string // condition, jsonpath, create, delete
	name  string // of the condition, or the path
	value string
	any   bool // jsonpath: any value
	path  *ui.Path
}

func parseGoal(text string) (g goal, err error) {
	kind, rest, _ := strings.Cut(text, "=")
	switch {
	case text == "":
		return g, errors.New("--for is required, such as --for=condition=Ready")
	case text == "delete", text == "create":
		return goal{kind: text}, nil
	case kind == "condition" && rest != "":
		name, value, _ := strings.Cut(rest, "=")
		return goal{kind: kind, name: name, value: cmp.Or(value, "true")}, nil
	case kind == "jsonpath" && rest != "":
		path, value, given := strings.Cut(rest, "=")
		if end := strings.LastIndex(rest, "}"); end >= 0 {
			path = rest[:end+1]
			value, given = strings.CutPrefix(rest[end+1:], "=")
		}
		if given && value == "" {
			return g, errors.New("--for jsonpath: the value after = is empty")
		}
		g = goal{kind: kind, name: path, value: value, any: !given}
		g.path, err = ui.ParsePath(path)
		return g, err
	}
	return g, errors.New("--for " + text + " is not condition=NAME, jsonpath={PATH}=VALUE, create or delete")
}

// met reports whether an object has reached the goal.
func (g goal) met(object any, conditions iter.Seq2[string, string]) bool {
	switch g.kind {
	case "create":
		return true
	case "jsonpath":
		value, ok := g.path.Of(object)
		return ok && (g.any || value == g.value)
	case "condition":
		for name, value := range conditions {
			if strings.EqualFold(name, g.name) {
				return strings.EqualFold(value, g.value)
			}
		}
	}
	return false
}

func (g goal) podMet(it *v1.Pod) bool {
	return g.met(it, func(yield func(string, string) bool) {
		for _, c := range it.Status.Conditions {
			if !yield(string(c.Type), string(c.Status)) {
				return
			}
		}
	})
}

// waitPods waits for pods, and prints each pod that reaches the goal. left are the other pods.
func (p *program) waitPods(ctx context.Context, c *client.Client, g goal, k client.PodSelector) (left []string, err error) {
	all, err := c.Pods(ctx)
	for client.IsRefused(err, http.StatusServiceUnavailable) && ctx.Err() == nil { // the agent has just started, or is stopping
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
		}
		all, err = c.Pods(ctx)
	}
	if ctx.Err() != nil {
		return k.Given, context.Cause(ctx)
	}
	if err != nil {
		return k.Given, err
	}
	there, missing := k.Select(all)
	if g.kind == "condition" || g.kind == "jsonpath" {
		if len(missing) > 0 {
			return nil, failed(exitFailure, errors.New("pod "+missing[0]+" not found"), "--for=create waits until it exists")
		}
		if len(there) == 0 {
			return nil, failed(exitFailure, errors.New("no pod has these labels"))
		}
	}
	w := waiting{p: p, goal: g, pick: k, open: map[string]string{}}
	switch g.kind {
	case "create":
		for _, name := range k.Given {
			w.open[name] = "pods/" + name
		}
		if len(k.Given) == 0 {
			w.open[""] = "pods"
		}
	default:
		for i := range there {
			w.open[string(there[i].UID)] = "pods/" + there[i].Name
		}
	}
	for i := range there {
		if err := w.check(&there[i], false); err != nil {
			return nil, err
		}
	}
	if len(w.open) == 0 {
		return nil, nil
	}
	for change, err := range c.WatchPods(ctx, there) {
		if err == nil {
			err = w.check(change.Object, change.Type == "DELETED")
		}
		if err != nil || len(w.open) == 0 {
			return w.left(), err
		}
	}
	if ctx.Err() != nil {
		return w.left(), context.Cause(ctx)
	}
	return w.left(), failed(exitFailure, errors.New("the agent has stopped"))
}

// waiting is the state of a wait: the pods that have not reached the goal.
type waiting struct {
	p    *program
	goal goal
	pick client.PodSelector
	open map[string]string // pods/NAME by UID; for create, by the name that the user gave
}

func (w *waiting) left() (names []string) {
	for _, name := range w.open {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// check prints a pod that has reached the goal, and removes it from open. it is the pod's current
// state, or its last one if it is gone.
func (w *waiting) check(it *v1.Pod, gone bool) error {
	key := string(it.UID)
	if w.goal.kind == "create" {
		ok, i := w.pick.Matches(it)
		if !ok || gone {
			return nil
		}
		if key = ""; len(w.pick.Given) > 0 {
			key = w.pick.Given[i]
		}
	}
	if _, isOpen := w.open[key]; !isOpen {
		return nil
	}
	switch {
	case gone && w.goal.kind != "delete":
		return failed(exitFailure, errors.New("pod "+it.Name+" was deleted"))
	case gone || w.goal.kind != "delete" && w.goal.podMet(it):
		delete(w.open, key)
		return w.p.out.print("pod/" + ui.Clean(it.Name) + " condition met\n")
	}
	return nil
}

// waitNode waits until the node reaches the goal.
func (p *program) waitNode(ctx context.Context, c *client.Client, g goal, name string) error {
	if g.kind == "create" || g.kind == "delete" {
		return failed(exitUsage, errors.New("--for="+g.kind+" works only for pods"))
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		node, err := c.Node(ctx)
		switch {
		case err != nil:
			return err
		case node.Name != name:
			return failed(exitFailure, errors.New("node "+name+" not found"), "this node is "+node.Name)
		case g.met(node, func(yield func(string, string) bool) {
			for _, c := range node.Status.Conditions {
				if !yield(string(c.Type), string(c.Status)) {
					return
				}
			}
		}):
			return p.out.print(fmt.Sprintf("node/%s condition met\n", ui.Clean(name)))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
