// Package podstatic makes a pod that is not from an API server a pod of this node: it sets the
// API's defaults, and the UID, annotations and tolerations that the kubelet gives a static pod.
//
// Package manifest calls it for the pods in manifests, package workload for the pods that it
// makes from templates.
//
// A pod of a manifest and a pod of a template get the same treatment. It depends only on the
// pod, the node's name and the source's kind.
package podstatic

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Bind sets the API's defaults in the pod of s, and makes it a pod of this node (C-1.5.7). The
// steps are the kubelet's, with three differences. The UID is stable, so that an edited pod is the
// same pod. The annotation config.hash is the hash of the content. The pods of every source get the
// NoExecute toleration.
//
// Before the call, the pod has its final name and namespace, and s has its hashes
// (podspec.Fingerprint). Bind sets the key and the dependencies.
func Bind(s *pod.Spec, node, source string) {
	p := s.Pod
	corev1.SetObjectDefaults_Pod(p)
	if class, ok := pod.PriorityOf(p.Spec.PriorityClassName); ok && p.Spec.Priority == nil {
		p.Spec.Priority = &class
	}
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		*g = 1 // as an API server reads it
	}
	s.Key = pod.KeyOf(p)
	Dependencies(s)
	if p.UID == "" {
		p.UID = types.UID(pod.StaticUID(node, p.Namespace, p.Name))
	}
	p.Spec.NodeName = node
	annotations := make(map[string]string, len(p.Annotations)+2)
	maps.Copy(annotations, p.Annotations)
	delete(annotations, pod.AnnotationConfigSeen)
	annotations[pod.AnnotationConfigHash] = s.Hash
	annotations[pod.AnnotationConfigSource] = source
	p.Annotations = annotations
	p.Spec.Tolerations = tolerateNoExecute(p.Spec.Tolerations)
	p.Status = v1.PodStatus{Phase: v1.PodPending}
	p.Kind, p.APIVersion = "Pod", "v1"
}

// Dependencies sets the pod's dependencies from its annotation. An invalid annotation is
// reported by pod.DependencyProblem, and sets none.
func Dependencies(s *pod.Spec) {
	if text := s.Pod.Annotations[pod.AnnotationDependsOn]; text != "" {
		s.DependsOn, _ = pod.ParseDependsOn(text)
	}
}

// DefaultTemplate returns a copy of a pod template with the defaults that an API server sets in
// the template of a workload. They are fewer than those of a pod.
func DefaultTemplate(t *v1.PodTemplateSpec) *v1.PodTemplateSpec {
	out := v1.PodTemplate{Template: *t.DeepCopy()}
	corev1.SetObjectDefaults_PodTemplate(&out)
	return &out.Template
}

func tolerateNoExecute(ts []v1.Toleration) []v1.Toleration {
	all := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	for i := range ts {
		if ts[i].MatchToleration(&all) {
			return ts
		}
	}
	return append(ts[:len(ts):len(ts)], all)
}
