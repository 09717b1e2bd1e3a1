package engine

import (
	"cmp"
	"context"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// census is the pods of the runtime and the records on disk.
type census struct {
	pods    []pod.Actual
	records []pod.Record
	err     error     // of reading the runtime's pods
	damaged bool      // some records were not read
	asked   []pod.Key // the pods that were read; nil: all
}

// counting is the periodic job that looks for pods the loop does not know, in a goroutine of
// its own: one census at a time, and none without a reason.
type counting struct {
	running bool
	done    chan census      // capacity 0
	all     bool             // the node may have any pod that the loop does not know
	hinted  map[pod.Key]bool // unknown pods with a hint
}

func newCounting() counting {
	return counting{done: make(chan census), hinted: make(map[pod.Key]bool)}
}

// housekeep looks for pods that the loop does not know when there was a hint. judgeOrphans
// handles what it finds.
func (l *loop) housekeep(ctx context.Context) {
	if l.view.pending {
		l.admit(ctx)
	}
	switch {
	case !l.runtime.Runtime, l.jobs.counting.running:
	case l.jobs.counting.all || !l.start.adopted():
		l.count(ctx)
	case len(l.jobs.counting.hinted) > 0:
		l.lookFor(ctx)
	}
}

// count reads all pods and records.
func (l *loop) count(ctx context.Context) {
	if l.jobs.counting.running {
		return
	}
	l.jobs.counting.all = false
	runtime, records, log := l.cfg.Runtime, l.cfg.Records, l.log
	l.take(ctx, func() (c census) {
		c.pods, c.err = runtime.Pods(ctx)
		if c.pods != nil {
			var err error
			if c.records, err = records.All(); err != nil {
				log.Warn("Failed to read records", "error", err)
				c.damaged = true
			}
		}
		return c
	})
}

// lookFor reads only the pods with a hint.
func (l *loop) lookFor(ctx context.Context) {
	keys := sortedKeys(l.jobs.counting.hinted)
	clear(l.jobs.counting.hinted)
	runtime := l.cfg.Runtime
	l.take(ctx, func() (c census) {
		c.pods, c.asked = []pod.Actual{}, keys
		for _, key := range keys {
			a, err := runtime.Pod(ctx, key)
			switch {
			case err != nil:
				c.err = err
			case !a.Empty():
				c.pods = append(c.pods, a)
			}
		}
		return c
	})
}

// take takes a census in a goroutine of its own.
func (l *loop) take(ctx context.Context, look func() census) {
	l.jobs.counting.running = true
	done := l.jobs.counting.done
	l.workers.Go(func() {
		select {
		case done <- look():
		case <-ctx.Done():
		}
	})
}

// handleCensus notes the pods that the loop does not know. The first census adopts: running
// pods are admitted.
func (l *loop) handleCensus(ctx context.Context, c census) {
	l.jobs.counting.running = false
	if c.err != nil {
		// Pods that could not be read are read again later; the others count.
		l.log.Warn("Failed to read pods from runtime", "error", c.err)
		l.jobs.counting.all = true
		if c.pods == nil {
			return
		}
	}
	for _, r := range plan.RecordsOf(c.pods, c.records) {
		s := orphan{uid: r.UID}
		s.Stopping, s.Ended = !r.StopSince.IsZero(), r.Terminal != ""
		s.Running = c.err != nil // a pod that could not be read may run
		if s.Spec = r.Want; r.Want != nil {
			s.Layer = r.Want.Origin.Layer()
		}
		l.note(r.Key, s)
	}
	for _, a := range c.pods {
		s := orphan{uid: a.UID}
		s.ShownUID, s.Running = a.UID, podview.Running(a)
		if a.Sandbox != nil {
			s.Layer = a.Sandbox.Layer
		}
		l.note(a.Key, s)
	}
	if c.err == nil {
		l.forgetForeign(c)
	}
	if !l.start.adopted() {
		l.start.adopt(c)
		for key, uid := range l.mode.down {
			l.note(key, orphan{uid: uid})
		}
		l.begin(ctx)
	}
	l.judgeOrphans(ctx)
}

// note adds a pod that the loop does not know. Records are noted first: they know more than
// the runtime.
func (l *loop) note(key pod.Key, s orphan) {
	old, known := l.orphans[key]
	switch {
	case l.pods[key] != nil:
		return
	case known && (old.Layer != "" || s.Layer == ""):
		old.Running = old.Running || s.Running
		if s.ShownUID != "" {
			old.ShownUID = s.ShownUID
		}
		l.orphans[key] = old
		return
	case known:
		s.uid, s.Spec, s.Ended = cmp.Or(old.uid, s.uid), old.Spec, old.Ended
	}
	s.first = !l.start.dispatching()
	l.orphans[key] = s
}

// isForeign reports whether an orphaned pod belongs to another root: it appeared while this
// agent held its own root, and has no source of this agent.
func (l *loop) isForeign(o orphan) bool {
	if o.first || l.state == nil {
		return false
	}
	_, configured := l.state.Ready(o.Layer)
	return !configured
}

// forgetForeign forgets the pods of another root that a census did not find: that root may
// make pods of ever new names.
func (l *loop) forgetForeign(c census) {
	there := make(map[pod.Key]bool, len(c.pods))
	for _, a := range c.pods {
		there[a.Key] = true
	}
	keys := c.asked
	if keys == nil {
		keys = sortedKeys(l.orphans)
	}
	for _, key := range keys {
		if o, known := l.orphans[key]; known && !there[key] && l.isForeign(o) {
			delete(l.orphans, key)
		}
	}
}

// isTakenDown reports whether runonce takes this pod down.
func (l *loop) isTakenDown(key pod.Key) bool {
	_, ok := l.mode.down[key]
	return ok
}

// judgeOrphans stops orphaned pods, but only once the source they came from has answered, or
// when that source is not configured any more. A source that does not answer removes nothing.
func (l *loop) judgeOrphans(ctx context.Context) {
	if !l.start.dispatching() {
		return
	}
	for _, key := range sortedKeys(l.orphans) {
		s := l.orphans[key]
		if l.state.Pod(key) == nil && !l.mode.sweep && !l.isTakenDown(key) {
			continue
		}
		if l.pods[key] != nil {
			delete(l.orphans, key)
			continue
		}
		if want := l.state.Pod(key); want != nil { // it waited for its source until now, or still does
			l.want(ctx, key, want)
			continue
		}
		ready, configured := l.state.Ready(s.Layer)
		if !configured && s.first {
			ready = l.state.AllReady() // another source may define it under another name
		}
		if !ready && (configured || s.first) && !l.isTakenDown(key) {
			if !s.seen {
				l.log.Info("Keeping pod until its source answers", "pod", key.String(), "source", s.Layer)
				s.seen = true
				l.orphans[key] = s
			}
			continue
		}
		if !configured && !s.first && !l.isTakenDown(key) {
			// It appeared while this agent held the root: it belongs to another root.
			if !s.seen {
				l.log.Warn("Ignoring pod of an unknown source", "pod", key.String(), "source", s.Layer)
				s.seen = true
				l.orphans[key] = s
			}
			continue
		}
		if configured || l.isTakenDown(key) {
			l.log.Info("Stopping pod that is no longer in the desired set", "pod", key.String(), "source", s.Layer)
		} else {
			l.log.Warn("Stopping pod whose source is no longer configured", "pod", key.String(), "source", s.Layer)
		}
		l.stop(ctx, key, s)
	}
}

// stop has a worker stop and remove an orphaned pod.
func (l *loop) stop(ctx context.Context, key pod.Key, s orphan) {
	delete(l.orphans, key)
	e := l.entry(key)
	e.admitted, e.uid, e.runs = true, s.uid, s.Spec
	e.hold(s.uids()...)
	l.noteOrder(e)
	l.queueUpdate(e, true)
}
