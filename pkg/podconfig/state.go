// Package podconfig merges layers into one set of desired pods and yields the changes
// as PodUpdates in the kubelet's order.
//
// It reads sources; it alone keeps last good versions, marks staleness and knows which
// file of a layer holds a key (the incumbent). Its results are immutable and shared:
// merged states are new values that reuse unchanged Specs by pointer.
//
// The one rule: it never removes a pod because a source has not answered.
package podconfig

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Op is what a PodUpdate asks of its reader (C-1.1.7, C-1.3).
type Op string

const (
	SET       Op = "SET"
	ADD       Op = "ADD"
	UPDATE    Op = "UPDATE"
	DELETE    Op = "DELETE"
	REMOVE    Op = "REMOVE"
	RECONCILE Op = "RECONCILE"
	RESTORE   Op = "RESTORE"
)

// PodUpdate is one operation on pods of one layer, as the kubelet's.
type PodUpdate struct {
	Op       Op
	Source   string      // kind of the layer: file, http, stdin, …
	Location string      // the layer's path or URL as given
	Pods     []*pod.Spec // sorted by key; for REMOVE the last known specs; empty in a first, empty ADD
	// Old holds, for UPDATE, RECONCILE and DELETE, the specs before, index for
	// index with Pods; nil otherwise.
	Old []*pod.Spec
}

// Batch is everything one message of one source led to: updates in the
// kubelet's order (C-1.2.10) and the state they lead to. A batch without
// updates reports a change of problems, conflicts or staleness alone.
type Batch struct {
	Updates []PodUpdate
	State   *Merged
	// Layer names the layer whose message it was, ChangedSets the files of that layer whose
	// last good set changed, each with its whole new set; an empty one no longer has
	// any. A reader that applies the ChangedSets of every batch has each layer's last good
	// set. In a RESTORE batch the ChangedSets are the restored set.
	Layer       string
	ChangedSets []pod.LastGoodSet
	// First says that the message was the layer's first set: from here on the layer is
	// ready.
	First bool
}

// Restored is a layer's last good set as the previous agent stored it.
type Restored struct {
	Files []pod.LastGoodSet // in byte order of File
	At    time.Time         // when the layer was last read without an error
}

// Merged is the state of all layers, merged. It is immutable, and shares with
// the state before it whatever did not change.
type Merged struct {
	Pods      sorted.List[*pod.Spec]   // winners, sorted by key, bound to the config objects they name
	Objects   sorted.List[*pod.Object] // config objects, first layer wins, sorted by kind and key
	Layers    []LayerState             // in layer order
	Conflicts []Conflict               // sorted by key
	Problems  []pod.Problem            // rejections, sorted by file, line, column; of files, pods, cycles, references
	Skipped   []pod.Problem            // what sources skipped, with reasons
}

// LayerState is one layer as podconfig knows it.
type LayerState struct {
	Name     string // "file:/etc/nodectl/manifests"
	Source   string // kind
	Location string
	Ready    bool // has yielded a complete set at least once
	Ended    bool // its sequence ended; its last set stays
	Pods     int  // pods it holds, last good ones included, before the merge
	// Error is why the last read failed; "" when it succeeded.
	Error string
	// Since is when the error began or, for a layer that has not answered yet, when it
	// was first read; zero otherwise.
	Since time.Time
	// Restored says that its pods are those that the previous agent stored: the layer
	// is not ready yet.
	Restored bool
	// LastGood is when its set was last read without an error, zero when never.
	LastGood time.Time
}

// Stale reports whether the layer uses an older reading because it cannot be read.
func (l LayerState) Stale() bool { return l.Error != "" && (l.Ready || l.Restored) }

// Conflict is one pod that two places define: the loser is left out and named.
type Conflict struct {
	Kind   string // "Pod", or the kind of a config object
	Key    pod.Key
	Winner pod.Origin
	Loser  pod.Origin
	Reason string // "earlier layer wins", "running owner stays", "first path in byte order", "first in the file"
}

// Pod returns the spec of key, nil when it is not in the desired set.
func (m *Merged) Pod(key pod.Key) *pod.Spec {
	s, _ := findPod(m.Pods, key)
	return s
}

// Object returns the config object of that kind and key that the first layer holds, nil
// when none does. A pod may be bound to the object of a later layer (Config.Visible).
func (m *Merged) Object(kind string, key pod.Key) *pod.Object {
	o, _ := sorted.Find(m.Objects, ident{kind, key}, compareItem[*pod.Object])
	return o
}

// Ready reports whether layer name is configured and whether it has yielded a
// complete set.
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
