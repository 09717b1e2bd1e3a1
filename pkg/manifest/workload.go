package manifest

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// The limits of pods. A few lines of a manifest could ask for any number, and fill the node's memory.
const (
	maxWorkloadPods = 1_000  // of one workload
	maxFilePods     = 10_000 // of all workloads of a file
)

// workload reads a workload. It validates the workload with the API's defaults, but keeps it without
// them. So only a change of the manifest makes a new revision: no pod is replaced because a later version
// of nodectl has other defaults.
func (r *reader) workload(o object) {
	key, named := r.key(o)
	if named && r.isDuplicate(o, key) {
		return
	}
	w, problems := r.workloadIn(o, key)
	if len(problems) > 0 {
		r.reject(o, o.atMost(problems)...)
		return
	}
	r.out.Objects = append(r.out.Objects, w)
}

// workloadIn returns the workload in o, or all its problems.
func (r *reader) workloadIn(o object, key pod.Key) (*pod.Object, []pod.Problem) {
	into := pod.NewWorkload(o.kind)
	problems, ok := r.decode(o, into, false)
	if !ok {
		return nil, problems
	}
	w := &pod.Object{Key: key, Kind: o.kind, Origin: r.origin(o), Object: into}
	template, at := w.Template()
	for _, u := range podspec.UnsupportedWorkload(o.kind, into) {
		problems = append(problems, o.problem(u.Path, u.Msg, u.Hint))
	}
	p := templatePod(key, template)
	for _, u := range r.identityProblems(p) {
		problems = append(problems, o.problem(at+"."+u.Path, u.Msg, u.Hint))
	}
	n, path := podsOf(into)
	if what := r.tooManyPods(n); what != "" {
		problems = append(problems, o.problem(path, what, ""))
	}
	for _, ref := range pod.Refs(p) {
		if w.Positions == nil {
			w.Positions = map[string]pod.Position{}
		}
		line, col := o.at.find(at + "." + ref.Path)
		w.Positions[ref.Path] = pod.Position{Line: line, Column: col}
	}
	ignored := podspec.IgnoredWorkload(o.kind, into)
	meta := into.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	for name, what := range pod.RollbackProblems(o.kind, meta.Annotations) {
		hint := "a version that fails is rolled back with " + pod.AnnotationRollback + ": " + pod.RollbackOnFailure
		if name == pod.AnnotationRelease {
			hint = "" // the problem names the remedy
		}
		problems = append(problems, o.problem("metadata.annotations["+name+"]", what, hint))
	}
	tidy(meta)
	found := validateWorkload(into.(runtime.Object).DeepCopyObject())
	for i, f := range found {
		if strings.HasPrefix(f.Path, at+".metadata.labels[") && !o.at.written(f.Path) {
			found[i].Path = "metadata.name" // the label is made from the name
		}
	}
	problems = o.uncovered(problems, found, template.Spec.HostNetwork)
	removeServerFields(into, meta, o.kind)
	w.Hash = workloadHash(into, meta)
	if len(problems) == 0 {
		r.filePods += n
		r.notices(o, ignored)
	}
	return w, problems
}

// uncovered returns problems, and those of more whose fields have no problem yet.
func (o object) uncovered(problems, more []pod.Problem, hostNetwork bool) []pod.Problem {
	found := paths{}
	for _, p := range problems {
		found[p.Path] = true
	}
	for _, p := range more {
		if hostNetwork && strings.HasSuffix(p.Path, ".hostPort") && !o.at.written(p.Path) {
			continue // it was defaulted from the containerPort, which has the same problem
		}
		if !found.covers(o.path + p.Path) {
			problems = append(problems, o.problem(p.Path, p.Msg, p.Hint))
			found[o.path+p.Path] = true
		}
	}
	return problems
}

// templatePod returns a pod with the content of a workload's template, which it shares.
func templatePod(key pod.Key, t *v1.PodTemplateSpec) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: cmp.Or(key.Name, "pod"), Labels: t.Labels, Annotations: t.Annotations},
		Spec:       t.Spec,
	}
}

// removeServerFields removes the fields that only an API server or a controller sets, and sets the kind.
func removeServerFields(w any, meta *metav1.ObjectMeta, kind string) {
	w.(runtime.Object).GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(versionOf(kind), kind))
	meta.UID, meta.OwnerReferences = "", nil
	reflect.ValueOf(w).Elem().FieldByName("Status").SetZero()
}

// workloadHash returns the hash of the labels, annotations and spec in the manifest of a workload.
func workloadHash(w any, meta *metav1.ObjectMeta) string {
	content := map[string]any{"spec": reflect.ValueOf(w).Elem().FieldByName("Spec").Interface()}
	if len(meta.Labels) > 0 {
		content["labels"] = meta.Labels
	}
	if len(meta.Annotations) > 0 {
		content["annotations"] = meta.Annotations
	}
	return podspec.HashObject(content)
}

// podsOf returns how many pods a workload asks for at the same time, and the path of the field that
// decides this.
func podsOf(w any) (int, string) {
	switch w := w.(type) {
	case *appsv1.Deployment:
		return countOr1(w.Spec.Replicas), "spec.replicas"
	case *appsv1.ReplicaSet:
		return countOr1(w.Spec.Replicas), "spec.replicas"
	case *appsv1.StatefulSet:
		return countOr1(w.Spec.Replicas), "spec.replicas"
	case *batchv1.Job:
		return jobPods(&w.Spec), "spec.parallelism"
	case *batchv1.CronJob:
		return jobPods(&w.Spec.JobTemplate.Spec), "spec.jobTemplate.spec.parallelism"
	}
	return 1, "spec"
}

func jobPods(j *batchv1.JobSpec) int {
	n := countOr1(j.Parallelism)
	if j.Completions != nil {
		n = min(n, countOr1(j.Completions))
	}
	return n
}

func countOr1(n *int32) int { return max(0, int(ptr.Deref(n, 1))) }

// tooManyPods returns why the file cannot have n more pods, "" if it can.
func (r *reader) tooManyPods(n int) string {
	switch {
	case n > maxWorkloadPods:
		return fmt.Sprintf("%d pods are too many: a workload may have at most %d at the same time", n, maxWorkloadPods)
	case r.filePods+n > maxFilePods:
		return fmt.Sprintf("too many pods: the workloads of a file may have at most %d at the same time", maxFilePods)
	}
	return ""
}
