package podconfig

import (
	"fmt"
	"strings"
)

// Mode says which PodUpdates describe a change (C-1.3).
type Mode int

const (
	// Incremental sends the updates of Diff. It is the only mode of today's kubelet
	// (C-1.3.4).
	Incremental Mode = iota
	// Snapshot sends one SET with the merged state of all layers whenever a pod was added,
	// updated, deleted or removed. It also sends one when a layer becomes ready (C-1.3.2).
	Snapshot
	// SnapshotAndUpdates sends one SET with the merged state when a pod was added or removed,
	// and when a layer becomes ready. After the SET it sends every UPDATE, then every DELETE
	// (C-1.3.3).
	SnapshotAndUpdates
)

var modeNames = [...]string{"incremental", "snapshot", "snapshot-and-updates"}

// String returns the mode's name as flags spell it.
func (m Mode) String() string {
	if m < 0 || int(m) >= len(modeNames) {
		return fmt.Sprintf("mode %d", int(m))
	}
	return modeNames[m]
}

// ParseMode returns the mode of that name.
func ParseMode(name string) (Mode, error) {
	for i, n := range modeNames {
		if n == name {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q: want one of %s", name, strings.Join(modeNames[:], ", "))
}

// Convert converts a batch of an Incremental PodConfig to the updates of the mode. So one running
// PodConfig can serve readers in every mode. The other modes have no RECONCILE. A RESTORE becomes a
// SET, as an ADD does (C-1.3.8). The answer to Sync is the same in every mode (C-1.3.5).
//
// A SET copies the list of all pods: call Convert once for all readers of one mode.
func (m Mode) Convert(b Batch) []PodUpdate {
	if m == Incremental || b.Layer == "" {
		return b.Updates
	}
	var updated, deleted []PodUpdate
	membership := b.First
	for _, u := range b.Updates {
		switch u.Op {
		case ADD, REMOVE, RESTORE:
			membership = membership || len(u.Pods) > 0
		case UPDATE:
			updated = append(updated, u)
		case DELETE:
			deleted = append(deleted, u)
		}
	}
	var out []PodUpdate
	if membership || m == Snapshot && len(updated)+len(deleted) > 0 {
		kind, location, _ := strings.Cut(b.Layer, ":")
		out = append(out, PodUpdate{Op: SET, Source: kind, Location: location, Pods: b.State.Pods.Slice()})
	}
	if m == SnapshotAndUpdates {
		out = append(append(out, updated...), deleted...)
	}
	return out
}
