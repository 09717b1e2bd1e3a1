// Package manifest turns bytes into defaulted, validated objects.
//
// Sources pass one file's bytes, YAML or JSON, and get the pods and config objects in
// it and every problem with file, line, column and field path. Only this package knows
// which pods are valid: it uses the defaulting and validation of k8s.io/kubernetes.
//
// The package does no I/O, and ignores nothing silently: every field of a file takes
// effect or is a problem with a place.
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

// Values of Options.Validate.
const (
	Strict = "strict" // an unknown or duplicate field rejects its object
	Warn   = "warn"   // it is a warning, and ignored
	Ignore = "ignore" // it is ignored
)

// Options says where bytes come from and how to treat the pods in them.
type Options struct {
	// Node is the node's name, lower case or made so: suffix of pod names,
	// nodeName, part of UIDs.
	Node string
	// Source and Location are the layer's kind and place, File the path or URL
	// as shown to people.
	Source, Location, File string
	// Validate says how to treat unknown and duplicate fields: Strict, Warn or Ignore;
	// "" is Strict.
	Validate string
	// Static pods get their node's identity and defaults (C-1.5.7) and are validated.
	// Others are used as they are: their source has done that already.
	Static bool
	// Member says that the node belongs to a cluster. Workloads and Services are then rejected,
	// because the cluster's controllers and its proxy serve them.
	Member bool
}

// maxProblems is how many problems of one pod are shown.
const maxProblems = 20

// Parse reads one file's bytes: YAML or JSON, any number of documents, each a Pod, a workload
// (pod.WorkloadKinds), a Service, a ConfigMap, Secret, PersistentVolumeClaim or a list of them. It never
// fails and never panics: mistakes are in the file's Problems, in the order of their places,
// and one invalid object does not affect the others.
//
// Broken names the pods that are rejected, BrokenObjects the workloads. Incomplete is set when it
// is not certain which pods the text holds: it is empty, some document of it cannot be read, a
// rejected object that may be a pod or a workload has no name, or everything in it is rejected, so
// that even a name may be half of one; Pods then still has the readable pods. An explicit empty
// list is an empty set, an empty file is a problem (F40).
//
// The second result holds the warnings of Warn, and a notice for each field of the spec of a
// static pod or a workload that changes nothing (podspec.Ignored, podspec.IgnoredWorkload).
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
	// seen holds the line of every object, by kind and key.
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

// incomplete records a problem after which it is not certain which pods the file holds.
func (r *reader) incomplete(p pod.Problem) {
	r.out.Incomplete = true
	r.problem(p)
}

func (r *reader) problem(p pod.Problem) {
	p.File = r.o.File
	r.out.Problems = append(r.out.Problems, p)
}

// object is one object in a file, as it is written.
type object struct {
	kind  string
	value map[string]any
	json  []byte // nil: made from value when needed
	at    *place
	path  string // in front of field paths: "", or "items[3]."
}

// origin returns where o is written.
func (r *reader) origin(o object) pod.Origin {
	return pod.Origin{Source: r.o.Source, Location: r.o.Location, File: r.o.File, Line: o.at.line}
}

// id names an object of a file.
func (o object) id(key pod.Key) string { return o.kind + " " + key.String() }

// again reports whether the file has an earlier object of this kind and key, and
// records the problem if so. The first one stays.
func (r *reader) again(o object, key pod.Key) bool {
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

// finish shortens problems and sorts them by place. YAML counts some line ends that
// editors do not, and something missing at the end is reported on the line after it:
// finish shows no problem past the last line.
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

// The limits of a problem's texts, in bytes. The longest path that a manifest without mistakes in
// its names leads to ends in a label's key, of 317.
const (
	longestPath = 512
	longestText = 2000
)

// shortened returns a problem without most of a name or value that is longer than any is.
func shortened(p pod.Problem) pod.Problem {
	p.Path, p.Msg, p.Hint = cut(p.Path, longestPath), cut(p.Msg, longestText), cut(p.Hint, longestText)
	return p
}

func sortProblems(ps []pod.Problem) {
	slices.SortStableFunc(ps, func(a, b pod.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
}
