// Package podconfig merges layers into one set of desired pods and yields the changes
// as PodUpdates in the kubelet's order.
//
// A layer is one source and podconfig's state of it. The state has the last good version of each
// pod and file, and says whether the source can be read. If several files define a pod, it also says
// which one owns the pod. If two layers define a pod, the earlier one wins. Results are immutable: each
// merged state is a new value that shares the unchanged Specs with the one before.
//
// Numbers such as C-1.2.10, I9 and F43 are entries of docs/contract.md.
//
// podconfig never removes a pod because a source has not answered.
package podconfig

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Op is the operation of a PodUpdate (C-1.1.7, C-1.3).
type Op string

const (
	SET       Op = "SET"       // all pods; others are no longer desired
	ADD       Op = "ADD"       // new pods
	UPDATE    Op = "UPDATE"    // pods with other content, see Diff
	DELETE    Op = "DELETE"    // pods that their source is deleting
	REMOVE    Op = "REMOVE"    // pods that are no longer desired
	RECONCILE Op = "RECONCILE" // pods with the same content and another status or place
	RESTORE   Op = "RESTORE"   // pods of a last good set, before the source has answered
)

// PodUpdate is one operation on pods of one layer, as in the kubelet.
type PodUpdate struct {
	Op       Op
	Source   string // kind of the layer: file, http, stdin, …
	Location string // the layer's path or URL as given
	// Pods are sorted by key. A REMOVE has their last known specs. An ADD without pods says
	// only that the layer is ready (see Diff).
	Pods []*pod.Spec
	// Old has the previous spec of each of Pods, in the same order, for UPDATE, RECONCILE
	// and DELETE. It is nil for other operations.
	Old []*pod.Spec
}

// Batch is the effect of one reading of one source, or of a change of the pods of workloads. It has
// the updates, and the merged state after them. The updates are ordered by layer, and within a layer
// as in the kubelet (C-1.2.10). A batch without updates reports other changes, such as problems,
// conflicts or a source that cannot be read.
type Batch struct {
	Updates []PodUpdate
	State   *Merged
	// Layer is the layer that was read. It is AllSources for a change of the pods of workloads,
	// and "" for an answer to Sync.
	Layer string
	// ChangedSets has the new last good set of each file of the layer whose set changed. An empty
	// set says that the file no longer has one. A reader that applies the ChangedSets of each
	// batch has the last good sets of all layers. A RESTORE batch has the restored sets.
	ChangedSets []pod.LastGoodSet
	// First says that this was the layer's first complete set: it makes the layer ready.
	First bool
}

// Restored is a layer's last good set as the previous agent stored it.
type Restored struct {
	Files []pod.LastGoodSet // in byte order of File
	At    time.Time         // when the layer was last read without an error
	// Forbidden has the stored workloads that a policy forbids now. They are not in Files. Like
	// forbidden pods, the pods of these workloads stay until their file has no problem.
	Forbidden []*pod.Object
}

// Merged is the merged state of all layers. It is immutable, and shares its unchanged
// parts with the state before it.
type Merged struct {
	Pods      sorted.List[*pod.Spec]   // winners, sorted by key, bound to the config objects that they name
	Objects   sorted.List[*pod.Object] // config objects, first layer wins, sorted by kind and key
	Layers    []LayerState             // in layer order
	Conflicts []Conflict               // sorted by key
	Problems  []pod.Problem            // of files, pods, dependency cycles and references, sorted by file, line, column
	Skipped   []pod.Problem            // the files and documents that sources skipped, with reasons
}

// LayerState is the exported state of one layer.
type LayerState struct {
	Name     string // "file:/etc/nodectl/manifests"
	Source   string // kind
	Location string
	Ready    bool // the source has yielded a complete set since the agent started
	Ended    bool // the source yields nothing more; its last set stays
	Pods     int  // how many pods the layer has before the merge, with last good versions and pods of workloads
	// Error is why the last reading failed; "" if it succeeded.
	Error string
	// Since is the time of the first of the consecutive failures. Before the source has answered,
	// it is when the wait for its answer began. Else it is zero.
	Since time.Time
	// Restored says that the layer is not ready yet, and uses the set that the previous
	// agent stored.
	Restored bool
	// LastGood is when the source was last read without an error, zero if never.
	LastGood time.Time
}

// Stale reports whether the layer uses an older set because its source cannot be read.
func (l LayerState) Stale() bool { return l.Error != "" && (l.Ready || l.Restored) }

// Conflict is a pod or a config object that two places define. The merge uses Winner.
type Conflict struct {
	Kind   string // "Pod", or the kind of a config object
	Key    pod.Key
	Winner pod.Origin
	Loser  pod.Origin
	Reason string // why Winner won, such as "earlier layer wins"
}

// Pod returns the spec of key, nil when it is not in the desired set.
func (m *Merged) Pod(key pod.Key) *pod.Spec {
	s, _ := findPod(m.Pods, key)
	return s
}

// Object returns the config object of this kind and key of the first layer that has one; nil for none.
// A pod that may not see the objects of that layer is bound to the object of a later layer
// (Config.Visible).
func (m *Merged) Object(kind string, key pod.Key) *pod.Object {
	o, _ := sorted.Find(m.Objects, ident{kind, key}, compareItem[*pod.Object])
	return o
}

// Ready reports whether the layer with this name is configured, and whether it is ready.
func (m *Merged) Ready(name string) (ready, configured bool) {
	for _, l := range m.Layers {
		if l.Name == name {
			return l.Ready, true
		}
	}
	return false, false
}

// AllReady reports whether every configured layer is ready (C-1.2.15).
func (m *Merged) AllReady() bool {
	for _, l := range m.Layers {
		if !l.Ready {
			return false
		}
	}
	return true
}
