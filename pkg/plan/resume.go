package plan

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// FoundPod is a pod that an agent finds on the node when the agent starts. It has facts from the
// runtime and from the record of an earlier agent.
type FoundPod struct {
	Layer    string    // the layer that defined it last; "" if not known
	Spec     *pod.Spec // the recorded spec; nil if none was recorded
	ShownUID string    // the UID that the runtime shows; "" if it shows nothing of the pod
	Running  bool      // a container or the newest sandbox runs
	Stopping bool      // the record says that its stop has begun
	Ended    bool      // the record says that it has terminated
}

// Delay says that a pod does not get its desired spec before a layer is ready. Until then the
// worker does nothing with the pod if As is nil and Stop is false.
type Delay struct {
	Layer string    // the layer that has to become ready
	As    *pod.Spec // the worker runs the pod by this spec
	Stop  bool      // the worker completes the stop that has begun
}

// Delayed returns nil if a pod may get want, the spec that the merged state defines. It returns
// a Delay while want may be older than the pod that runs. Until a layer is ready, podconfig uses
// the set that an earlier agent saved. An agent that was killed may not have saved its last set.
//
// requireReady has the kinds of source whose pods start only when their layer is ready. The
// first row that matches decides:
//
//	the layer of want is not ready, so that want is from its restored set:
//	  the pod runs, its stop has begun,       complete the stop
//	  and requireReady has its source
//	  it runs as desired                      no delay
//	  it runs, and its recorded spec differs  run it by the recorded spec
//	  it runs, and no spec of it is recorded  do nothing
//	  it does not run, and requireReady has   do nothing
//	  its source
//	  it does not run                         no delay
//	an earlier layer than that of want defined the pod last, and is not ready:
//	  the pod runs                            do nothing: that layer may still define it
//	  no set of that layer was restored       do nothing, for the same reason
//	else                                      no delay
//
// A deletion is never reverted (C-1.2.9). So if want is being deleted, a running pod of its UID
// counts as running as desired: it stops without a delay.
func Delayed(state *podconfig.Merged, want *pod.Spec, f FoundPod, requireReady map[string]bool) *Delay {
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

// Terminated reports whether a pod has terminated and nothing of it runs. Such a pod takes no
// capacity of the node.
func (f FoundPod) Terminated() bool { return f.Ended && !f.Running }

// recorded reports whether the record is of the pod that runs.
func (f FoundPod) recorded() bool {
	return f.Spec != nil && (f.ShownUID == "" || f.ShownUID == f.Spec.UID())
}

// Is reports whether a running pod is the desired one. If no spec of it is recorded, Is compares
// only the UID.
func (f FoundPod) Is(want *pod.Spec) bool {
	if !f.recorded() {
		return f.ShownUID == "" || f.ShownUID == want.UID()
	}
	if f.Spec.UID() != want.UID() {
		return false
	}
	return want.Pod.DeletionTimestamp != nil || f.Spec.Pod.DeletionTimestamp == nil && want.Hash != "" && want.Hash == f.Spec.Hash
}

// layerAt returns the layer of this name and its index; -1 if there is none.
func layerAt(state *podconfig.Merged, name string) (int, podconfig.LayerState) {
	for i, l := range state.Layers {
		if l.Name == name {
			return i, l
		}
	}
	return -1, podconfig.LayerState{}
}

// RecordsOf returns one record for each pod. Of several records with different UIDs it returns
// the one of the UID that the runtime shows, else that of the newest instance.
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

// ForbiddenBy returns the reason why a policy forbids a pod to start, "" if it does not. A policy
// never forbids a pod that is being deleted, which only stops. A nil forbids allows all pods.
func ForbiddenBy(forbids func(*pod.Spec) string, want *pod.Spec) string {
	if forbids == nil || want == nil || want.Pod.DeletionTimestamp != nil {
		return ""
	}
	return forbids(want)
}
