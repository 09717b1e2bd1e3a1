// Package manifest turns bytes into defaulted, validated objects.
//
// Sources call Parse with the content of a file, YAML or JSON. They get the pods and other objects in
// it, and each problem with file, line, column and field path. Only this package decides which pods are
// valid: it uses the defaulting and validation of k8s.io/kubernetes.
//
// The package does no I/O, and ignores nothing silently: each field of a file takes effect, or is a
// problem or a notice with a place. Only Options.Validate can turn that off for unknown fields.
package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// The values of Options.Validate.
const (
	Strict = "strict" // an unknown or duplicate field rejects its object
	Warn   = "warn"   // such a field is ignored, with a warning
	Ignore = "ignore" // such a field is ignored
)

// Options says where a file comes from, and how to treat the objects in it.
type Options struct {
	// Node is the node's name; Parse converts it to lower case. It is the suffix of the names of
	// static pods, their nodeName, and a part of their UIDs.
	Node string
	// Source and Location are the kind and the place of the layer. File is the path or URL for
	// messages.
	Source, Location, File string
	// Validate says how to treat unknown and duplicate fields: Strict, Warn or Ignore;
	// "" is Strict.
	Validate string
	// Static says that pods are defaulted, bound to this node (C-1.5.7) and validated. Other pods
	// stay as they are, because their source has done that already.
	Static bool
	// Member says that the node belongs to a cluster. Workloads and Services are then rejected,
	// because the cluster's controllers and its proxy serve them.
	Member bool
}

// maxProblems is how many problems of one object are reported.
const maxProblems = 20

// Parse reads the content of one file: YAML or JSON, with any number of documents. Each is a Pod, a
// workload (pod.WorkloadKinds), a Service, a ConfigMap, a Secret, a PersistentVolumeClaim or a list of
// them. Parse never fails: mistakes are in the file's Problems, in the order of their places. One invalid
// object does not affect the others.
//
// Broken has the keys of rejected pods, BrokenObjects those of rejected workloads. Incomplete says that
// the text may have other pods than these and those in Pods. It is set in these cases:
//
//   - the file is empty (F40); an empty list is an empty set, and no problem
//   - a document cannot be read
//   - a rejected object that may be a pod or a workload has no name
//   - everything in the file is rejected: the file may be truncated, even within a name
//
// The second result has the warnings of Warn. It also has a notice for each field of a static pod, a
// workload or a Service that has no effect (podspec.Ignored, podspec.IgnoredWorkload).
func Parse(data []byte, o Options) (source.File, []pod.Problem) { return parse(data, o, true) }

// parse is Parse; without quick it never uses quickPod. The result must be the same.
func parse(data []byte, o Options, quick bool) (source.File, []pod.Problem) {
	r := &reader{o: o, quick: quick, out: source.File{File: o.File}, seen: map[string]int{}}
	r.o.Node = strings.ToLower(o.Node)
	if o.Validate == "" {
		r.o.Validate = Strict
	}
	text, problem := checkText(data)
	if problem != nil {
		r.incomplete(*problem)
		return r.out, nil
	}
	chunks, problem := scanned(text)
	if problem != nil {
		r.incomplete(*problem)
		return r.out, nil
	}
	objects := 0
	for _, c := range chunks {
		objects += r.chunk(c)
	}
	if objects == 0 {
		r.incomplete(pod.Problem{Msg: "file is empty", Hint: "to run no pods from it, remove the file, or write an empty list: {apiVersion: v1, kind: List, items: []}"})
	}
	if len(r.out.Problems) > 0 && len(r.out.Pods) == 0 && len(r.out.Objects) == 0 {
		r.out.Incomplete = true
	}
	finish(r.out.Problems, text)
	finish(r.warnings, text)
	return r.out, r.warnings
}

// reader collects the content of one file.
type reader struct {
	o        Options
	out      source.File
	warnings []pod.Problem
	quick    bool
	guesses  int // how many unknown names were compared with known ones
	filePods int // how many pods the workloads of the file ask for
	// seen has the line of each object, by kind and key.
	seen map[string]int
}

// chunk reads the documents of a chunk and returns how many of them are not empty.
func (r *reader) chunk(c chunk) (objects int) {
	if c.problem != nil {
		r.incomplete(*c.problem)
		return 1
	}
	if r.quick && r.quickPod(c) {
		return 1
	}
	docs, problem := c.decode(strings.HasSuffix(r.o.File, ".json"))
	if problem != nil {
		r.incomplete(*problem)
		objects++
	}
	for _, d := range docs {
		if d.value != nil {
			objects++
			r.document(d)
		}
	}
	return objects
}

// incomplete records a problem that leaves unknown which pods the file has.
func (r *reader) incomplete(p pod.Problem) {
	r.out.Incomplete = true
	r.problem(p)
}

func (r *reader) problem(p pod.Problem) {
	p.File = r.o.File
	r.out.Problems = append(r.out.Problems, p)
}

// object is one decoded object of a file, before validation.
type object struct {
	kind  string
	value map[string]any
	json  []byte // nil: made from value when needed
	at    *place
	path  string // the prefix of field paths: "", or "items[3]."
}

// origin returns the origin of o: its source and place.
func (r *reader) origin(o object) pod.Origin {
	return pod.Origin{Source: r.o.Source, Location: r.o.Location, File: r.o.File, Line: o.at.line}
}

// id identifies an object in a file.
func (o object) id(key pod.Key) string { return o.kind + " " + key.String() }

// isDuplicate reports whether the file has an earlier object of this kind and key, and then records a
// problem. The first one stays.
func (r *reader) isDuplicate(o object, key pod.Key) bool {
	id := o.id(key)
	if line, ok := r.seen[id]; ok {
		r.problem(o.problem("metadata.name", fmt.Sprintf("%s %s is already defined at line %d of this file", o.kind, key, line), "give one of them another name"))
		return true
	}
	r.seen[id] = o.at.line
	return false
}

// problem returns a problem at a field path of o.
func (o object) problem(path, msg, hint string) pod.Problem {
	line, col := o.at.find(path)
	return pod.Problem{Line: line, Column: col, Path: o.path + path, Msg: msg, Hint: hint}
}

// finish shortens problems and sorts them by place. It moves a problem after the last line to that line:
// YAML has line ends that editors do not have, and reports a missing end on the line after the text.
func finish(ps []pod.Problem, text []byte) {
	last := 1 + bytes.Count(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	for i := range ps {
		if ps[i].Line > last {
			ps[i].Line, ps[i].Column = last, 0
		}
		ps[i] = shortened(ps[i])
	}
	sortProblems(ps)
}

// The limits of a problem's texts, in bytes. A path with valid names is shorter than longestPath: the key
// of a label has up to 317 bytes.
const (
	longestPath = 512
	longestText = 2000
)

// shortened returns a problem whose texts are cut to the limits.
func shortened(p pod.Problem) pod.Problem {
	p.Path, p.Msg, p.Hint = cut(p.Path, longestPath), cut(p.Msg, longestText), cut(p.Hint, longestText)
	return p
}

func sortProblems(ps []pod.Problem) {
	slices.SortStableFunc(ps, func(a, b pod.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
}
