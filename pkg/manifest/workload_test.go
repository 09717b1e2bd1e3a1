package manifest

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// deployment is a Deployment with these parts in its metadata and spec.
func deployment(name, meta, spec string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %s%s}
spec:
  %s
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: web
        envFrom: [{configMapRef: {name: conf}}]
`, name, meta, spec)
}

// workload reads a file that is one workload.
func workload(t *testing.T, text string) *pod.Object {
	t.Helper()
	f, _ := Parse([]byte(text), options("w.yaml"))
	if len(f.Problems) > 0 || len(f.Objects) != 1 {
		t.Fatalf("%d objects, problems %v", len(f.Objects), f.Problems)
	}
	return f.Objects[0]
}

// TestParse_Workload_IsKeptWithoutDefaults: the object is the author's, without the additions of an
// API server or a controller.
func TestParse_Workload_IsKeptWithoutDefaults(t *testing.T) {
	t.Parallel()
	const server = `, uid: u, resourceVersion: "3", generation: 2, creationTimestamp: "2026-03-01T10:00:00Z", ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: x}]`
	o := workload(t, deployment("web", server, "paused: true")+"status: {replicas: 3}\n")
	d, is := o.Object.(*appsv1.Deployment)
	if !is || o.Kind != pod.KindDeployment || o.Key != (pod.Key{Namespace: "default", Name: "web"}) || o.Origin.Line != 1 {
		t.Fatalf("%+v", o)
	}
	if d.Kind != "Deployment" || d.APIVersion != "apps/v1" || d.Namespace != "default" || !d.Spec.Paused {
		t.Errorf("%+v", d)
	}
	if d.UID != "" || d.ResourceVersion != "" || d.Generation != 0 || !d.CreationTimestamp.IsZero() || d.OwnerReferences != nil || d.Status.Replicas != 0 {
		t.Errorf("bookkeeping stays: %+v", d.ObjectMeta)
	}
	if d.Spec.Replicas != nil || d.Spec.Strategy.Type != "" || d.Spec.Template.Spec.RestartPolicy != "" || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != "" {
		t.Errorf("defaults: %+v", d.Spec)
	}
	j := workload(t, "apiVersion: batch/v1\nkind: Job\nmetadata: {name: once}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: a}]}}}\n").Object.(*batchv1.Job)
	if j.Spec.Selector != nil || j.Spec.Template.Labels != nil || j.Labels != nil || j.Spec.Completions != nil || j.UID != "" {
		t.Errorf("a generated selector: %+v", j)
	}
}

// TestParse_Workload_HashCoversWhatItsAuthorWrote: labels, annotations and the spec. It covers
// neither the form of the text nor the additions of a server.
func TestParse_Workload_HashCoversWhatItsAuthorWrote(t *testing.T) {
	t.Parallel()
	same, other := workload(t, deployment("web", "", "replicas: 2")).Hash, map[string]string{
		"label":      deployment("web", ", labels: {a: b}", "replicas: 2"),
		"annotation": deployment("web", ", annotations: {a: b}", "replicas: 2"),
		"replicas":   deployment("web", "", "replicas: 3"),
		"image":      strings.Replace(deployment("web", "", "replicas: 2"), "image: web", "image: web:2", 1),
	}
	for name, text := range map[string]string{
		"comments":   "# a comment\n" + deployment("web", "", "replicas: 2"),
		"a server's": deployment("web", `, uid: u, resourceVersion: "3"`, "replicas: 2") + "status: {replicas: 1}\n",
		"empty":      deployment("web", ", labels: {}", "minReadySeconds: 0\n  replicas: 2"),
		"as JSON":    jsonOf(t, deployment("web", "", "replicas: 2")),
	} {
		if got := workload(t, text).Hash; got != same {
			t.Errorf("%s: another hash", name)
		}
	}
	for name, text := range other {
		if workload(t, text).Hash == same {
			t.Errorf("%s: the same hash", name)
		}
	}
}

// TestParse_Workload_KnowsWhereItsReferencesAre: a pod of the workload that lacks an object names
// the line in the template.
func TestParse_Workload_KnowsWhereItsReferencesAre(t *testing.T) {
	t.Parallel()
	o := workload(t, deployment("web", "", "replicas: 1"))
	if got, want := o.Positions["spec.containers[0].envFrom[0].configMapRef"], (pod.Position{Line: 13, Column: 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestParse_WorkloadsOfAFile_AskForABoundedNumberOfPods: a small text that asks for many pods
// does not fill the memory.
//
// Shows: F46
func TestParse_WorkloadsOfAFile_AskForABoundedNumberOfPods(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range maxFilePods/maxWorkloadPods + 2 {
		b.WriteString("---\n" + deployment(fmt.Sprint("web", i), "", fmt.Sprint("replicas: ", maxWorkloadPods)))
	}
	f, _ := Parse([]byte(b.String()), options("w.yaml"))
	if len(f.Objects) != maxFilePods/maxWorkloadPods || len(f.Problems) != 2 || len(f.BrokenObjects) != 2 || f.Incomplete {
		t.Errorf("%d objects, problems %v", len(f.Objects), f.Problems)
	}
	for _, p := range f.Problems {
		if p.Path != "spec.replicas" || p.Line == 0 || !strings.Contains(p.Msg, fmt.Sprint(maxFilePods)) {
			t.Errorf("%+v", p)
		}
	}
	for replicas, want := range map[int]int{0: 1, maxWorkloadPods: 1, maxWorkloadPods + 1: 0, 1<<31 - 1: 0} {
		if f, _ := Parse([]byte(deployment("web", "", fmt.Sprint("replicas: ", replicas))), options("w.yaml")); len(f.Objects) != want {
			t.Errorf("%d replicas: %d objects, problems %v", replicas, len(f.Objects), f.Problems)
		}
	}
}

// A pod template has a bounded number of ports, as a pod: validation compares each with each.
func TestParse_TemplateHasTooManyPorts_IsOneProblemOfTheField(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(deployment("web", "", "replicas: 1") + "        ports:\n")
	for i := range pod.MaxPorts + 1 {
		fmt.Fprintf(&b, "        - {containerPort: %d}\n", i+1)
	}
	f, _ := Parse([]byte(b.String()), options("w.yaml"))
	if len(f.Problems) != 1 || f.Problems[0].Path != "spec.template.spec.containers[0].ports" || f.Problems[0].Line != 14 {
		t.Errorf("%+v", f.Problems)
	}
}

// TestPodsOf_EveryKind_CountsItsPods: the largest number of pods at the same time.
func TestPodsOf_EveryKind_CountsItsPods(t *testing.T) {
	t.Parallel()
	n := func(i int32) *int32 { return &i }
	for name, c := range map[string]struct {
		w    any
		want int
	}{
		"default":             {&appsv1.Deployment{}, 1},
		"replicas":            {&appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: n(4)}}, 4},
		"fewer than none":     {&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: n(-4)}}, 0},
		"one per node":        {&appsv1.DaemonSet{}, 1},
		"parallelism":         {&batchv1.Job{Spec: batchv1.JobSpec{Parallelism: n(7)}}, 7},
		"few completions":     {&batchv1.Job{Spec: batchv1.JobSpec{Parallelism: n(7), Completions: n(3)}}, 3},
		"one after the other": {&batchv1.Job{Spec: batchv1.JobSpec{Completions: n(3)}}, 1},
		"of a CronJob":        {&batchv1.CronJob{Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Parallelism: n(2)}}}}, 2},
	} {
		if got, _ := podsOf(c.w); got != c.want {
			t.Errorf("%s: %d", name, got)
		}
	}
}
