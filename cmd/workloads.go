package cmd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/suggest"
	"github.com/nodectl/nodectl/pkg/ui"
)

// workloadKind is a kind of workload with its names on command lines.
type workloadKind struct {
	kind, plural, short string
}

func workloadKinds() []workloadKind {
	return []workloadKind{
		{pod.KindDeployment, "deployments", "deploy"},
		{pod.KindStatefulSet, "statefulsets", "sts"},
		{pod.KindDaemonSet, "daemonsets", "ds"},
		{pod.KindReplicaSet, "replicasets", "rs"},
		{pod.KindJob, "jobs", ""},
		{pod.KindCronJob, "cronjobs", "cj"},
	}
}

// singular returns "deployment".
func (k workloadKind) singular() string { return strings.ToLower(k.kind) }

// grouped returns the name with its group: "deployments.apps".
func (k workloadKind) grouped() string {
	group, _, _ := strings.Cut(pod.WorkloadAPIVersion(k.kind), "/")
	return k.plural + "." + group
}

// words returns all names of the kind.
func (k workloadKind) words() []string {
	group, _, _ := strings.Cut(pod.WorkloadAPIVersion(k.kind), "/")
	all := []string{k.plural, k.singular(), k.grouped(), k.singular() + "." + group}
	if k.short != "" {
		all = append(all, k.short)
	}
	return all
}

// workloadKindOf returns the kind that a word names.
func workloadKindOf(word string) (workloadKind, bool) {
	word = strings.ToLower(word)
	for _, k := range workloadKinds() {
		if slices.Contains(k.words(), word) {
			return k, true
		}
	}
	return workloadKind{}, false
}

// workloadRef is the kind and name of a workload in an argument.
type workloadRef struct {
	workloadKind
	name string
}

// workloadRefs reads "deployment web…" or "deployment/web…". Each kind must be one of allowed.
func workloadRefs(args []string, allowed ...string) ([]workloadRef, error) {
	var known []string
	for _, k := range workloadKinds() {
		if slices.Contains(allowed, k.kind) {
			known = append(known, k.words()...)
		}
	}
	kindOf := func(word string) (workloadKind, error) {
		k, ok := workloadKindOf(word)
		switch {
		case ok && slices.Contains(allowed, k.kind):
			return k, nil
		case ok:
			return k, errors.New("a " + k.singular() + " cannot do that: only " + kindList(allowed) + " can")
		}
		text := `unknown kind "` + word + `"`
		if like := suggest.Similar(word, known); like != "" {
			return k, errors.New(text + ` (did you mean "` + like + `"?)`)
		}
		return k, errors.New(text + ": give " + kindList(allowed))
	}
	if len(args) == 0 {
		return nil, errors.New("give a workload, such as " + strings.ToLower(allowed[0]) + "/web")
	}
	var refs []workloadRef
	if !strings.Contains(args[0], "/") {
		k, err := kindOf(args[0])
		switch {
		case err != nil:
			return nil, err
		case len(args) == 1:
			return nil, errors.New("give a name, such as " + k.singular() + "/web")
		}
		for _, name := range args[1:] {
			refs = append(refs, workloadRef{k, name})
		}
		return refs, nil
	}
	for _, a := range args {
		word, name, ok := strings.Cut(a, "/")
		k, err := kindOf(word)
		switch {
		case !ok || name == "":
			return nil, errors.New(a + " is not KIND/NAME, such as " + strings.ToLower(allowed[0]) + "/web")
		case err != nil:
			return nil, err
		}
		refs = append(refs, workloadRef{k, name})
	}
	return refs, nil
}

