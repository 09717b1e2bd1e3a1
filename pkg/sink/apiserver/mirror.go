package apiserver

import (
	"fmt"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
)

// newMirror returns the request that creates the mirror of a static pod. While a pod replaces its
// containers, it gets no mirror until the old ones have stopped (C-1.13.9).
func (l *loop) newMirror(e *entry, now time.Time) request {
	p := e.report.Pod
	if p.DeletionTimestamp != nil || e.report.Replacing || p.Annotations[pod.AnnotationConfigHash] == "" || len(p.Spec.Containers) == 0 || l.cfg.NodeUID == nil {
		return request{} // it stops or is replaced, or there are no mirrors
	}
	if what := refersTo(p); what != "" {
		l.warn(e, "Static pod has no mirror pod: an API server accepts none that references its objects", fmt.Errorf("it references %s", what), "the pod runs; nodectl get pods shows it")
		return request{}
	}
	uid := l.cfg.NodeUID()
	if uid == "" {
		return request{verb: await, key: e.key}
	}
	return request{verb: create, key: e.key, pod: mirrorOf(p, l.cfg.Node, uid, now)}
}

// mirrorNext returns the next request for the server's mirror. If the static pod has another hash or
// is not desired, it is the deletion of the mirror (C-1.13.2, C-1.13.6), else a status. While an
// edited pod pulls its images and stops its old containers, the mirror of the old definition stays.
// It keeps the last status of the old pod (C-1.13.9).
func (l *loop) mirrorNext(e *entry, wanted bool, now time.Time) request {
	o, r := e.object, e.report
	stopping := wanted && (r.Pod.DeletionTimestamp != nil || r.Replacing)
	// A terminal phase is final (C-1.26.15): the next instance has its own mirror.
	again := wanted && pod.IsPhaseTerminal(o.Status.Phase) && !pod.IsPhaseTerminal(r.Pod.Status.Phase)
	switch {
	case stopping && r.Replacing && !mirrors(o, r.Pod):
		return request{}
	case !wanted && r == nil && l.orphans.IsZero():
		return request{} // the report of its static pod may still arrive
	case !wanted && r == nil && now.Before(l.orphans):
		return request{verb: await, key: e.key}
	case !wanted,
		!stopping && (again || o.DeletionTimestamp != nil),
		!stopping && !mirrors(o, r.Pod):
		if e.removed() {
			return request{}
		}
		return request{verb: remove, key: e.key, uid: o.UID}
	}
	return l.statusNext(e)
}

// roomAfter is how long a pod with the name of a static one may take to terminate.
const roomAfter = 10 * time.Second

// removeReplaced removes a deleted pod of an API server whose name a static pod took. It waits for
// the end of the grace period, and until the runtime shows nothing of the pod, which has no report of
// its own.
func (l *loop) removeReplaced(e *entry, now time.Time) request {
	by := e.object.DeletionTimestamp
	switch {
	case by == nil, e.removed(), e.inRuntime():
		return request{}
	case now.Before(by.Add(roomAfter)):
		return request{verb: await, key: e.key}
	}
	return request{verb: remove, key: e.key, uid: e.object.UID}
}

// inRuntime reports whether the runtime shows the API pod whose name a static pod took.
func (e *entry) inRuntime() bool {
	return e.report.ObservedUID == string(e.object.UID) && e.report.Pod.UID != e.object.UID
}

// nameTakenBy is the reason of a pod that ended because a static pod has its name.
const nameTakenBy = "NameTaken"

// failReplaced marks a pod of an API server whose name a static pod took as Failed, once nothing of
// it is on the node. The pod has no report of its own. If its object stayed Ready, Services would
// send requests to it. If the pod terminated by itself before, failReplaced sends that status.
func (l *loop) failReplaced(e *entry, now time.Time) request {
	o, by := e.object, e.report
	if pod.IsPhaseTerminal(o.Status.Phase) || by.NotDesired || by.Pod.DeletionTimestamp != nil || e.inRuntime() {
		return request{}
	}
	want := o.Status
	if f := e.former; f != nil && f.Pod.UID == o.UID {
		want, _ = merge(o, f)
	}
	if pod.IsPhaseTerminal(want.Phase) {
		return l.patchTo(e, want, nil)
	}
	want = *want.DeepCopy()
	want.Phase, want.Reason = v1.PodFailed, nameTakenBy
	want.Message = "The node runs a static pod of this name (" + by.Origin.String() + ") instead of this pod"
	for _, list := range [][]v1.ContainerStatus{want.InitContainerStatuses, want.ContainerStatuses, want.EphemeralContainerStatuses} {
		for i := range list {
			if c := &list[i]; c.State.Running != nil {
				c.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
					ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container's exit status is unknown",
					StartedAt: c.State.Running.StartedAt, ContainerID: c.ContainerID,
				}}
				c.Ready, c.Started = false, new(false)
			}
		}
	}
	for i := range want.Conditions {
		c := &want.Conditions[i]
		if (c.Type == v1.PodReady || c.Type == v1.ContainersReady) && c.Status != v1.ConditionFalse {
			c.Status, c.Reason, c.Message, c.LastTransitionTime = v1.ConditionFalse, "PodFailed", "", seconds(now)
		}
	}
	return l.patchTo(e, want, nil)
}

// mirrorOf returns the mirror of a static pod (C-1.13.1).
func mirrorOf(p *v1.Pod, node string, uid types.UID, now time.Time) *v1.Pod {
	m := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       p.Namespace,
			Name:            p.Name,
			Labels:          p.Labels,
			Annotations:     maps.Clone(p.Annotations),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid, Controller: new(true)}},
		},
		Spec: p.Spec,
	}
	m.Spec.NodeName = node
	m.Annotations[pod.AnnotationConfigMirror] = p.Annotations[pod.AnnotationConfigHash]
	if m.Annotations[pod.AnnotationConfigSeen] == "" {
		m.Annotations[pod.AnnotationConfigSeen] = now.Format(time.RFC3339Nano)
	}
	return m
}

// refersTo names the first API object that a pod needs. NodeRestriction refuses mirrors
// of such pods, so the sink does not send them.
func refersTo(p *v1.Pod) string {
	if p.Spec.ServiceAccountName != "" {
		return "a service account (spec.serviceAccountName)"
	}
	if refs := pod.Refs(p); len(refs) > 0 {
		return fmt.Sprintf("a %s (%s)", refs[0].Kind, refs[0].Path)
	}
	if len(p.Spec.ResourceClaims) > 0 {
		return "a ResourceClaim (spec.resourceClaims)"
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		at := fmt.Sprintf("spec.volumes[%d]", i)
		switch {
		case v.CSI != nil:
			return "a CSI driver (" + at + ".csi)"
		case v.Ephemeral != nil:
			return "a claim (" + at + ".ephemeral)"
		case v.AzureFile != nil, v.Glusterfs != nil:
			return "an object of the API (" + at + ")"
		case v.Projected == nil:
			continue
		}
		for j, s := range v.Projected.Sources {
			at := fmt.Sprintf("%s.projected.sources[%d]", at, j)
			switch {
			case s.ServiceAccountToken != nil:
				return "a service account (" + at + ".serviceAccountToken)"
			case s.ClusterTrustBundle != nil:
				return "a ClusterTrustBundle (" + at + ".clusterTrustBundle)"
			case s.PodCertificate != nil:
				return "a certificate (" + at + ".podCertificate)"
			}
		}
	}
	return ""
}
