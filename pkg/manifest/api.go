package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podstatic"
)

// FromAPI returns the spec of a pod that an API server has bound to this node. The pod keeps its UID,
// name and annotations. FromAPI does not default it, because the server has done that. It repeats only
// the part of validation that protects this node from a compromised server: names that become paths,
// and one source for each volume. As in the kubelet, the annotation kubernetes.io/config.source of the
// Spec's Pod names the kind of source (C-1.2.4). The managed fields are left out.
//
// Each field that this version does not support is a problem, and rejects the pod: the Spec is then nil.
// A pod that is being deleted is rejected only for its names and UID: it has to stop, and plan starts
// nothing of it. Problems name o.File, or o.Location if there is no file.
//
// FromAPI does not change p. The Spec's Pod has metadata of its own, and shares the rest with p.
func FromAPI(p *v1.Pod, o Options) (*pod.Spec, []pod.Problem) {
	problems := pod.IdentityProblems(p)
	if bad, is := pod.StaticUIDProblem(p); is {
		problems = append(problems, bad)
	}
	if p.DeletionTimestamp == nil {
		problems = append(problems, apiProblems(p, o)...)
	}
	if len(problems) > 0 {
		return nil, placed(problems, o)
	}
	own := *p
	own.Kind, own.APIVersion = "Pod", "v1"
	own.ManagedFields = nil
	if own.Annotations[pod.AnnotationConfigSource] != o.Source {
		own.Annotations = make(map[string]string, len(p.Annotations)+1)
		maps.Copy(own.Annotations, p.Annotations)
		own.Annotations[pod.AnnotationConfigSource] = o.Source
	}
	s := &pod.Spec{
		Key:    pod.KeyOf(&own),
		Origin: pod.Origin{Source: o.Source, Location: o.Location, File: o.File},
		Pod:    &own,
	}
	s.Hash, s.SandboxHash, s.ContainerHashes = podspec.NewAPIHashes(&own)
	podstatic.Dependencies(s)
	return s, nil
}

// apiProblems returns the problems of a pod of an API server: first the fields that nodectl
// supports on no node, then those that this node lacks.
func apiProblems(p *v1.Pod, o Options) []pod.Problem {
	problems := pod.StructureProblems(&p.Spec)
	if bad, is := pod.DependencyProblem(p); is {
		problems = append(problems, bad)
	}
	if bad, is := pod.PortsProblem(&p.Spec); is {
		problems = append(problems, bad)
	}
	if n := p.Spec.NodeName; n != "" && o.Node != "" && !strings.EqualFold(n, o.Node) {
		problems = append(problems, pod.Problem{Path: "spec.nodeName", Msg: fmt.Sprintf("pod is for node %s, but this node is %s", quote(n), quote(strings.ToLower(o.Node)))})
	}
	named := make(map[pod.ObjectID]bool)
	for _, r := range pod.Refs(p) {
		named[pod.ObjectID{Kind: r.Kind, Name: r.Name}] = true
	}
	if len(named) > pod.MaxObjects {
		problems = append(problems, pod.Problem{Path: "spec", Msg: fmt.Sprintf("names %d ConfigMaps, Secrets and claims, more than %d", len(named), pod.MaxObjects)})
	}
	return append(problems, podspec.UnsupportedAPI(p)...)
}

// placed shortens a list of problems, and sets the file of each.
func placed(problems []pod.Problem, o Options) []pod.Problem {
	if rest := len(problems) - maxProblems; rest > 0 {
		problems = append(problems[:maxProblems:maxProblems], pod.Problem{Msg: fmt.Sprintf("and %d more problems of this pod", rest)})
	}
	for i := range problems {
		problems[i] = shortened(problems[i])
		problems[i].File = cmp.Or(o.File, o.Location)
	}
	return problems
}
