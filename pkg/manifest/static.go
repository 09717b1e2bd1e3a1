package manifest

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podstatic"
)

// pod reads a Pod.
func (r *reader) pod(o object) {
	key, named := r.key(o)
	if named && r.isDuplicate(o, key) {
		return
	}
	spec, problems := r.spec(o, key)
	if len(problems) > 0 {
		r.reject(o, o.atMost(problems)...)
		return
	}
	r.out.Pods = append(r.out.Pods, spec)
}

// noun returns the word for the object in messages.
func (o object) noun() string {
	if pod.IsWorkload(o.kind) {
		return o.kind
	}
	return "pod"
}

// atMost sorts problems by their place and shortens a long list. The last problem then has the number of
// the others.
func (o object) atMost(problems []pod.Problem) []pod.Problem {
	sortProblems(problems)
	if rest := len(problems) - maxProblems; rest > 0 {
		last := problems[maxProblems]
		last.Path, last.Hint = "", ""
		last.Msg = fmt.Sprintf("and %d more problems of this %s", rest, o.noun())
		problems = append(problems[:maxProblems:maxProblems], last)
	}
	return problems
}

// spec returns the spec of the pod in o for this node, or all its problems.
func (r *reader) spec(o object, key pod.Key) (*pod.Spec, []pod.Problem) {
	var p v1.Pod
	problems, ok := r.decode(o, &p, false)
	if !ok {
		return nil, problems
	}
	s := &pod.Spec{Key: key, Origin: r.origin(o), Pod: &p}
	if !r.o.Static {
		if len(problems) == 0 && key.Name == "" {
			problems = append(problems, o.problem("metadata.name", "required", ""))
		}
		complete(s)
		podstatic.Dependencies(s)
		for _, bad := range pod.StructureProblems(&p.Spec) {
			problems = append(problems, o.problem(bad.Path, bad.Msg, bad.Hint))
		}
		return s, problems
	}
	for _, u := range append(podspec.Unsupported(&p), r.identityProblems(&p)...) {
		problems = append(problems, o.problem(u.Path, u.Msg, u.Hint))
	}
	podspec.Fingerprint(s, s.Pod)
	for _, ref := range pod.Refs(&p) {
		if s.Positions == nil {
			s.Positions = map[string]pod.Position{}
		}
		line, col := o.at.find(ref.Path)
		s.Positions[ref.Path] = pod.Position{Line: line, Column: col}
	}
	ignored := podspec.Ignored(&p)
	r.makeStatic(s)
	problems = o.uncovered(problems, validatePod(&p), p.Spec.HostNetwork)
	if len(problems) == 0 {
		r.notices(o, ignored)
	}
	return s, problems
}

// notices adds a notice for each ignored field of a pod or workload, with its place.
func (r *reader) notices(o object, ignored []pod.Problem) {
	for i, n := range ignored {
		line, col := o.at.key(n.Path)
		n = pod.Problem{File: r.o.File, Line: line, Column: col, Msg: o.path + n.Path + " " + n.Msg}
		if rest := len(ignored) - i; i == maxProblems && rest > 1 {
			n.Msg = fmt.Sprintf("%d more fields of this %s are ignored", rest, o.noun())
			r.warnings = append(r.warnings, n)
			return
		}
		r.warnings = append(r.warnings, n)
	}
}

// complete completes the Spec of a pod that its source has defaulted. A pod from a set that merge saved
// has an annotation with nodectl's hash, and keeps that hash. It gets no hashes of its parts, because
// the author's manifest is not known.
func complete(s *pod.Spec) {
	if s.Pod.Namespace == "" {
		s.Pod.Namespace = "default"
	}
	if h := s.Pod.Annotations[pod.AnnotationConfigHash]; podspec.HashVersion(h) != "" {
		s.Hash = h
		return
	}
	podspec.Fingerprint(s, s.Pod)
}

// decode checks o against the type of into, and decodes it into that. ok is false if o does not fit. If
// ok is true, the problems are unknown and duplicate fields.
func (r *reader) decode(o object, into any, secret bool) (problems []pod.Problem, ok bool) {
	c := checker{validate: r.o.Validate, secret: secret, o: o, guesses: &r.guesses}
	c.check(typeOf(into), o.value, o.at, "")
	for _, w := range c.warnings {
		w.File = r.o.File
		r.warnings = append(r.warnings, w)
	}
	if c.slow {
		return c.problems, false
	}
	if err := json.Unmarshal(o.bytes(), into); err != nil {
		if len(c.problems) == 0 {
			c.problems = append(c.problems, o.problem("", fmt.Sprintf("not a %s", o.kind), ""))
		}
		return c.problems, false
	}
	return c.problems, true
}

// identityProblems returns the problems of a pod's name, UID, node, mirror annotation,
// dependencies and priority.
func (r *reader) identityProblems(p *v1.Pod) []pod.Problem {
	var out []pod.Problem
	if p.Name == "" && p.GenerateName == "" {
		out = append(out, pod.Problem{Path: "metadata.name", Msg: "required", Hint: `nodectl appends "-` + r.o.Node + `", the node's name`})
	}
	if uid := string(p.UID); uid != "" && !pod.ValidUID(uid) {
		out = append(out, pod.Problem{Path: "metadata.uid", Msg: "invalid value " + quote(uid) + ": not usable as the name of a directory and a cgroup", Hint: "remove it, or write at most 63 letters, digits, - and ., starting with a letter or digit"})
	}
	if n := p.Spec.NodeName; n != "" && !strings.EqualFold(n, r.o.Node) {
		out = append(out, pod.Problem{Path: "spec.nodeName", Msg: fmt.Sprintf("pod is for node %s, but this node is %s", quote(n), quote(r.o.Node)), Hint: "remove the field: nodectl binds the pod to this node"})
	}
	if _, ok := p.Annotations[pod.AnnotationConfigMirror]; ok {
		out = append(out, pod.Problem{Path: "metadata.annotations[" + pod.AnnotationConfigMirror + "]", Msg: "a mirror pod is an API server's copy of a static pod; nodectl does not run it", Hint: "remove the annotation"})
	}
	if bad, is := pod.DependencyProblem(p); is {
		out = append(out, bad)
	}
	if class, ok := pod.PriorityOf(p.Spec.PriorityClassName); ok && p.Spec.Priority != nil && *p.Spec.Priority != class {
		out = append(out, pod.Problem{Path: "spec.priority", Msg: fmt.Sprintf("%d is not the priority of class %s, which is %d", *p.Spec.Priority, p.Spec.PriorityClassName, class), Hint: "set only one of the two"})
	}
	return out
}

// makeStatic defaults a pod and binds it to this node, with its final name (C-1.5.7).
func (r *reader) makeStatic(s *pod.Spec) {
	tidy(&s.Pod.ObjectMeta)
	if s.Pod.Name != "" {
		s.Pod.Name = r.finalName(s.Pod.Name)
	}
	podstatic.Bind(s, r.o.Node, r.o.Source)
}

// internal converts p to the internal type, which the validation code takes.
func internal(p *v1.Pod) (*core.Pod, error) {
	var out core.Pod
	err := corev1.Convert_v1_Pod_To_core_Pod(p, &out, nil)
	return &out, err
}
