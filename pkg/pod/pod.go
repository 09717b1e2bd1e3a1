// Package pod holds the types that all other packages share: a pod's key, its desired
// spec, its state in the runtime, and its problems.
//
// It sits below every other package: sources make Specs, the runtime adapter
// makes Actuals, plan compares the two.
//
// The package has no I/O, no clock and no goroutine. A Spec is immutable.
package pod

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Key is a pod's identity on this node: namespace and name, the name with its
// node suffix where the pod is static. Never two instances of one Key run.
type Key struct{ Namespace, Name string }

// String returns "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Compare orders keys by namespace, then name, in byte order.
func (k Key) Compare(o Key) int {
	if c := strings.Compare(k.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.Name, o.Name)
}

// KeyOf returns the key of an API object's metadata.
func KeyOf(p *v1.Pod) Key { return Key{Namespace: p.Namespace, Name: p.Name} }

// Origin says where a pod, an object or a problem was written.
type Origin struct {
	Source   string // kind of the source: file, http, api, etcd, stdin
	Location string // the layer: the path or URL as given on the command line
	File     string // the file or URL itself, with "#2" for the second document where lines do not exist
	Line     int    // first line of the object in File, from 1; 0 is unknown
}

// String returns File:Line, File, or Location, whichever is known.
func (o Origin) String() string {
	switch {
	case o.File != "" && o.Line > 0:
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	case o.File != "":
		return o.File
	}
	return o.Location
}

// Layer names the layer of this origin, as labels, kept state and messages
// carry it: "file:/etc/nodectl/manifests".
func (o Origin) Layer() string { return o.Source + ":" + o.Location }

// Spec ("want") is one pod as one source wrote it: defaulted, validated, with its
// static-pod identity in place. It is immutable and shared by pointer; copy the Pod
// before changing it.
type Spec struct {
	Key
	Origin Origin
	Pod    *v1.Pod

	// Hash covers everything the author set, before defaulting, with a version
	// in front ("v1-…"). It is the kubernetes.io/config.hash annotation.
	Hash string
	// SandboxHash covers the part of the author's text whose change replaces
	// the whole pod.
	SandboxHash string
	// ContainerHashes covers, per container name (init containers included),
	// the part whose change restarts that container.
	ContainerHashes map[string]string
	// Earlier holds the hashes of earlier versions' rules, by container name, "" for
	// the sandbox, where they differ: they match containers that run since before an
	// upgrade.
	Earlier map[string]string
	// Data is the config objects that the pod is bound to, nil where it names none. It
	// is not part of Hash.
	Data *Data
	// Unread names, in order, the config objects of which the source could not read whether
	// they are there: they do not count as missing, also where they are optional.
	Unread []ObjectID
	// Positions are the places of references to config objects in the file, by their
	// field paths (Ref.Path). It may be nil: only messages need it.
	Positions map[string]Position
	// DependsOn is the conditions for the start of this pod, from annotation
	// AnnotationDependsOn; the pods it names stop after it.
	DependsOn []Dependency
	// Placed has the exclusive CPUs, NUMA memory and reserved devices of containers, by name. Admission
	// decides it; no source sets it, and no hash covers it.
	Placed map[string]Placement
}

// AnnotationDependsOn orders pods of one namespace: a comma-separated list of
// NAME[:started|ready|done], the name with or without the node's suffix.
const AnnotationDependsOn = "nodectl.dev/depends-on"

// Dependency is one pod that another waits for.
type Dependency struct {
	Name  string // as written: with or without the node's suffix
	Until DependencyCondition
}

// DependencyCondition is the condition that a dependency must meet.
type DependencyCondition string

// The conditions; Started is the default.
const (
	Started DependencyCondition = "started" // every container of it runs or has succeeded
	Ready   DependencyCondition = "ready"   // its condition Ready is True, or it has Succeeded
	Done    DependencyCondition = "done"    // it has Succeeded
)

// Position is a place in a file, from 1.
type Position struct{ Line, Column int }

// UID returns the pod's UID as text.
func (s *Spec) UID() string { return string(s.Pod.UID) }

// ContainerHash returns the hash whose change restarts container name, "" for
// a name the pod does not have.
func (s *Spec) ContainerHash(name string) string { return s.ContainerHashes[name] }

// LastGoodSet is the last good set of one file of a layer: the pods and objects read last,
// and those kept while they cannot be read. Both lists are shared and immutable.
type LastGoodSet struct {
	File    string
	Pods    []*Spec
	Objects []*Object
}

// Empty reports whether the set is empty.
func (s LastGoodSet) Empty() bool { return len(s.Pods) == 0 && len(s.Objects) == 0 }

// Problem is one mistake that a user can fix: its place, a description and the remedy. Problems are
// values, not errors with stacks.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // from 1; 0 is unknown
	Column int    `json:"column"` // from 1; 0 is unknown
	Path   string `json:"path"`   // field path, as "spec.containers[0].image"; may be empty
	Msg    string `json:"message"`
	Hint   string `json:"hint"` // may be empty
	Pod    Key    `json:"-"`    // the pod that is rejected because of it; zero: none, or its name is not known
	// Lacking says that the pod needs something that this node does not have: an API
	// server's pod waits for it, and is not Failed.
	Lacking bool `json:"-"`
}

// Error returns "file:line:column: path: message", without unknown parts.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Place())
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Msg)
	return b.String()
}

// Place returns "file:line:column", without unknown parts.
func (p Problem) Place() string {
	s := p.File
	if p.Line > 0 {
		s += fmt.Sprintf(":%d", p.Line)
		if p.Column > 0 {
			s += fmt.Sprintf(":%d", p.Column)
		}
	}
	return s
}

// Object is a config object or a workload as a source wrote it. It is immutable and shared.
type Object struct {
	Key
	Kind   string // KindConfigMap, KindSecret, KindClaim, KindService or one of WorkloadKinds
	Origin Origin
	Hash   string // of the content, so that a change shows
	// Object is a *v1.ConfigMap, *v1.Secret, *v1.PersistentVolumeClaim or *v1.Service, or a workload: a
	// pointer to the type of its kind in apps/v1 or batch/v1. A workload is valid with the
	// API's defaults, and has none of them, nor a UID or a status.
	Object any
	// Positions are the places of references to config objects in the file, by their field
	// paths in the pod template (Ref.Path). Only workloads have them, and they may be nil:
	// only messages need them.
	Positions map[string]Position
}
