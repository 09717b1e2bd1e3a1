package workload

import (
	"cmp"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podstatic"
)

// Annotations that Kubernetes' controllers set.
const (
	annotationRevision = "deployment.kubernetes.io/revision"
	annotationDesired  = "deployment.kubernetes.io/desired-replicas"
	annotationMost     = "deployment.kubernetes.io/max-replicas"
	annotationManual   = "cronjob.kubernetes.io/instantiate"
)

// APIObject returns the workload of a decision as an API server would return it: with its overrides,
// defaults and status.
func APIObject(node string, d Decision) any {
	object := d.Object.Object.(runtime.Object).DeepCopyObject()
	meta := object.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	meta.Namespace, meta.Name, meta.UID = d.Object.Namespace, d.Object.Name, workloadUID(node, d.Object)
	if d.State.Created != nil {
		meta.CreationTimestamp = *d.State.Created
	}
	switch w := object.(type) {
	case *appsv1.Deployment:
		if n := len(d.State.Revisions); n > 0 {
			metav1.SetMetaDataAnnotation(meta, annotationRevision, fmt.Sprint(d.State.Revisions[n-1].Number))
		}
		setStatus(&w.Status, d.Status)
	case *appsv1.ReplicaSet:
		setStatus(&w.Status, d.Status)
	case *appsv1.StatefulSet:
		setStatus(&w.Status, d.Status)
	case *appsv1.DaemonSet:
		setStatus(&w.Status, d.Status)
	case *batchv1.Job:
		setStatus(&w.Status, d.Status)
	case *batchv1.CronJob:
		setStatus(&w.Status, d.Status)
	}
	return withDefaults(object)
}

// setStatus copies the status of a decision, unless it is nil or of another type.
func setStatus[T any](to *T, status any) {
	if from, is := status.(*T); is && from != nil {
		*to = *from
	}
}

func withDefaults(object any) any {
	podstatic.DefaultWorkload(object)
	return object
}

// Children returns the objects that Kubernetes has between a workload and its pods, as an API
// server would return them: the ReplicaSets of a Deployment, the Jobs of a CronJob. pods are the
// pods of the workload.
func Children(node string, d Decision, pods []Pod, now time.Time) []any {
	in := Input{Object: d.Object, Node: node, Pods: pods, State: d.State, Now: now}
	var all []any
	switch w := d.Object.Object.(type) {
	case *appsv1.Deployment:
		for i := range d.State.Revisions {
			all = append(all, withDefaults(in.replicaSet(w, &d.State.Revisions[i])))
		}
	case *batchv1.CronJob:
		if d.State.CronJob == nil {
			return nil
		}
		for i := range d.State.CronJob.Jobs {
			all = append(all, withDefaults(in.job(w, &d.State.CronJob.Jobs[i])))
		}
	}
	return all
}

// childMeta returns the metadata of an object that belongs to the workload.
func (in *Input) childMeta(kind, name string, created metav1.Time, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: in.Object.Namespace, Name: name, UID: childUID(workloadUID(in.Node, in.Object), kind, name),
		CreationTimestamp: created, Labels: labels, OwnerReferences: []metav1.OwnerReference{in.owner()},
	}
}

// replicaSet returns the ReplicaSet of a revision.
func (in *Input) replicaSet(d *appsv1.Deployment, r *Revision) *appsv1.ReplicaSet {
	name, replicas := replicaSetName(in.Object.Name, r.Hash), r.Replicas
	hash := map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: r.Hash}
	set := &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: pod.WorkloadAPIVersion(KindReplicaSet), Kind: KindReplicaSet},
		ObjectMeta: in.childMeta(KindReplicaSet, name, r.Since, merged(r.Template.Labels, hash)),
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, MinReadySeconds: d.Spec.MinReadySeconds, Template: *r.Template.DeepCopy()},
	}
	set.Annotations = map[string]string{annotationRevision: fmt.Sprint(r.Number)}
	if s := in.State.Deployment; s != nil {
		set.Annotations[annotationDesired], set.Annotations[annotationMost] = fmt.Sprint(s.Desired), fmt.Sprint(s.Most)
	}
	if r.Cause != "" {
		set.Annotations[changeCause] = r.Cause
	}
	set.Spec.Template.Labels = merged(set.Spec.Template.Labels, hash)
	if s := d.Spec.Selector; s != nil {
		set.Spec.Selector = s.DeepCopy()
		set.Spec.Selector.MatchLabels = merged(s.MatchLabels, hash)
	}
	for _, p := range in.podsOfRevision(r.Hash) {
		set.Status.Replicas++
		set.Status.FullyLabeledReplicas++
		if p.isReady() {
			set.Status.ReadyReplicas++
		}
		if ok, _ := p.isAvailable(d.Spec.MinReadySeconds, in.Now); ok {
			set.Status.AvailableReplicas++
		}
	}
	return set
}

// job returns one Job of a CronJob.
func (in *Input) job(c *batchv1.CronJob, run *CronJobRun) *batchv1.Job {
	template := &c.Spec.JobTemplate
	j := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: pod.WorkloadAPIVersion(KindJob), Kind: KindJob},
		ObjectMeta: in.childMeta(KindJob, run.Name, run.Scheduled, merged(template.Labels, nil)),
		Spec:       *run.Template.DeepCopy(),
		Status:     *run.State.Status.DeepCopy(),
	}
	j.Annotations = merged(template.Annotations, map[string]string{batchv1.CronJobScheduledTimestampAnnotation: run.Scheduled.UTC().Format(time.RFC3339)})
	if run.Manual {
		delete(j.Annotations, batchv1.CronJobScheduledTimestampAnnotation)
		j.Annotations[annotationManual] = "manual"
	}
	var ready int32
	for _, p := range in.Pods {
		ref := metav1.GetControllerOfNoCopy(p.Spec.Pod)
		if p.Leaving || ref == nil || ref.Name != run.Name || p.isTerminated() {
			continue
		}
		j.Status.Active++
		if p.isReady() {
			ready++
		}
	}
	j.Status.Ready = &ready
	return j
}

// Previous returns the template to which a workload would return if its newest version failed, or
// nil. It does not ask the source policy.
func Previous(s *State) *v1.PodTemplateSpec {
	n := len(s.Revisions)
	if n == 0 {
		return nil
	}
	if s.isChanged() {
		if r := s.before(); r != nil && r.isKnown() {
			return &r.Template
		}
		return nil
	}
	if r := target(s.Revisions, s.Revisions[n-1].Hash, nil); r != nil {
		return &r.Template
	}
	return nil
}

// HistoryEntry is one version of the pod template of a workload, as `rollout history` shows it.
type HistoryEntry struct {
	Revision int64              `json:"revision"`
	Cause    string             `json:"cause,omitempty"`
	Failed   string             `json:"failed,omitempty"` // the reason of its rollback
	Since    metav1.Time        `json:"since"`
	Template v1.PodTemplateSpec `json:"template"`
}

// History returns the versions of a workload, the oldest number first.
func History(s *State) []HistoryEntry {
	all := make([]HistoryEntry, 0, len(s.Revisions))
	for _, r := range s.Revisions {
		cause := cmp.Or(r.Cause, r.Template.Annotations[changeCause])
		all = append(all, HistoryEntry{Revision: r.Number, Cause: cause, Failed: r.Failed, Since: r.Since, Template: r.Template})
	}
	return all
}
