package pod

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of workloads: objects that describe pods by a template.
const (
	KindDeployment  = "Deployment"
	KindReplicaSet  = "ReplicaSet"
	KindStatefulSet = "StatefulSet"
	KindDaemonSet   = "DaemonSet"
	KindJob         = "Job"
	KindCronJob     = "CronJob"
)

// WorkloadKinds returns the kinds of workloads.
func WorkloadKinds() []string {
	return []string{KindDeployment, KindReplicaSet, KindStatefulSet, KindDaemonSet, KindJob, KindCronJob}
}

// MaxReplicas is how many pods a workload may have at a time. It is far above the pods of one
// node, and keeps a mistyped number from filling the memory.
const MaxReplicas = 1000

// IsWorkload reports whether kind is a kind of workloads.
func IsWorkload(kind string) bool { return NewWorkload(kind) != nil }

// NewWorkload returns an empty workload of a kind, as Object.Object has it; nil for another kind.
func NewWorkload(kind string) any {
	switch kind {
	case KindDeployment:
		return &appsv1.Deployment{}
	case KindReplicaSet:
		return &appsv1.ReplicaSet{}
	case KindStatefulSet:
		return &appsv1.StatefulSet{}
	case KindDaemonSet:
		return &appsv1.DaemonSet{}
	case KindJob:
		return &batchv1.Job{}
	case KindCronJob:
		return &batchv1.CronJob{}
	}
	return nil
}

// WorkloadAPIVersion returns the API version of a kind of workloads.
func WorkloadAPIVersion(kind string) string {
	if kind == KindJob || kind == KindCronJob {
		return "batch/v1"
	}
	return "apps/v1"
}

// Template returns the pod template of a workload, which is shared, and the path of its field;
// nil for a config object.
func (o *Object) Template() (template *v1.PodTemplateSpec, path string) {
	const at = "spec.template"
	switch w := o.Object.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Template, at
	case *appsv1.ReplicaSet:
		return &w.Spec.Template, at
	case *appsv1.StatefulSet:
		return &w.Spec.Template, at
	case *appsv1.DaemonSet:
		return &w.Spec.Template, at
	case *batchv1.Job:
		return &w.Spec.Template, at
	case *batchv1.CronJob:
		return &w.Spec.JobTemplate.Spec.Template, "spec.jobTemplate.spec.template"
	}
	return nil, ""
}

// Selector returns the selector of a workload's pods, which is shared; nil for a CronJob and for
// another object.
func (o *Object) Selector() *metav1.LabelSelector {
	switch w := o.Object.(type) {
	case *appsv1.Deployment:
		return w.Spec.Selector
	case *appsv1.ReplicaSet:
		return w.Spec.Selector
	case *appsv1.StatefulSet:
		return w.Spec.Selector
	case *appsv1.DaemonSet:
		return w.Spec.Selector
	case *batchv1.Job:
		return w.Spec.Selector
	}
	return nil
}

// ClaimTemplates returns the claim templates of a StatefulSet, which are shared; nil for another
// object.
func (o *Object) ClaimTemplates() []v1.PersistentVolumeClaim {
	if w, is := o.Object.(*appsv1.StatefulSet); is {
		return w.Spec.VolumeClaimTemplates
	}
	return nil
}

// ObjectKey identifies a config object or a workload.
type ObjectKey struct {
	Kind string
	Key
}

// String returns "Deployment default/web".
func (k ObjectKey) String() string { return k.Kind + " " + k.Key.String() }

// ObjectKey returns the identity of the object.
func (o *Object) ObjectKey() ObjectKey { return ObjectKey{o.Kind, o.Key} }
