package engine

import (
	"context"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// housekeep looks for pods nobody knows when somebody hinted at one. What it
// finds is judged by judgeStrays.
func (l *loop) housekeep(ctx context.Context) {
	if l.unjudged {
		l.admit(ctx)
	}
	switch {
	case !l.runtime.Runtime:
	case l.unknown || !l.adopted:
		l.count(ctx)
	case len(l.hinted) > 0:
		l.lookFor(ctx)
	}
}

// count reads all that the node shows, beside the loop.
func (l *loop) count(ctx context.Context) {
	l.take(ctx, func() (c census) {
		c.pods, c.err = l.cfg.Runtime.Pods(ctx)
		if c.pods != nil {
			var err error
			if c.records, err = l.cfg.Records.All(); err != nil {
				l.log.Warn("Records not read", "error", err)
				c.damaged = true
			}
		}
		return c
	}, func() { l.unknown = false })
}

// lookFor reads the pods that were hinted at, and no other.
func (l *loop) lookFor(ctx context.Context) {
	keys := sortedKeys(l.hinted)
	l.take(ctx, func() (c census) {
		c.pods = []pod.Actual{}
		for _, key := range keys {
			a, err := l.cfg.Runtime.Pod(ctx, key)
			switch {
			case err != nil:
				c.err = err
			case !a.Empty():
				c.pods = append(c.pods, a)
			}
		}
		return c
	}, func() { clear(l.hinted) })
}

// take takes a census in a goroutine of its own, one at a time; begun is called
// when it is under way.
func (l *loop) take(ctx context.Context, look func() census, begun func()) {
	if l.counting {
		return
	}
	l.counting = true
	begun()
	l.workers.Go(func() {
		select {
		case l.census <- look():
		case <-ctx.Done():
		}
	})
}

// handleCensus takes stock. The first one adopts: pods that run keep their seats.
func (l *loop) handleCensus(ctx context.Context, c census) {
	l.counting = false
	if c.err != nil {
		// Pods that could not be read are looked for again; the others count.
		l.log.Warn("Runtime not read", "error", c.err)
		l.unknown = true
		if c.pods == nil {
			return
		}
	}
	for _, r := range plan.RecordsOf(c.pods, c.records) {
		s := stray{uid: r.UID}
		s.Stopping, s.Ended = !r.StopSince.IsZero(), r.Terminal != ""
		s.Running = c.err != nil // what could not be read may run
		if s.Spec = r.Want; r.Want != nil {
			s.Layer = r.Want.Origin.Layer()
		}
		l.note(r.Key, s)
	}
	for _, a := range c.pods {
		s := stray{uid: a.UID}
		s.ShownUID, s.Running = a.UID, plan.Running(a)
		if a.Sandbox != nil {
			s.Layer = a.Sandbox.Layer
		}
		l.note(a.Key, s)
	}
	if !l.adopted {
		l.adopted, l.whole = true, c.err == nil && !c.damaged
		l.found = make(map[string]bool)
		for _, r := range c.records {
			l.found[r.UID] = true
		}
		for _, a := range c.pods {
			l.found[a.UID] = true
		}
		for key, uid := range l.down {
			l.note(key, stray{uid: uid})
		}
		l.begin(ctx, false)
	}
	l.judgeStrays(ctx)
}

// note remembers a pod the node shows and the loop does not know. The record,
// noted first, knows more than the runtime.
func (l *loop) note(key pod.Key, s stray) {
	old, known := l.strays[key]
	switch {
	case l.pods[key] != nil:
		return
	case known && (old.Layer != "" || s.Layer == ""):
		old.Running = old.Running || s.Running
		if s.ShownUID != "" {
			old.ShownUID = s.ShownUID
		}
		l.strays[key] = old
		return
	case known:
		s.Spec, s.Ended = old.Spec, old.Ended
	}
	s.first = !l.begun
	l.strays[key] = s
}

// goes reports whether runonce takes this pod away.
func (l *loop) goes(key pod.Key) bool {
	_, ok := l.down[key]
	return ok
}

// judgeStrays stops what nobody wants, but only once the source it came from
// was heard, or when that source is not configured any more. Silence removes
// nothing.
func (l *loop) judgeStrays(ctx context.Context) {
	if !l.begun {
		return
	}
	for _, key := range sortedKeys(l.strays) {
		s := l.strays[key]
		if l.state.Pod(key) == nil && !l.sweep && !l.goes(key) {
			continue
		}
		if l.pods[key] != nil {
			delete(l.strays, key)
			continue
		}
		if want := l.state.Pod(key); want != nil { // it was held until now, or still is
			l.want(ctx, key, want)
			continue
		}
		heard, configured := l.state.Heard(s.Layer)
		if !configured && s.first {
			heard = l.state.AllHeard() // another source may want it under another name
		}
		if !heard && (configured || s.first) && !l.goes(key) {
			if !s.seen {
				l.log.Info("Pod is kept until its source is heard", "pod", key.String(), "source", s.Layer)
				s.seen = true
				l.strays[key] = s
			}
			continue
		}
		if !configured && !s.first && !l.goes(key) {
			// It came while this agent held the root: another root's.
			if !s.seen {
				l.log.Warn("Pod of an unknown source is left alone", "pod", key.String(), "source", s.Layer)
				s.seen = true
				l.strays[key] = s
			}
			continue
		}
		if configured || l.goes(key) {
			l.log.Info("Pod is not wanted any more", "pod", key.String(), "source", s.Layer)
		} else {
			l.log.Warn("Pod of a source that is not configured any more is stopped", "pod", key.String(), "source", s.Layer)
		}
		l.stop(ctx, key, s)
	}
}

// stop has a worker take a stray away.
func (l *loop) stop(ctx context.Context, key pod.Key, s stray) {
	delete(l.strays, key)
	e := l.entry(key)
	e.seated, e.uid, e.runs = true, s.uid, s.Spec
	l.noteOrder(e)
	l.send(e, true)
}
