package controller

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Progress is the progress of a workload towards its desired state.
type Progress struct {
	// Whole means that the workload has all pods of its newest revision, and no other pods.
	Whole bool
	// Complete means that a Job has completed. For another workload it means that every pod has the
	// newest revision and is available.
	Complete bool
	// Failed means that a Job has failed, or that the rollout of a Deployment has passed its
	// deadline.
	Failed bool
	// Reason and Message explain why the workload is not complete, or how it ended.
	Reason, Message string
}

// Progress returns the progress of the workload, from the status of its newest decision. While the
// node still stops pods that left the set, the workload is neither whole nor complete. The same
// holds while a pod has only a report of the previous agent, unless the workload is a Job.
func (w Workload) Progress() Progress {
	p := w.byStatus()
	if n := w.Decision.Unreported; n > 0 && !w.endsByItself() && (p.Whole || p.Complete) && !p.Failed {
		return Progress{Message: fmt.Sprintf("%d pods have not been observed since the agent started", n)}
	}
	for _, of := range w.Pods {
		if of.Leaving && !p.Failed && (p.Whole || p.Complete) {
			p = Progress{Message: "pod " + of.Spec.Name + " is being removed"}
		}
	}
	return p
}

// endsByItself reports whether the workload is a Job or CronJob. The results of its pods do not change
// after a restart of the agent.
func (w Workload) endsByItself() bool {
	return w.Object.Kind == pod.KindJob || w.Object.Kind == pod.KindCronJob
}

func (w Workload) byStatus() Progress {
	object := w.Object
	if w.Decision.Object != nil {
		object = w.Decision.Object // with its overrides
	}
	switch o := object.Object.(type) {
	case *appsv1.Deployment:
		if s, ok := w.Decision.Status.(*appsv1.DeploymentStatus); ok {
			return deploymentProgress(ptr.Deref(o.Spec.Replicas, 1), s)
		}
	case *appsv1.ReplicaSet:
		if s, ok := w.Decision.Status.(*appsv1.ReplicaSetStatus); ok {
			want := ptr.Deref(o.Spec.Replicas, 1)
			return counted(s.Replicas == want, s.AvailableReplicas, want)
		}
	case *appsv1.StatefulSet:
		if s, ok := w.Decision.Status.(*appsv1.StatefulSetStatus); ok {
			want := ptr.Deref(o.Spec.Replicas, 1)
			updated := o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType || s.UpdatedReplicas >= want-partition(o)
			return counted(s.Replicas == want && updated, s.AvailableReplicas, want)
		}
	case *appsv1.DaemonSet:
		if s, ok := w.Decision.Status.(*appsv1.DaemonSetStatus); ok {
			want := s.DesiredNumberScheduled
			updated := o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType || s.UpdatedNumberScheduled == want
			return counted(s.CurrentNumberScheduled == want && updated, s.NumberAvailable, want)
		}
	case *batchv1.Job:
		if s, ok := w.Decision.Status.(*batchv1.JobStatus); ok {
			return jobProgress(s)
		}
	case *batchv1.CronJob:
		return Progress{Whole: true, Complete: true, Reason: "Scheduled", Message: "nodectl serve starts its jobs on schedule"}
	}
	return Progress{}
}

func deploymentProgress(want int32, s *appsv1.DeploymentStatus) Progress {
	p := counted(s.UpdatedReplicas == want && s.Replicas == want, s.AvailableReplicas, want)
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == v1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded" && !p.Complete {
			p.Failed, p.Reason, p.Message = true, c.Reason, c.Message
		}
	}
	return p
}

func jobProgress(s *batchv1.JobStatus) Progress {
	p := Progress{Whole: s.Active+s.Succeeded+s.Failed > 0, Message: fmt.Sprintf("%d succeeded, %d failed", s.Succeeded, s.Failed)}
	for _, c := range s.Conditions {
		if c.Status != v1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			p.Complete, p.Reason, p.Message = true, "", ""
		case batchv1.JobFailed:
			p.Failed, p.Reason, p.Message = true, c.Reason, c.Message
		case batchv1.JobSuspended:
			p.Reason, p.Message = c.Reason, c.Message
		}
	}
	return p
}

// counted returns the progress of a workload that keeps want pods available.
func counted(whole bool, available, want int32) Progress {
	p := Progress{Whole: whole, Complete: whole && available >= want}
	if !p.Complete {
		p.Message = fmt.Sprintf("%d of %d pods are available", available, want)
	}
	return p
}

func partition(o *appsv1.StatefulSet) int32 {
	if r := o.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return *r.Partition
	}
	return 0
}
