// Package workload decides which pods a workload has now. Workloads are the Deployments,
// ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs of sources without an API server; Next
// decides as Kubernetes' controllers do in a cluster of one node.
//
// Package controller calls Next for each workload, again after each change of its pods and at
// the times that Next names. Package podconfig takes the pods of the result into the desired
// set; the engine runs them as it runs any other pod.
//
// Next is a pure function: it has no clock and no I/O. Everything that it needs from earlier calls
// is in State and in the pods.
package workload

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kinds of workloads.
const (
	KindDeployment  = pod.KindDeployment
	KindReplicaSet  = pod.KindReplicaSet
	KindStatefulSet = pod.KindStatefulSet
	KindDaemonSet   = pod.KindDaemonSet
	KindJob         = pod.KindJob
	KindCronJob     = pod.KindCronJob
)

// Input is one workload, its pods and the time.
type Input struct {
	// Object is the workload of the source, without defaults: *appsv1.Deployment,
	// *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet, *batchv1.Job or *batchv1.CronJob.
	// It is valid, and shared: Next does not change it.
	Object *pod.Object
	// Node is the name of this node.
	Node string
	// Pods are the pods of the workload, sorted by key: the pods of the last Decision, and removed
	// pods that the node still stops. After a restart of the agent, they are the pods in the
	// records of the previous agent.
	Pods []Pod
	// State is the State of the last Decision; the zero State for a new workload.
	State State
	Now   time.Time
	// Release has the other workloads of the workload's release, in any order.
	Release []Member
	// Allowed reports whether a rollback may replace Object by its argument: Object with the pod
	// template of an older version. nil allows all. Allowed is a pure function, as Next is.
	Allowed func(*pod.Object) bool
}

// Pod is one pod of a workload.
type Pod struct {
	Spec *pod.Spec
	// Status is the newest report of the pod; nil if there is none yet.
	Status *v1.PodStatus
	// Leaving means that the pod has left the set, and that the node still stops it.
	Leaving bool
	// Earlier means that Status is the last report of the previous agent. The pod may have ended
	// since, as after a reboot.
	Earlier bool
}

// Decision has the pods that a workload should have now, and their reasons.
type Decision struct {
	// Pods are the pods that should exist now, sorted by key. For a pod that does not change, it
	// has the pointer of Input.Pods.
	Pods []*pod.Spec
	// Claims are the claims of the StatefulSet's pods, sorted by key. Each decision has copies of
	// its own.
	Claims []*pod.Object
	// Steps are the differences between Input.Pods and Pods, in display order.
	Steps []Step
	// State must be stored before Pods takes effect, if it differs from Input.State.
	State State
	// Status is the status of the workload, as its controller would report it:
	// *appsv1.DeploymentStatus, *appsv1.ReplicaSetStatus, *appsv1.StatefulSetStatus,
	// *appsv1.DaemonSetStatus, *batchv1.JobStatus or *batchv1.CronJobStatus.
	Status any
	// Unreported is the number of pods that stay, and of which the last report is from the previous
	// agent.
	Unreported int
	// Events are the events since the last call, with Kubernetes' reasons.
	Events []Event
	// Wake is when to call Next again even if no pod changes; zero: only after a change.
	Wake time.Time
	// Done means that the workload is a Job that has completed or failed.
	Done bool
	// Object is Input.Object with its overrides.
	Object *pod.Object
	// Failed is the version that this decision rolls back; nil for none. The caller keeps the logs
	// of its pods before they leave.
	Failed *FailedVersion

	history *history // the limit of State.Revisions, until Next has applied it; nil for none
}

// FailedVersion is a version of a pod template that was rolled back.
type FailedVersion struct {
	Number int64
	Why    string
	Pods   []*pod.Spec
}

// Action is the kind of a Step.
type Action string

// The actions.
const (
	Add    Action = "add"
	Remove Action = "remove"
	// Replace removes a pod and adds another one of the same name.
	Replace Action = "replace"
)

// Step is one change of the set of pods.
type Step struct {
	Action Action
	Key    pod.Key
	// Reason is a clause such as "revision 2 replaces revision 1: the new pod is available".
	Reason string
}

// Event is one event of a workload.
type Event struct {
	Type    string // Normal or Warning
	Reason  string // as Kubernetes' controllers give it: ScalingReplicaSet, SuccessfulCreate, …
	Message string
}

// Next decides which pods the workload has now. It applies the overrides. If the newest version has
// failed and the workload has rollbacks enabled, it rolls that version back. For an object of another
// kind it returns no pods.
func Next(in Input) Decision {
	source := in.Object
	events := in.tryAgain()
	effective, inEffect, ended := in.State.Override.Apply(source)
	in.Object, in.State.Override = effective, inEffect
	failed, to, why, more := in.copyOutcome()
	var d Decision
	if failed == nil {
		more = append(more, in.stayBehind(source)...)
		in.joinRollout()
		d = decide(in)
		failed, to, why = in.judgeTrial(&d)
	}
	if failed != nil {
		d = in.rollBack(source, failed, to, why)
	}
	in.dropHistory(&d)
	for _, field := range ended {
		events = append(events, Event{v1.EventTypeNormal, "OverrideEnded", "The override of " + field + " has ended: its source has another value now"})
	}
	d.Events = slices.Concat(d.Events, events, more)
	return d
}

// decide decides for a workload whose overrides are applied, without rollbacks.
func decide(in Input) Decision {
	d := decideKind(in)
	if d.Object = in.Object; d.Status == nil {
		return d
	}
	d.State.Override, d.State.Created, d.State.Trial, d.State.Release = in.State.Override, in.State.Created, nil, in.State.Release
	if d.State.Created == nil {
		now := seconds(in.Now)
		d.State.Created = &now
	}
	in.noteCause(&d)
	for _, p := range in.Pods {
		if p.Earlier && !p.Leaving && slices.ContainsFunc(d.Pods, func(s *pod.Spec) bool { return s.Key == p.Spec.Key }) {
			d.Unreported++
		}
	}
	return d
}

func decideKind(in Input) Decision {
	switch in.Object.Kind {
	case KindDeployment:
		return nextDeployment(in)
	case KindReplicaSet:
		return nextReplicaSet(in)
	case KindDaemonSet:
		return nextDaemonSet(in)
	case KindStatefulSet:
		return nextStatefulSet(in)
	case KindJob:
		return nextJob(in)
	case KindCronJob:
		return nextCronJob(in)
	}
	return Decision{}
}
