package pod

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// MaxDependencies is how many pods one pod may depend on. Readers walk the list for
// each pod of each batch; no ordinary order of pods on one node needs a longer one.
const MaxDependencies = 64

// ParseDependsOn reads the value of AnnotationDependsOn. Its error describes the mistake, for the
// author. It reads at most MaxDependencies names, however many the value holds.
func ParseDependsOn(text string) ([]Dependency, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var out []Dependency
	for item := range strings.SplitSeq(text, ",") {
		if len(out) == MaxDependencies {
			return nil, fmt.Errorf("names more than %d pods", MaxDependencies)
		}
		name, until, named := strings.Cut(strings.TrimSpace(item), ":")
		d := Dependency{Name: name, Until: Started}
		if named {
			d.Until = DependencyCondition(until)
		}
		switch d.Until {
		case Started, Ready, Done:
		default:
			return nil, fmt.Errorf("unknown dependency condition %q of pod %q", shortened(until), shortened(name))
		}
		if !isName(name) {
			return nil, fmt.Errorf("%q is not a pod name", shortened(name))
		}
		if slices.ContainsFunc(out, func(other Dependency) bool { return other.Name == name }) {
			return nil, fmt.Errorf("names pod %q twice", name)
		}
		out = append(out, d)
	}
	return out, nil
}

// shortened truncates s to the longest pod name; a longer one is invalid.
func shortened(s string) string {
	const most = 253
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// isName reports whether s may be a pod's name: labels of lower-case letters,
// digits and - with dots between them (RFC 1123).
func isName(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || strings.Trim(label, "-") != label {
			return false
		}
		for i := range len(label) {
			if c := label[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return len(s) <= 253
}

// DependencyProblem returns the problem of a pod's AnnotationDependsOn, and whether there is one.
// The problem has a path, a message and a hint, and no place.
func DependencyProblem(p *v1.Pod) (Problem, bool) {
	_, err := ParseDependsOn(p.Annotations[AnnotationDependsOn])
	if err == nil {
		return Problem{}, false
	}
	return Problem{
		Path: "metadata.annotations[" + AnnotationDependsOn + "]", Msg: err.Error(),
		Hint: "write names of pods in the same namespace, separated by commas; each may end with :started, :ready or :done",
	}, true
}

// ResolveDependency returns the key of the pod that a dependency of s refers to. desired
// returns the spec of a key, nil for none. ResolveDependency tries the targets in their order,
// first those of the same kind of source, then those of a kind that visible allows; a nil
// visible allows no other kind. It never returns a pod of any other source: the author of
// such a pod could delay, by its name alone, pods that depend on another one.
func (s *Spec) ResolveDependency(d Dependency, visible func(from, to string) bool, desired func(Key) *Spec) (key Key, found bool) {
	for _, target := range s.Targets(d) {
		switch on := desired(target); {
		case on == nil:
		case on.Origin.Source == s.Origin.Source:
			return target, true
		case !found && visible != nil && visible(s.Origin.Source, on.Origin.Source):
			key, found = target, true
		}
	}
	return key, found
}

// Targets returns the keys of the pods that a dependency may refer to: the name as
// written, then the name with the node's suffix.
func (s *Spec) Targets(d Dependency) []Key {
	as := Key{Namespace: s.Namespace, Name: d.Name}
	node := s.Pod.Spec.NodeName
	if node == "" {
		return []Key{as}
	}
	return []Key{as, {Namespace: s.Namespace, Name: d.Name + "-" + node}}
}
