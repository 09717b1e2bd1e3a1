package engine

import (
	"context"

	"github.com/nodectl/nodectl/pkg/pod"
)

// housekeep looks for pods nobody knows when somebody hinted at one. What it
// finds is judged by judgeStrays.
func (l *loop) housekeep(ctx context.Context) {
	if l.runtime.Runtime && (l.unknown || !l.adopted) {
		l.unknown = false
		l.count(ctx)
	}
}

// count reads all that the node shows, beside the loop; one count at a time.
func (l *loop) count(ctx context.Context) {
	if l.counting {
		l.unknown = true
		return
	}
	l.counting = true
	l.workers.Go(func() {
		var c census
		c.pods, c.err = l.cfg.Runtime.Pods(ctx)
		if c.err == nil || len(c.pods) > 0 {
			var err error
			if c.records, err = l.cfg.Records.All(); err != nil {
				l.log.Warn("Records not read", "error", err)
			}
		}
		select {
		case l.census <- c:
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
		if len(c.pods) == 0 {
			return
		}
	}
	layers := make(map[pod.Key]string)
	for _, r := range c.records {
		if r.Want != nil {
			layers[r.Key] = r.Want.Origin.Layer()
		}
	}
	for _, a := range c.pods {
		if layers[a.Key] == "" && a.Sandbox != nil {
			layers[a.Key] = a.Sandbox.Layer
		}
		l.note(a.Key, a.UID, layers[a.Key])
	}
	for _, r := range c.records {
		l.note(r.Key, r.UID, layers[r.Key])
	}
	if !l.adopted {
		l.adopted = true
		for key, uid := range l.down {
			l.note(key, uid, "")
		}
		l.begin(ctx, false)
	}
	l.judgeStrays(ctx)
}

// note remembers a pod the node shows and the loop does not know.
func (l *loop) note(key pod.Key, uid, layer string) {
	if _, known := l.strays[key]; known || l.pods[key] != nil {
		return
	}
	l.strays[key] = stray{uid: uid, layer: layer}
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
		heard, configured := l.state.Heard(s.layer)
		if want := l.state.Pod(key); want != nil {
			if heard || !configured { // held by want until now
				l.want(ctx, key, want)
			}
			continue
		}
		if configured && !heard && !l.goes(key) {
			if !s.seen {
				l.log.Info("Pod is kept until its source is heard", "pod", key.String(), "source", s.layer)
				s.seen = true
				l.strays[key] = s
			}
			continue
		}
		if configured || l.goes(key) {
			l.log.Info("Pod is not wanted any more", "pod", key.String(), "source", s.layer)
		} else {
			l.log.Warn("Pod of a source that is not configured any more is stopped", "pod", key.String(), "source", s.layer)
		}
		delete(l.strays, key)
		e := l.entry(key)
		e.seated, e.uid = true, s.uid
		l.send(ctx, e, true)
	}
}
