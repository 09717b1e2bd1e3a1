package engine

import (
	"context"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// present is a pod as the node shows it and as it was written down.
type present struct {
	layer string    // where it was wanted last; "" where nobody knows
	spec  *pod.Spec // as it was written down; nil when it was not
	shown string    // the UID that the runtime shows; "" where it shows nothing
	alive bool      // something of it runs
	stops bool      // a stop of it had begun
	ended bool      // it was written down that it has ended for good
}

// delay is what keeps a wanted pod as it is: the silence of a layer. Nil is
// nothing.
type delay struct {
	layer string    // that has to speak first
	as    *pod.Spec // as what the pod goes on meanwhile; nil: it is left alone
	stop  bool      // it is not: its stop is finished
}

// delayed says whether a pod may become what the merged state wants of it. Where
// a layer has not spoken, what is known of its wishes may be older than what
// runs: sets are written beside the loop, and no disk is always there. So, first
// match wins:
//
//	the wanted pod's layer has not spoken (it was restored):
//	  its stop had begun, and its source's     the stop is finished
//	  word is needed to start it again
//	  it runs, otherwise than wanted           it goes on as it was written down
//	  it runs, and nobody wrote down as what   it is left alone
//	  it does not run, its source's word is    it does not start
//	  needed for that
//	an earlier layer, from which it ran last, has not spoken:
//	  it runs, or that layer is not known to   it is left alone
//	  want it no more
//	anything else                              it becomes what is wanted
//
// A deletion is never taken back (C-1.2.9), so it is finished on the disk's word.
func delayed(state *podconfig.Merged, want *pod.Spec, p present, needWord map[string]bool) *delay {
	wanted := want.Origin.Layer()
	place, own := layerAt(state, wanted)
	if place >= 0 && !own.Heard {
		switch {
		case p.alive && p.stops && needWord[want.Origin.Source] && want.Pod.DeletionTimestamp == nil:
			return &delay{layer: wanted, stop: true}
		case p.alive && p.is(want):
		case p.alive && p.known():
			return &delay{layer: wanted, as: p.spec}
		case p.alive:
			return &delay{layer: wanted}
		case needWord[want.Origin.Source]:
			return &delay{layer: wanted}
		}
		return nil
	}
	if at, last := layerAt(state, p.layer); at >= 0 && at < place && !last.Heard && (p.alive || !last.Restored) {
		return &delay{layer: p.layer}
	}
	return nil
}

// due returns what a wanted pod is to be for now: another version than wanted
// while a layer has not spoken, nil when nothing more is done about it. Those
// wait in held.
func (l *loop) due(ctx context.Context, key pod.Key, want *pod.Spec) *pod.Spec {
	if e := l.pods[key]; e != nil { // it goes on as it was written down
		if heard, configured := l.state.Heard(want.Origin.Layer()); configured && !heard {
			return nil
		}
		delete(l.held, key)
		return want
	}
	s := l.strays[key]
	d := delayed(l.state, want, s.present, l.cfg.NeedWord)
	if d == nil {
		delete(l.held, key)
		return want
	}
	if !l.held[key] {
		l.held[key] = true
		log := l.log.With("pod", key.String(), "source", d.layer)
		switch {
		case d.stop:
			log.Info("Pod stops, as an agent before began, and waits for the word of its source")
		case s.alive:
			log.Info("Pod goes on as it runs until its source is heard")
		default:
			log.Info("Pod waits for the word of its source")
		}
	}
	if d.stop {
		l.stop(ctx, key, s)
	}
	return d.as
}

// over reports whether a pod has ended for good: it takes no room on the node.
func (p present) over() bool { return p.ended && !p.alive }

// known reports whether what runs is what was written down.
func (p present) known() bool { return p.spec != nil && (p.shown == "" || p.shown == p.spec.UID()) }

// is reports whether a pod that runs is the wanted one, as far as can be told:
// of one that was not written down the UID is all there is.
func (p present) is(want *pod.Spec) bool {
	if !p.known() {
		return p.shown == "" || p.shown == want.UID()
	}
	if p.spec.UID() != want.UID() {
		return false
	}
	return want.Pod.DeletionTimestamp != nil || p.spec.Pod.DeletionTimestamp == nil && want.Hash != "" && want.Hash == p.spec.Hash
}

// layerAt returns a layer and its place, below 0 when there is none of the name.
func layerAt(state *podconfig.Merged, name string) (int, podconfig.LayerState) {
	for i, l := range state.Layers {
		if l.Name == name {
			return i, l
		}
	}
	return -1, podconfig.LayerState{}
}
