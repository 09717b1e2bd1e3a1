package policy

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// Source returns inner with every pod in it held to p. kind and location say
// which source it is, the location of a path absolute.
//
// A pod that is not allowed is Broken, with a Problem for everything that its
// rule does not allow; so is a workload, whose pod template is checked as a pod of
// its namespace and name. A config object in a namespace that is not allowed is left
// out, with a Problem; so is a Service whose ports or addresses are not allowed. All else, errors included, is inner's, by pointer. A pod of
// an API server that is being deleted is not changed: it has to stop.
func Source(inner source.Source, p *Policy, kind, location string) source.Source {
	return &policySource{checker: p.checker(kind, location), inner: inner}
}

// Check returns the problems of a pod under the policy, from any origin: a source, a set that an
// earlier agent saved, or the record of a running pod. location is the location of the pod's
// source, in the form of Source.
func (p *Policy) Check(s *pod.Spec, location string) []pod.Problem {
	return p.checker(s.Origin.Source, location).pod(s)
}

// CheckObject is Check for a config object, a Service or a workload.
func (p *Policy) CheckObject(o *pod.Object, location string) []pod.Problem {
	return p.checker(o.Origin.Source, location).object(o)
}

// CheckPath returns the problems of a path of this node that a volume of the pod is about to mount:
// its host path, or the path that its claim is bound to. If the path is the target of links, follow
// resolves the links in a prefix; else it is nil.
func (p *Policy) CheckPath(s *pod.Spec, location, volume string, at *v1.HostPathVolumeSource, follow func(prefix string) string) []pod.Problem {
	j := p.checker(s.Origin.Source, location)
	i := slices.IndexFunc(s.Pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == volume })
	switch {
	case j.rule == nil:
		return placed(j.noRule(), s.Origin)
	case i < 0 || j.rule.hostPaths == nil:
		return nil
	}
	r := *j.rule
	if follow != nil {
		roots := slices.Clone(*r.hostPaths)
		for i := range roots {
			roots[i].prefix = follow(roots[i].prefix)
		}
		r.hostPaths = &roots
	}
	return placed(r.checkHostPath(&s.Pod.Spec, i, at, mountsOf(&s.Pod.Spec)), s.Origin)
}

// checker returns the checker of one source.
func (p *Policy) checker(kind, location string) *checker {
	return &checker{policy: p, rule: p.rule(kind, location), kind: kind, location: location}
}

// checker applies a rule to the content of one source.
type checker struct {
	policy         *Policy
	rule           *rule // nil: nothing is allowed
	kind, location string
}

// policySource is a source whose pods and objects are checked against a rule.
type policySource struct {
	*checker
	inner source.Source
}

// Name implements source.Source.
func (p *policySource) Name() string { return p.inner.Name() }

// Sets implements source.Source. A snapshot costs the files in it that changed.
func (p *policySource) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		var read, filtered sorted.List[source.File]
		for s, err := range p.inner.Sets(ctx) {
			if err == nil {
				filtered = p.files(read, filtered, s.Files)
				read, s.Files = s.Files, filtered
			}
			if !yield(s, err) {
				return
			}
		}
	}
}

// files returns the files of now without their forbidden parts. filtered is the result for read,
// the previous snapshot. While everything is allowed, the result is now itself.
func (p *policySource) files(read, filtered, now sorted.List[source.File]) sorted.List[source.File] {
	var names, bad []string
	changed := map[string][]source.File{}
	for old, new := range sorted.Diff(read, now, source.CompareFiles) {
		switch {
		case new == nil:
			names = append(names, old.File)
		case old == nil || !same(old, new):
			f, allowed := p.file(*new)
			names, changed[f.File] = append(names, f.File), []source.File{f}
			if !allowed {
				bad = append(bad, f.File)
			}
		}
	}
	if filtered.Is(read) {
		filtered, names = now, bad
	}
	return sorted.Patch(filtered, names, compareFile, func(name string) []source.File { return changed[name] })
}

func compareFile(f source.File, name string) int { return strings.Compare(f.File, name) }

