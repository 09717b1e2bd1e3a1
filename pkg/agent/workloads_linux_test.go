package agent

import (
	"context"
	"iter"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/workload"
)

// TestResultOf_Goals: how a run to a goal decides about workloads.
func TestResultOf_Goals(t *testing.T) {
	t.Parallel()
	of := func(kind string, o, status any, pods ...string) controller.Workload {
		w := controller.Workload{Object: &pod.Object{Kind: kind, Key: pod.Key{Namespace: "d", Name: "w"}, Object: o}, Decision: workload.Decision{Status: status}}
		for _, name := range pods {
			w.Pods = append(w.Pods, workload.Pod{Spec: &pod.Spec{Key: pod.Key{Namespace: "d", Name: name}}})
		}
		return w
	}
	deployment := func(updated, available int32) controller.Workload {
		return of(pod.KindDeployment, &appsv1.Deployment{}, &appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: updated, AvailableReplicas: available}, "a")
	}
	job := func(status batchv1.JobStatus) controller.Workload {
		return of(pod.KindJob, &batchv1.Job{}, &status, "a")
	}
	failed := batchv1.JobStatus{Failed: 1, Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: v1.ConditionTrue, Reason: "BackoffLimitExceeded"}}}
	done := batchv1.JobStatus{Succeeded: 1, Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: v1.ConditionTrue}}}
	for name, c := range map[string]struct {
		w     controller.Workload
		until engine.Until
		pod   string // the result of its pod
		want  string
	}{
		"available":                              {deployment(1, 1), engine.UntilRunning, feed.ResultRunning, feed.ResultReady},
		"available, until done":                  {deployment(1, 1), engine.UntilDone, "", feed.ResultReady},
		"running":                                {deployment(1, 0), engine.UntilRunning, feed.ResultRunning, feed.ResultRunning},
		"running, until ready":                   {deployment(1, 0), engine.UntilReady, feed.ResultReady, ""},
		"its pods are of an older version":       {deployment(0, 1), engine.UntilRunning, feed.ResultRunning, ""},
		"its pod has not started":                {deployment(1, 0), engine.UntilRunning, "", ""},
		"its pod is rejected":                    {deployment(1, 0), engine.UntilReady, feed.ResultRejected, feed.ResultRejected},
		"its pod cannot start":                   {deployment(1, 0), engine.UntilReady, feed.ResultFailed, feed.ResultFailed},
		"a Job that runs":                        {job(batchv1.JobStatus{Active: 1}), engine.UntilRunning, feed.ResultRunning, feed.ResultRunning},
		"a Job that runs, until done":            {job(batchv1.JobStatus{Active: 1}), engine.UntilDone, "", ""},
		"a pod of a Job failed, and others come": {job(batchv1.JobStatus{Failed: 1}), engine.UntilDone, feed.ResultFailed, ""},
		"a Job that has failed":                  {job(failed), engine.UntilRunning, feed.ResultFailed, feed.ResultFailed},
		"a Job that has completed":               {job(done), engine.UntilDone, feed.ResultDone, feed.ResultDone},
	} {
		pods := map[pod.Key]feed.PodReport{{Namespace: "d", Name: "a"}: {Result: c.pod}}
		if got := resultOf(c.w, c.until, pods); got.Result != c.want {
			t.Errorf("%s: %q, want %q", name, got.Result, c.want)
		}
	}
}

// answering is a source that answers once.
type answering source.File

func (answering) Name() string { return "file:/m" }

func (a answering) Sets(context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		yield(source.Snapshot{Revision: 1, Files: source.FilesOf(source.File(a))}, nil)
	}
}

// TestResults_PodIsNotInTheSet_WorkloadIsRejected: a run to a goal does not wait for a pod that names
// a missing ConfigMap, or that lost its name to another pod.
func TestResults_PodIsNotInTheSet_WorkloadIsRejected(t *testing.T) {
	t.Parallel()
	const set = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web}\nspec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: NAME}}]}]}}}\n"
	const config = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: there}\n"
	const node = "0" // so the other pod is web-0, too
	const another = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n"
	for name, c := range map[string]struct{ object, more, want, why string }{
		"the ConfigMap exists":     {"there", "", "", ""},
		"the ConfigMap is missing": {"missing", "", feed.ResultRejected, `pod web-0: no file source defines configmap "missing"`},
		"another pod has the name": {"there", another, feed.ResultRejected, "has a pod of this name"},
	} {
		f, problems := manifest.Parse([]byte(strings.ReplaceAll(set, "NAME", c.object)+config+c.more), manifest.Options{Node: node, Source: "file", Location: "/m", File: "/m/web.yaml", Static: true})
		if len(f.Objects) != 2 {
			t.Fatal(problems, f.Problems)
		}
		sources := podconfig.New(podconfig.Config{Sources: []source.Source{answering(f)}})
		sources.Once(t.Context())
		w := onceWorkloads{controller.New(controller.Config{Node: node, Live: true}), sources}
		next, stop := iter.Pull(w.Batches(t.Context()))
		b, _ := next()
		got := w.Results(engine.UntilReady, b.State, nil)
		if len(got) != 1 || got[0].Result != c.want || !strings.Contains(got[0].Message, c.why) {
			t.Errorf("%s: %+v", name, got)
		}
		stop()
		w.Close()
	}
}
