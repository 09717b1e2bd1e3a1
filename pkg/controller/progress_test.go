package controller

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
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
			Progress{Whole: true, Complete: true, Reason: "Scheduled", Message: "nodectl serve runs it at its times"},
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
