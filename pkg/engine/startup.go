package engine

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/podconfig"
)

// phase is the progress of the sync loop from its start to its steady state. It only rises.
type phase int

const (
	// phaseAdopting: the first listing is not done. The loop does not know which pods run.
	phaseAdopting phase = iota
	// phaseWaiting: the first listing is done. Layers that have neither answered nor failed
	// have time until layerTimeout is over.
	phaseWaiting
	// phaseSyncing: the workers get updates. The worker of some pod has not reported yet, or
	// some layer is not ready.
	phaseSyncing
	// phaseReady: every layer is ready, and the worker of every pod has reported its status.
	phaseReady
)

// layerTimeout is how long the first dispatch waits for layers that have neither answered
// nor failed. Without this wait, a pod of a later layer could start, and an earlier layer's pod
// of the same name replace it a moment later.
const layerTimeout = 500 * time.Millisecond

// observeTimeout limits how long, after the first dispatch, the feed's readers wait for the
// first report of every pod. A pod has no report while the runtime does not answer, or while its
// admission waits for the Node object. After this time readers get the pods that have one.
const observeTimeout = 10 * time.Second

// startup is the start of the sync loop.
type startup struct {
	phase          phase
	late           bool            // layerTimeout is over
	found          map[string]bool // UIDs that the first listing found
	complete       bool            // the first listing could read every pod and every record
	since          time.Time       // when the first dispatch began
	markedObserved bool            // the feed's MarkPodsObserved was called
}

// adopted reports whether the first listing is done: the loop knows which pods are on the node.
func (s *startup) adopted() bool { return s.phase > phaseAdopting }

// dispatching reports whether workers get updates.
func (s *startup) dispatching() bool { return s.phase >= phaseSyncing }

// adopt notes the result of the first listing.
func (s *startup) adopt(found listing) {
	s.phase, s.complete = phaseWaiting, found.err == nil && !found.damaged
	s.found = make(map[string]bool, len(found.records)+len(found.pods))
	for _, r := range found.records {
		s.found[r.UID] = true
	}
	for _, a := range found.pods {
		s.found[a.UID] = true
	}
}

// dispatch enters phaseSyncing and returns true, once the first dispatch may begin. The first listing
// has to be done, so that running pods stay admitted. And every layer has to have answered or
// failed, unless layerTimeout is over.
func (s *startup) dispatch(state *podconfig.Merged, now time.Time) bool {
	if s.phase != phaseWaiting || state == nil {
		return false
	}
	for _, layer := range state.Layers {
		if !s.late && !layer.Ready && layer.Error == "" {
			return false
		}
	}
	s.phase, s.since = phaseSyncing, now
	return true
}

// begin does the first dispatch, of all desired pods, once start.dispatch allows it.
func (l *loop) begin(ctx context.Context) {
	if !l.start.dispatch(l.state, time.Now()) {
		return
	}
	for spec := range l.state.Pods.All() {
		l.want(ctx, spec.Key, spec)
	}
	l.admit(ctx)
	l.judgeOrphans(ctx)
}

// noteUnanswered logs the layers that have neither answered nor failed.
func (l *loop) noteUnanswered() {
	var layers []podconfig.LayerState
	switch {
	case l.state != nil:
		layers = l.state.Layers
	case l.cfg.PodConfig != nil:
		layers = l.cfg.PodConfig.Layers()
	}
	for _, layer := range layers {
		if !layer.Ready && layer.Error == "" {
			l.log.Warn("Source has not answered yet", "source", layer.Name, "pods_kept", layer.Pods)
		}
	}
}

// noteAllReported does two things, each once. It marks the feed's pods as observed, when every
// worker has reported or observeTimeout is over. It enters phaseReady, when every worker has
// reported and every layer is ready.
func (l *loop) noteAllReported(ctx context.Context) {
	if l.start.phase != phaseSyncing {
		return
	}
	unreported := 0
	for _, e := range l.pods {
		if e.last == nil {
			unreported++
		}
	}
	if !l.start.markedObserved && (unreported == 0 || time.Since(l.start.since) > observeTimeout) {
		l.start.markedObserved = true
		l.out.feed.MarkPodsObserved()
	}
	if unreported > 0 || !l.state.AllReady() {
		return
	}
	l.start.phase = phaseReady
	l.log.Info("Status of every pod is known", "pods", len(l.pods))
	if l.cfg.Synced != nil {
		l.cfg.Synced()
	}
	for _, key := range sortedKeys(l.cfg.Before) {
		if _, found := l.orphans[key]; l.mode.serves && !found && l.pods[key] == nil {
			l.reportGone(key, nil) // it was removed while no agent ran
		}
	}
	if l.mode.serves && l.start.complete {
		l.sweepDirectories(ctx)
	}
}
