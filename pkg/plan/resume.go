package plan

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Found is a pod as an agent finds it on the node: what the runtime shows, and what an
// earlier agent recorded.
type Found struct {
	Layer    string    // that defined it last; "" where it is not known
	Spec     *pod.Spec // as recorded; nil when it was not
	ShownUID string    // by the runtime; "" where the runtime shows nothing of it
	Running  bool      // something of it runs
	Stopping bool      // its stop had begun
	Ended    bool      // the record says that it has terminated
}

// Delay keeps a desired pod as it is until a layer has answered. Nil delays nothing.
type Delay struct {
	Layer string    // that has to answer first
	As    *pod.Spec // the spec that the pod keeps meanwhile; nil: it is left alone
	Stop  bool      // it is not left alone: its stop is finished
}

// Delayed returns whether a pod may become what the merged state defines. Where a layer has
// not answered, its known set may be older than what runs: sets are written beside the sync
// loop, and a disk may be missing. The first match wins:
//
//	the layer of the desired pod has not answered (its set was restored):
//	  its stop had begun, and its source has   the stop is finished
//	  to be ready to start it again
//	  it runs, otherwise than desired          it keeps the recorded spec
//	  it runs, and no spec was recorded        it is left alone
//	  it does not run, and its source has to   it does not start
//	  be ready for that
//	an earlier layer, which defined it last, has not answered:
//	  it runs, or that layer's restored set    it is left alone
//	  may still define it
//	anything else                              it becomes what is desired
//
// A deletion is never reverted (C-1.2.9), so it is finished even where only the disk has it.
// requireReady names the kinds of source whose pods do not start before their source is
// ready.
func Delayed(state *podconfig.Merged, want *pod.Spec, f Found, requireReady map[string]bool) *Delay {
	desired := want.Origin.Layer()
	place, own := layerAt(state, desired)
	if place >= 0 && !own.Ready {
		switch {
		case f.Running && f.Stopping && requireReady[want.Origin.Source] && want.Pod.DeletionTimestamp == nil:
			return &Delay{Layer: desired, Stop: true}
		case f.Running && f.Is(want):
		case f.Running && f.recorded():
			return &Delay{Layer: desired, As: f.Spec}
		case f.Running:
			return &Delay{Layer: desired}
		case requireReady[want.Origin.Source]:
			return &Delay{Layer: desired}
		}
		return nil
	}
	if at, last := layerAt(state, f.Layer); at >= 0 && at < place && !last.Ready && (f.Running || !last.Restored) {
		return &Delay{Layer: f.Layer}
	}
	return nil
}

// Terminated reports whether a pod has terminated and nothing of it runs: it takes no room on
// the node.
func (f Found) Terminated() bool { return f.Ended && !f.Running }

// recorded reports whether the record is of the pod that runs.
func (f Found) recorded() bool {
	return f.Spec != nil && (f.ShownUID == "" || f.ShownUID == f.Spec.UID())
}

// Is reports whether a running pod is the desired one, as far as that is known: without a
// recorded spec, only the UID can be compared.
func (f Found) Is(want *pod.Spec) bool {
	if !f.recorded() {
		return f.ShownUID == "" || f.ShownUID == want.UID()
	}
	if f.Spec.UID() != want.UID() {
		return false
	}
	return want.Pod.DeletionTimestamp != nil || f.Spec.Pod.DeletionTimestamp == nil && want.Hash != "" && want.Hash == f.Spec.Hash
}

// layerAt returns a layer and its index, below 0 when there is none of the name.
func layerAt(state *podconfig.Merged, name string) (int, podconfig.LayerState) {
	for i, l := range state.Layers {
		if l.Name == name {
			return i, l
		}
	}
	return -1, podconfig.LayerState{}
}

// RecordsOf returns one record of each pod: that of the pod the runtime shows, else that of
// its newest instance. A replaced pod may have left one under its old UID.
func RecordsOf(have []pod.Actual, records []pod.Record) map[pod.Key]pod.Record {
	shown := make(map[pod.Key]string, len(have))
	for _, a := range have {
		shown[a.Key] = a.UID
	}
	best := make(map[pod.Key]pod.Record, len(records))
	for _, r := range records {
		old, known := best[r.Key]
		switch fits := r.UID == shown[r.Key]; {
		case !known, fits:
			best[r.Key] = r
		case old.UID != shown[r.Key]:
			best[r.Key] = newer(old, r)
		}
	}
	return best
}

// newer returns the record of the later instance.
func newer(a, b pod.Record) pod.Record {
	if a.Want == nil || b.Instance > a.Instance || b.Instance == a.Instance && b.StartTime.After(a.StartTime) {
		return b
	}
	return a
}

// ForbiddenBy returns why a policy does not allow a pod to start, "" when it does. A pod that
// is being deleted starts nothing, and may always stop. A nil forbids allows everything.
func ForbiddenBy(forbids func(*pod.Spec) string, want *pod.Spec) string {
	if forbids == nil || want == nil || want.Pod.DeletionTimestamp != nil {
		return ""
	}
	return forbids(want)
}
