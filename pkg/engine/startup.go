package engine

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/podconfig"
)

// phase is the progress of the sync loop from its start to its steady state. It only rises.
type phase int

const (
	// phaseAdopting: the runtime was not read yet. The loop does not know which pods run.
	phaseAdopting phase = iota
	// phaseWaiting: it was read. Layers that have neither answered nor failed have time until
	// layerPatience is over.
	phaseWaiting
	// phaseSyncing: pods are dispatched. Some are not reported yet, or some source has not
	// answered.
	phaseSyncing
	// phaseReady: every source has answered, and every pod that was found or desired at the
	// start was reported.
	phaseReady
)

// layerPatience is how long the first dispatch waits for layers that have neither answered
// nor failed. Otherwise a later layer's pod would start, only to be replaced a moment later
// by an earlier layer's of the same name.
const layerPatience = 500 * time.Millisecond

// observePatience is how long after the first dispatch the loop waits for pods that cannot be
// observed: the runtime hangs over them, or the node they need is not known. After that
// readers may rely on the pods there are.
const observePatience = 10 * time.Second

// startup is the start of the sync loop.
type startup struct {
	phase    phase
	late     bool            // layerPatience is over
	found    map[string]bool // UIDs that the first census found
	whole    bool            // the first census read every pod
	since    time.Time       // when pods were dispatched first
	observed bool            // readers know that every pod was observed
}

// adopted reports whether the runtime was read: admitted and orphaned pods are known.
func (s *startup) adopted() bool { return s.phase > phaseAdopting }

// dispatching reports whether workers get updates.
func (s *startup) dispatching() bool { return s.phase >= phaseSyncing }

// adopt notes the result of the first census.
func (s *startup) adopt(c census) {
	s.phase, s.whole = phaseWaiting, c.err == nil && !c.damaged
	s.found = make(map[string]bool, len(c.records)+len(c.pods))
	for _, r := range c.records {
		s.found[r.UID] = true
	}
	for _, a := range c.pods {
		s.found[a.UID] = true
	}
}

// dispatch begins the first dispatch, and reports whether it may begin: the runtime was read,
// so that running pods stay admitted, and every layer has answered, failed, or timed out.
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

// begin dispatches all pods for the first time, once that may begin.
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

// noteUnanswered logs which sources have neither answered nor failed.
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

// noteAllReported reports once that every pod was observed, and once that the start is over:
// every source has answered, too.
func (l *loop) noteAllReported(ctx context.Context) {
	if l.start.phase != phaseSyncing {
		return
	}
	open := 0
	for _, e := range l.pods {
		if e.last == nil {
			open++
		}
	}
	if !l.start.observed && (open == 0 || time.Since(l.start.since) > observePatience) {
		l.start.observed = true
		l.out.feed.MarkPodsObserved()
	}
	if open > 0 || !l.state.AllReady() {
		return
	}
	l.start.phase = phaseReady
	l.log.Info("All pods reported", "pods", len(l.pods))
	if l.cfg.Synced != nil {
		l.cfg.Synced()
	}
	for _, key := range sortedKeys(l.cfg.Before) {
		if _, found := l.orphans[key]; l.mode.sweep && !found && l.pods[key] == nil {
			l.reportGone(key, nil) // it was removed while no agent could report it
		}
	}
	if l.mode.sweep && l.start.whole {
		l.sweepDirectories(ctx)
	}
}
