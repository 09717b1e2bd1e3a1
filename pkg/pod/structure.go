package pod

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// uidForm is the form of a UID, which names a pod's directories, its cgroup, its logs and a label.
var uidForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$`)

// staticUIDForm is the form of what StaticUID returns. API servers give UUIDs, with dashes.
var staticUIDForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// ValidUID reports whether a UID can name a pod's directories.
func ValidUID(uid string) bool { return uidForm.MatchString(uid) }

// StaticUIDProblem returns the problem of an API server's pod whose UID has the form of a static
// pod's UID: two such pods could share directories, a cgroup and user IDs.
func StaticUIDProblem(p *v1.Pod) (bad Problem, is bool) {
	uid := string(p.UID)
	return Problem{Path: "metadata.uid", Msg: "invalid value " + shownName(uid) + ": only static pods have such a UID"}, staticUIDForm.MatchString(uid)
}

// IdentityProblems returns the problems of the names from which a pod's directories, cgroup and
// logs get their names. Its namespace and name must be DNS names, and its UID a plain file name.
func IdentityProblems(p *v1.Pod) []Problem {
	var s structure
	s.name("metadata.name", p.Name, validation.IsDNS1123Subdomain)
	s.name("metadata.namespace", p.Namespace, validation.IsDNS1123Label)
	if uid := string(p.UID); !ValidUID(uid) {
		s.add("metadata.uid", "invalid value "+shownName(uid)+": not usable as the name of a directory and a cgroup")
	}
	return s.problems
}

// StructureProblems returns the problems of the form of a pod's spec. Containers and volumes must
// have unique DNS names, and every volume exactly one source. Readers of a pod rely on it: a
// policy, the volumes and the runtime take the same thing for a volume, and no name leads to
// another path.
func StructureProblems(spec *v1.PodSpec) []Problem {
	var s structure
	if len(spec.Containers) == 0 {
		s.add("spec.containers", "required")
	}
	seen := map[string]bool{}
	label := func(path, name string) {
		s.name(path, name, validation.IsDNS1123Label)
		if seen[name] {
			s.add(path, "duplicate value "+shownName(name))
		}
		seen[name] = true
	}
	for i := range spec.InitContainers {
		label(fmt.Sprintf("spec.initContainers[%d].name", i), spec.InitContainers[i].Name)
	}
	for i := range spec.Containers {
		label(fmt.Sprintf("spec.containers[%d].name", i), spec.Containers[i].Name)
	}
	for i := range spec.EphemeralContainers {
		label(fmt.Sprintf("spec.ephemeralContainers[%d].name", i), spec.EphemeralContainers[i].Name)
	}
	clear(seen)
	for i := range spec.Volumes {
		v, path := &spec.Volumes[i], fmt.Sprintf("spec.volumes[%d]", i)
		label(path+".name", v.Name)
		s.oneSource(path, "volume", &v.VolumeSource)
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			s.oneSource(fmt.Sprintf("%s.projected.sources[%d]", path, j), "projection", &v.Projected.Sources[j])
		}
	}
	return s.problems
}

// MaxPorts is how many ports the containers of a pod may have in all. Admission looks at each
// host port again and again; no honest pod comes near.
const MaxPorts = 2000

// PortsProblem returns the field with which a pod has more than MaxPorts ports, if it has.
func PortsProblem(spec *v1.PodSpec) (bad Problem, is bool) {
	n := 0
	for _, list := range []struct {
		path string
		of   []v1.Container
	}{{"spec.initContainers", spec.InitContainers}, {"spec.containers", spec.Containers}} {
		for i := range list.of {
			if n += len(list.of[i].Ports); n > MaxPorts {
				return Problem{Path: fmt.Sprintf("%s[%d].ports", list.path, i), Msg: fmt.Sprintf("more than %d ports in one pod", MaxPorts)}, true
			}
		}
	}
	return Problem{}, false
}

// structure collects the problems of a pod's form.
type structure struct{ problems []Problem }

func (s *structure) add(path, msg string) {
	s.problems = append(s.problems, Problem{Path: path, Msg: msg})
}

func (s *structure) name(path, name string, check func(string) []string) {
	if len(check(name)) > 0 {
		s.add(path, "invalid value "+shownName(name)+": not a DNS name")
	}
}

// oneSource records a struct of pointers of which not exactly one is set.
func (s *structure) oneSource(path, what string, source any) {
	if n := sourcesIn(source); n != 1 {
		s.add(path, fmt.Sprintf("a %s must have exactly one source, this one has %d", what, n))
	}
}

// OneSource reports whether a volume has exactly one source.
func OneSource(v *v1.VolumeSource) bool { return sourcesIn(v) == 1 }

// sourcesIn returns how many of a struct's pointers are set.
func sourcesIn(source any) int {
	n := 0
	for v, i := reflect.ValueOf(source).Elem(), 0; i < v.NumField(); i++ {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			n++
		}
	}
	return n
}

// shownName returns a name as messages show it: escaped, and short.
func shownName(name string) string {
	const most = 80
	if len(name) > most {
		name = name[:most] + "…"
	}
	return strconv.QuoteToASCII(name)
}
