package sourcetest

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// Parse returns a parser for sources under test. Its manifests are lines:
//
//	# a comment, or nothing
//	pod NAME CONTENT      a pod of namespace default
//	object NAME CONTENT   a ConfigMap
//	workload NAME CONTENT a Deployment
//	reject NAME MESSAGE   a rejected pod
//	notice MESSAGE        a notice
//
// With any other line, the file has only a problem. An empty file is also a problem. kind and location are
// those of the pods' origins.
func Parse(kind, location string) func(data []byte, file string) (source.File, []pod.Problem) {
	return func(data []byte, file string) (source.File, []pod.Problem) {
		f := source.File{File: file}
		var notices []pod.Problem
		if len(data) == 0 {
			return source.File{File: file, Incomplete: true, Problems: []pod.Problem{{File: file, Msg: "is empty"}}}, nil
		}
		for i, line := range strings.Split(strings.TrimRight(string(data), "\n"), "\n") {
			word, rest, _ := strings.Cut(line, " ")
			name, content, _ := strings.Cut(rest, " ")
			key := pod.Key{Namespace: "default", Name: name}
			origin := pod.Origin{Source: kind, Location: location, File: file, Line: i + 1}
			problem := pod.Problem{File: file, Line: i + 1, Msg: content}
			switch {
			case line == "" || word == "#":
			case word == "notice":
				problem.Msg = rest
				notices = append(notices, problem)
			case word == "pod" && content != "":
				f.Pods = append(f.Pods, spec(key, origin, content))
			case word == "object" && content != "":
				f.Objects = append(f.Objects, &pod.Object{Key: key, Kind: "ConfigMap", Origin: origin, Hash: hash(content), Object: &v1.ConfigMap{}})
			case word == "workload" && content != "":
				f.Objects = append(f.Objects, &pod.Object{Key: key, Kind: pod.KindDeployment, Origin: origin, Hash: hash(content), Object: &appsv1.Deployment{}})
			case word == "reject" && content != "":
				f.Broken = append(f.Broken, key)
				f.Problems = append(f.Problems, problem)
			default:
				problem.Msg = "is not a manifest"
				return source.File{File: file, Incomplete: true, Problems: []pod.Problem{problem}}, nil
			}
		}
		return f, notices
	}
}

func spec(key pod.Key, origin pod.Origin, content string) *pod.Spec {
	return &pod.Spec{
		Key: key, Origin: origin, Hash: hash(content), SandboxHash: hash(content),
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}},
	}
}

func hash(content string) string { return fmt.Sprintf("v1-%x", sha256.Sum256([]byte(content))) }

// Document has the manifests of a place that keeps all of them in one file, by name.
type Document map[string]string

// Text returns the text of all manifests, in the order of their names. It is never empty.
func (d Document) Text() string {
	text := "# manifests\n"
	for _, name := range slices.Sorted(maps.Keys(d)) {
		text += strings.TrimRight(d[name], "\n") + "\n"
	}
	return text
}
