package controller

import (
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

func TestProgress(t *testing.T) {
	t.Parallel()
	two := ptr.To[int32](2)
	deployment := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: two}}
	set := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: two}}
	held := set.DeepCopy()
	held.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](1)}
	manual := set.DeepCopy()
	manual.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	late := []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: v1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: "late"}}
	ended := func(kind batchv1.JobConditionType) []batchv1.JobCondition {
		return []batchv1.JobCondition{{Type: kind, Status: v1.ConditionTrue, Reason: "BackoffLimitExceeded", Message: "too many"}}
	}
	for name, c := range map[string]struct {
		object, status any
		want           Progress
	}{
		"not decided yet": {object: deployment},
		"a Deployment that begins": {
			deployment, &appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 1, AvailableReplicas: 2},
			Progress{Message: "2 of 2 pods are available"},
		},
		"a Deployment whose pods are not available": {
			deployment, &appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 1},
			Progress{Whole: true, Message: "1 of 2 pods are available"},
		},
		"a Deployment that is complete": {
			deployment, &appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2, Conditions: late},
			Progress{Whole: true, Complete: true},
		},
		"a Deployment that is late": {
			deployment, &appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, Conditions: late},
			Progress{Whole: true, Failed: true, Reason: "ProgressDeadlineExceeded", Message: "late"},
		},
		"a Deployment without replicas has one": {
			&appsv1.Deployment{}, &appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1},
			Progress{Whole: true, Complete: true},
		},
		"a ReplicaSet": {
			&appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: two}}, &appsv1.ReplicaSetStatus{Replicas: 2, AvailableReplicas: 2},
			Progress{Whole: true, Complete: true},
		},
		"a StatefulSet that is not updated": {
			set, &appsv1.StatefulSetStatus{Replicas: 2, UpdatedReplicas: 1, AvailableReplicas: 2},
			Progress{Message: "2 of 2 pods are available"},
		},
		"a StatefulSet with a partition": {
			held, &appsv1.StatefulSetStatus{Replicas: 2, UpdatedReplicas: 1, AvailableReplicas: 2},
			Progress{Whole: true, Complete: true},
		},
		"a StatefulSet that is updated by hand": {
			manual, &appsv1.StatefulSetStatus{Replicas: 2, AvailableReplicas: 2},
			Progress{Whole: true, Complete: true},
		},
		"a DaemonSet": {
			&appsv1.DaemonSet{}, &appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberAvailable: 1},
			Progress{Whole: true, Complete: true},
		},
		"a Job that runs": {
			&batchv1.Job{}, &batchv1.JobStatus{Active: 1, Failed: 1},
			Progress{Whole: true, Message: "0 succeeded, 1 failed"},
		},
		"a Job that has completed": {
			&batchv1.Job{}, &batchv1.JobStatus{Succeeded: 1, Failed: 1, Conditions: ended(batchv1.JobComplete)},
			Progress{Whole: true, Complete: true},
		},
		"a Job that has failed": {
			&batchv1.Job{}, &batchv1.JobStatus{Failed: 2, Conditions: ended(batchv1.JobFailed)},
			Progress{Whole: true, Failed: true, Reason: "BackoffLimitExceeded", Message: "too many"},
		},
		"a CronJob": {
			&batchv1.CronJob{}, &batchv1.CronJobStatus{},
			Progress{Whole: true, Complete: true, Reason: "Scheduled", Message: "nodectl serve starts its jobs on schedule"},
		},
	} {
		w := Workload{Object: &pod.Object{Object: c.object}, Decision: workload.Decision{Status: c.status}}
		if got := w.Progress(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	w := Workload{
		Object: &pod.Object{Object: deployment}, Decision: workload.Decision{Status: &appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}},
		Pods: []workload.Pod{{Spec: &pod.Spec{Key: pod.Key{Name: "old"}}, Leaving: true}},
	}
	if got, want := w.Progress(), (Progress{Message: "pod old is being removed"}); got != want {
		t.Errorf("a pod still stops: %+v, want %+v", got, want)
	}
}

// TestProgress_PodsOfThePreviousAgent_WaitsForTheirReports: after a restart of the agent or a reboot,
// the last reports of the previous agent do not make a workload complete. The first reports of this
// agent do, and their readiness counts.
func TestProgress_PodsOfThePreviousAgent_WaitsForTheirReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		object := want("web")
		labels := map[string]string{"app": "web"}
		d := object.Object.(*appsv1.Deployment)
		d.Spec.Replicas, d.Spec.Selector = ptr.To[int32](2), &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Template.Labels, d.Spec.Template.Spec.Containers = labels, []v1.Container{{Name: "c", Image: "i:1"}}
		shelf := newShelf()
		agent := func(kept ...workload.Pod) *Controller {
			c := New(Config{Node: node, Recorded: kept, Store: shelf, Live: true})
			t.Cleanup(c.Close)
			return c
		}
		status := func(ready v1.ConditionStatus) v1.PodStatus {
			return v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}}
		}
		report := func(c *Controller, s *pod.Spec, ready v1.ConditionStatus) {
			p := *s.Pod
			p.Status = status(ready)
			if err := c.Report(pod.StatusReport{Pod: &p, Origin: s.Origin, ObservedUID: s.UID()}); err != nil {
				t.Error(err)
			}
		}
		expand := func(c *Controller) ([]*pod.Spec, Workload) {
			pods, _ := c.Expand([]*pod.Object{object})
			return pods, c.Workloads()[0]
		}
		first := agent()
		pods, _ := expand(first)
		var kept []workload.Pod
		for _, s := range pods {
			report(first, s, v1.ConditionTrue)
			ready := status(v1.ConditionTrue)
			kept = append(kept, workload.Pod{Spec: s, Status: &ready})
		}
		if _, w := expand(first); len(pods) != 2 || w.Decision.Unreported != 0 || !w.Progress().Complete {
			t.Fatalf("before: %d pods, %d unreported, %+v", len(pods), w.Decision.Unreported, w.Progress())
		}

		next := agent(kept...)
		_, w := expand(next)
		if got, want := w.Progress(), (Progress{Message: "2 pods have not been observed since the agent started"}); got != want || w.Decision.Unreported != 2 {
			t.Errorf("with the reports of the previous agent: %+v, %d unreported", got, w.Decision.Unreported)
		}
		report(next, pods[0], v1.ConditionTrue)
		report(next, pods[1], v1.ConditionFalse) // it has to start again
		_, w = expand(next)
		if got, want := w.Progress(), (Progress{Whole: true, Message: "1 of 2 pods are available"}); got != want || w.Decision.Unreported != 0 {
			t.Errorf("with their first reports: %+v, %d unreported", got, w.Decision.Unreported)
		}
		report(next, pods[1], v1.ConditionTrue)
		if _, w = expand(next); !w.Progress().Complete {
			t.Errorf("once all pods are ready: %+v", w.Progress())
		}
	})
}