// kindList returns "deployment, statefulset or daemonset".
func kindList(kinds []string) string {
	var all []string
	for _, k := range kinds {
		all = append(all, strings.ToLower(k))
	}
	if len(all) == 1 {
		return all[0]
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// workloads returns the workloads of a kind, or all for "".
func (p *program) workloads(ctx context.Context, c *client.Client, kind string, history bool) ([]ui.Workload, error) {
	all, err := readWorkloads(ctx, c, kind, history)
	return all, clientError(err)
}

// readWorkloads does the same as workloads, and returns errors of the client unchanged.
func readWorkloads(ctx context.Context, c *client.Client, kind string, history bool) ([]ui.Workload, error) {
	var answer struct {
		Items []ui.Workload `json:"items"`
	}
	err := c.Workloads(ctx, kind, history, &answer)
	return answer.Items, err
}

// oneWorkload returns the workload with this name, which may be NAMESPACE/NAME. A namespace of ""
// matches any.
func oneWorkload(all []ui.Workload, k workloadKind, namespace, name string) (*ui.Workload, error) {
	if before, after, ok := strings.Cut(name, "/"); ok {
		if namespace != "" && namespace != before {
			return nil, failed(exitUsage, errors.New(name+" is not in the namespace of -n "+namespace))
		}
		namespace, name = before, after
	}
	var found []*ui.Workload
	for i := range all {
		o := all[i].Object
		if all[i].Kind == k.kind && o.GetName() == name && (namespace == "" || o.GetNamespace() == namespace) {
			found = append(found, &all[i])
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var names []string
		for _, w := range found {
			names = append(names, w.Object.GetNamespace())
		}
		return nil, failed(exitFailure, errors.New(k.singular()+" "+name+" is ambiguous: it is in the namespaces "+strings.Join(names, ", ")), "choose one with -n NAMESPACE")
	case namespace != "":
		return nil, failed(exitFailure, errors.New(k.singular()+" "+name+" not found in namespace "+namespace), "nodectl get "+k.plural+" lists them")
	}
	return nil, failed(exitFailure, errors.New(k.singular()+" "+name+" not found"), "nodectl get "+k.plural+" lists them")
}

// podsOfWorkload returns the pods of a workload; all are the workloads of every kind.
func podsOfWorkload(w *ui.Workload, all []ui.Workload, pods []v1.Pod) []*v1.Pod {
	owners := map[types.UID]bool{w.Object.GetUID(): true}
	for i := range all {
		if ref := metav1.GetControllerOfNoCopy(all[i].Object); ref != nil && ref.UID == w.Object.GetUID() {
			owners[all[i].Object.GetUID()] = true
		}
	}
	var its []*v1.Pod
	for i := range pods {
		if ref := metav1.GetControllerOfNoCopy(&pods[i]); ref != nil && owners[ref.UID] {
			its = append(its, &pods[i])
		}
	}
	return its
}

// workloadPod returns the pod that a command for one pod uses if the user names a workload, such as
// deployment/web. It prefers a ready pod, then a running one, then the oldest. ok is false if text
// names no workload.
func (p *program) workloadPod(ctx context.Context, c *client.Client, namespace, text string) (it *v1.Pod, ok bool, err error) {
	word, name, slash := strings.Cut(text, "/")
	k, known := workloadKindOf(word)
	if !slash || !known {
		return nil, false, nil
	}
	all, err := p.workloads(ctx, c, "", false)
	if err != nil {
		return nil, true, err
	}
	w, err := oneWorkload(all, k, namespace, name)
	if err != nil {
		return nil, true, err
	}
	pods, err := c.Pods(ctx)
	if err != nil {
		return nil, true, clientError(err)
	}
	its := podsOfWorkload(w, all, pods)
	if len(its) == 0 {
		return nil, true, failed(exitFailure, errors.New(k.singular()+" "+name+" has no pod"), "nodectl describe "+text+" shows why")
	}
	slices.SortStableFunc(its, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(podRank(a), podRank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if len(its) > 1 {
		p.say(p.err.Notice("found " + ui.Count(len(its), "pod") + ", using pod/" + its[0].Name))
	}
	return its[0], true, nil
}

// podRank orders pods: ready ones, running ones, then the others.
func podRank(it *v1.Pod) int {
	for _, c := range it.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return 0
		}
	}
	if it.Status.Phase == v1.PodRunning {
		return 1
	}
	return 2
}

// completeWorkloads completes KIND/NAME of these kinds.
func (p *program) completeWorkloads(kinds ...string) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		var words []string
		if !strings.Contains(word, "/") && (len(args) == 0 || strings.Contains(args[0], "/")) {
			for _, k := range workloadKinds() {
				if slices.Contains(kinds, k.kind) {
					words = append(words, k.singular()+"/")
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		kind, _, slash := strings.Cut(word, "/")
		if !slash && len(args) > 0 {
			kind = args[0]
		}
		k, ok := workloadKindOf(kind)
		if !ok || !slices.Contains(kinds, k.kind) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		prefix := ""
		if slash {
			prefix = kind + "/"
		}
		return p.workloadNames(cmd, k, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// workloadNames returns the names of the agent's workloads of a kind, or none if the agent does not
// answer in time.
func (p *program) workloadNames(cmd *cobra.Command, k workloadKind, prefix string) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	if cfg, _, err := p.load(); err == nil { // completion reads no configuration otherwise
		p.cfg = cfg
	}
	all, err := p.workloads(ctx, p.agent(), k.kind, false)
	if err != nil {
		return nil
	}
	var names []string
	for i := range all {
		names = append(names, prefix+ui.Clean(all[i].Object.GetName()))
	}
	return names
}
