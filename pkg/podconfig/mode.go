package podconfig

import (
	"fmt"
	"strings"
)

// Mode is how much of a change PodUpdates tell (C-1.3).
type Mode int

const (
	// Incremental tells every change, as Diff does; the kubelet knew no other
	// in the end (C-1.3.4).
	Incremental Mode = iota
	// Snapshot tells one SET with the merged state of all layers whenever a pod
	// was added, updated, deleted or removed, and when a layer is first heard
	// (C-1.3.2).
	Snapshot
	// SnapshotAndUpdates tells one SET with the merged state when a pod was
	// added or removed and when a layer is first heard; then every UPDATE; then
	// every DELETE (C-1.3.3).
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

// notify returns what the mode tells of updates, as Diff gave them, that a
// message of layer led to; state is what they lead to, first says that the
// message was the layer's first set. RECONCILE is told by Incremental alone.
func (m Mode) notify(updates []PodUpdate, state *Merged, layer LayerState, first bool) []PodUpdate {
	if m == Incremental {
		return updates
	}
	var updated, deleted []PodUpdate
	membership := first
	for _, u := range updates {
		switch u.Op {
		case ADD, REMOVE:
			membership = true
		case UPDATE:
			updated = append(updated, u)
		case DELETE:
			deleted = append(deleted, u)
		}
	}
	var out []PodUpdate
	if membership || m == Snapshot && len(updated)+len(deleted) > 0 {
		out = append(out, PodUpdate{Op: SET, Source: layer.Source, Location: layer.Location, Pods: state.Pods})
	}
	if m == SnapshotAndUpdates {
		out = append(append(out, updated...), deleted...)
	}
	return out
}