// same reports whether two readings of a file are one.
func same(a, b *source.File) bool {
	return a.Incomplete == b.Incomplete && sameSlice(a.Pods, b.Pods) && sameSlice(a.Objects, b.Objects) && sameSlice(a.Problems, b.Problems) && sameSlice(a.Broken, b.Broken) && sameSlice(a.BrokenObjects, b.BrokenObjects)
}

func sameSlice[E any](a, b []E) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// file returns a file without its forbidden parts, and whether it has none.
func (p *policySource) file(f source.File) (_ source.File, allowed bool) {
	var problems []pod.Problem
	var broken []pod.Key
	pods := keep(f.Pods, func(s *pod.Spec) bool {
		found := p.pod(s)
		for i := range found {
			found[i].Pod = s.Key
		}
		if len(found) > 0 {
			problems, broken = append(problems, found...), append(broken, s.Key)
		}
		return len(found) == 0
	})
	var brokenObjects []pod.ObjectKey
	objects := keep(f.Objects, func(o *pod.Object) bool {
		found := p.object(o)
		problems = append(problems, found...)
		if len(found) > 0 && pod.IsWorkload(o.Kind) {
			brokenObjects = append(brokenObjects, o.ObjectKey())
		}
		return len(found) == 0
	})
	if len(problems) == 0 {
		return f, true
	}
	f.Pods, f.Objects = pods, objects
	f.Problems = slices.Concat(f.Problems, problems)
	f.Broken = slices.Concat(f.Broken, broken)
	f.BrokenObjects = slices.Concat(f.BrokenObjects, brokenObjects)
	return f, false
}

// keep returns the values that are allowed; all itself when all are.
func keep[T any](all []T, allowed func(T) bool) []T {
	for i, v := range all {
		if !allowed(v) {
			out := slices.Clone(all[:i])
			for _, v := range all[i+1:] {
				if allowed(v) {
					out = append(out, v)
				}
			}
			return out
		}
	}
	return all
}

// pod returns the problems of a pod.
func (j *checker) pod(s *pod.Spec) []pod.Problem {
	var problems []pod.Problem
	switch {
	case j.kind == pod.SourceAPI && s.Pod.DeletionTimestamp != nil:
	case j.rule == nil:
		problems = j.noRule()
	default:
		problems = j.rule.check(j.policy.security, s)
	}
	return placed(atMost(problems, "pod"), s.Origin)
}

// atMost shortens a long list of problems of one object.
func atMost(problems []pod.Problem, noun string) []pod.Problem {
	if rest := len(problems) - maxProblems; rest > 0 {
		return append(problems[:maxProblems:maxProblems], pod.Problem{Msg: fmt.Sprintf("and %d more problems of this %s", rest, noun)})
	}
	return problems
}

// object returns a problem for each thing in a config object, a Service or a workload that is not
// allowed.
func (j *checker) object(o *pod.Object) []pod.Problem {
	if j.rule == nil {
		return placed(j.noRule(), o.Origin)
	}
	problems := j.rule.checkNamespace(o.Namespace)
	if s, is := o.Object.(*v1.Service); is {
		problems = append(problems, j.rule.checkService(o, s)...)
	}
	if template, at := o.Template(); template != nil {
		problems = append(problems, j.rule.checkTemplate(j.policy.security, o, template, at)...)
	}
	return placed(atMost(problems, o.Kind), o.Origin)
}

// noRule is the problem of all that comes from a source without a rule.
func (j *checker) noRule() []pod.Problem {
	return []pod.Problem{{
		Msg:  fmt.Sprintf("source policy has no rule for source %s %s, and no default", j.kind, quote(j.location)),
		Hint: "write a rule in " + j.policy.file,
	}}
}

// placed puts problems at the place that a pod or an object comes from.
func placed(problems []pod.Problem, o pod.Origin) []pod.Problem {
	for i := range problems {
		problems[i].File, problems[i].Line = cmp.Or(o.File, o.Location), o.Line
	}
	return problems
}
