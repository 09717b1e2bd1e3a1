// Package feed shows what a running agent does: its sources, the newest status of every
// pod, and PodUpdates as they happen.
//
// The engine writes through a Publisher; readers use its Live, which has no method that
// changes anything. Watch does the same for sources without an engine. A Report is the result
// of a run with a target state (runonce).
//
// The one rule: a reader never delays the engine. The lock is held for as long as it takes
// to append to the readers' queues; a reader that is too slow loses updates and gets the
// whole set instead.
package feed

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// AnswerTimeout is how long a source may take for its first answer before it counts as an
// error.
const AnswerTimeout = 5 * time.Second

// watchLimit is how many updates may wait for a slow reader.
const watchLimit = 1024

// Live is the readers' side: the sources, the statuses reported last, and PodUpdates as they
// happen. Readers may join and leave at any time. It is safe for concurrent use.
//
// Readers share every update by pointer.
type Live struct {
	mu      sync.Mutex
	begun   time.Time            // when the sources were first asked
	state   *podconfig.Merged    // the newest; before the first one, the layers alone
	errors  map[string]Update    // by layer: the open ERROR that readers got
	readers map[*reader]struct{} // of updates
	pods    map[pod.Key]*v1.Pod  // as last reported
	// podReaders are the readers of pods.
	podReaders map[*podReader]struct{}
	observed   chan struct{} // closed once the engine has observed every pod
	known      chan struct{} // closed once Needed is complete
	ended      bool          // nothing more is published
}

// reader is the queue of one reader. Live's lock guards it.
type reader struct {
	mode  podconfig.Mode
	limit int
	queue []*Update
	room  int           // how many may wait: limit, and what a collapse put there
	wake  chan struct{} // capacity 1: Live sends, follow receives; when it is full, follow is about to look anyway
}

// WatchOptions say which updates a reader wants.
type WatchOptions struct{ Mode podconfig.Mode }

// SourceState is one layer with all its problems.
type SourceState struct {
	podconfig.LayerState                      // Since is also set while the layer has not answered
	Problems             []pod.Problem        // manifests it rejects
	Conflicts            []podconfig.Conflict // that it loses
	Skipped              []pod.Problem        // what it skips, with reasons
}

func newLive(layers []podconfig.LayerState) *Live {
	return &Live{
		state:   &podconfig.Merged{Layers: layers},
		errors:  make(map[string]Update),
		readers: make(map[*reader]struct{}),
		pods:    make(map[pod.Key]*v1.Pod),

		podReaders: make(map[*podReader]struct{}),
		observed:   make(chan struct{}),
		known:      make(chan struct{}),
	}
}

// Watch yields the current state (an ADD for each layer that has answered, also without pods;
// then the problems), then every update without gaps, until ctx is done, the caller leaves
// the loop, or the engine has ended. In a snapshot mode the current state is one SET of all
// sources, once any has answered. A caller more than 1,024 updates behind gets DROPPED with
// their count, then the whole set as one SET and the problems.
func (l *Live) Watch(ctx context.Context, o WatchOptions) iter.Seq[Update] {
	return func(yield func(Update) bool) {
		r, current := l.join(o.Mode, watchLimit)
		defer l.leave(r)
		for _, u := range current() {
			if ctx.Err() != nil || !yield(*u) {
				return
			}
		}
		l.follow(ctx, r, yield)
	}
}

// Sources returns the layers in order.
func (l *Live) Sources() []SourceState {
	l.mu.Lock()
	state, begun := l.state, l.begun
	l.mu.Unlock()
	index := make(map[string]int, len(state.Layers))
	out := make([]SourceState, len(state.Layers))
	for i, layer := range state.Layers {
		if !layer.Ready && layer.Error == "" {
			layer.Since = unansweredSince(layer, begun)
		}
		out[i], index[layer.Name] = SourceState{LayerState: layer}, i
	}
	for _, p := range state.Problems {
		if i, ok := index[layerOf(p.File, state.Layers).Name]; ok {
			out[i].Problems = append(out[i].Problems, p)
		}
	}
	for _, p := range state.Skipped {
		if i, ok := index[layerOf(p.File, state.Layers).Name]; ok {
			out[i].Skipped = append(out[i].Skipped, p)
		}
	}
	for _, c := range state.Conflicts {
		if i, ok := index[c.Loser.Layer()]; ok {
			out[i].Conflicts = append(out[i].Conflicts, c)
		}
	}
	return out
}

// publish puts a batch into every reader's queue.
func (l *Live) publish(b podconfig.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(b, time.Now())
}

// begin starts the sources' time to answer.
func (l *Live) begin(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = now
	l.wakeAll() // there is something to wait for
}

// end ends the readers once they have taken what is in their queues.
func (l *Live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wakeAll()
}

// checkTimeouts reports layers that have not answered in time.
func (l *Live) checkTimeouts(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(podconfig.Batch{State: l.state}, now)
}

func (l *Live) wakeAll() {
	for r := range l.readers {
		r.poke()
	}
}

// join makes a reader whose queue begins after the current state. It also returns a function
// that returns that state as updates, which may take a while.
func (l *Live) join(mode podconfig.Mode, limit int) (r *reader, current func() []*Update) {
	r = &reader{mode: mode, limit: limit, room: limit, wake: make(chan struct{}, 1)}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(podconfig.Batch{State: l.state}, now) // a timeout that no reader was there to notice
	l.readers[r] = struct{}{}
	state, errors := l.state, l.openErrors(now)
	return r, func() []*Update {
		updates := podUpdates(&podconfig.Merged{}, state, initialUpdates(mode, state), now)
		return markLast(updates, errors, problems(&podconfig.Merged{}, state, now))
	}
}

func (l *Live) leave(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, r)
}

// follow yields the updates in the reader's queue.
func (l *Live) follow(ctx context.Context, r *reader, yield func(Update) bool) {
	for {
		u, timeout, ended := l.take(r)
		switch {
		case ctx.Err() != nil, u != nil && !yield(*u), u == nil && ended:
			return
		case u != nil:
			continue
		}
		if !l.wait(ctx, r, timeout) {
			return
		}
	}
}

// wait returns when there may be something in the reader's queue; false at the end of
// ctx. At timeout, a layer has not answered in time: the first reader to notice reports it
// to all of them.
func (l *Live) wait(ctx context.Context, r *reader, timeout time.Time) bool {
	var late <-chan time.Time
	if !timeout.IsZero() {
		timer := time.NewTimer(time.Until(timeout))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-r.wake:
	case now := <-late:
		l.checkTimeouts(now)
	case <-ctx.Done():
		return false
	}
	return true
}

// take takes the oldest update out of the reader's queue, nil when it is empty. It also
// returns when the next layer will not have answered in time.
func (l *Live) take(r *reader) (u *Update, timeout time.Time, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(r.queue) > 0 {
		u, r.queue[0] = r.queue[0], nil
		r.queue = r.queue[1:]
		return u, timeout, l.ended
	}
	r.queue, r.room = nil, r.limit
	if l.begun.IsZero() {
		return nil, timeout, l.ended
	}
	for _, layer := range l.state.Layers {
		_, reported := l.errors[layer.Name]
		if reported || layer.Ready || layer.Ended || layer.Error != "" {
			continue
		}
		if at := unansweredSince(layer, l.begun).Add(AnswerTimeout); timeout.IsZero() || at.Before(timeout) {
			timeout = at
		}
	}
	return nil, timeout, l.ended
}

// enqueue puts the updates of a batch into every reader's queue, each in its mode; they
// are made once for all readers of a mode.
func (l *Live) enqueue(b podconfig.Batch, now time.Time) {
	before := l.state
	l.state = b.State
	l.noteKnown()
	wrong := l.changedErrors(now)
	if len(l.readers) == 0 {
		return
	}
	if before != b.State {
		wrong = append(wrong, problems(before, b.State, now)...)
	}
	byMode := map[podconfig.Mode][]*Update{}
	var whole []*Update
	for r := range l.readers {
		updates, made := byMode[r.mode]
		if !made {
			updates = markLast(podUpdates(before, b.State, r.mode.Convert(b), now), wrong)
			byMode[r.mode] = updates
		}
		if len(updates) == 0 {
			continue
		}
		if len(r.queue)+len(updates) > r.room {
			if whole == nil {
				whole = l.wholeSet(now)
			}
			r.collapse(updates, whole, now)
		} else {
			r.queue = append(r.queue, updates...)
		}
		r.poke()
	}
}

func (r *reader) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// collapse replaces the queue, and the updates that would have been added, by their
// count, the whole set, and the problems there are.
func (r *reader) collapse(updates, whole []*Update, now time.Time) {
	dropped := 0
	for _, u := range slices.Concat(r.queue, updates) {
		dropped += u.Dropped
		if u.IsPods() && !u.whole {
			dropped++
		}
	}
	r.queue = append([]*Update{{Time: now, Op: DROPPED, Source: podconfig.AllSources, Dropped: dropped}}, whole...)
	r.room = r.limit + len(r.queue)
}

// wholeSet returns the whole set and all problems, for a reader that lost updates.
func (l *Live) wholeSet(now time.Time) []*Update {
	set := &Update{Time: now, Op: podconfig.SET, Source: podconfig.AllSources, Pods: l.state.Pods.Slice(), whole: true}
	return markLast([]*Update{set}, l.openErrors(now), problems(&podconfig.Merged{}, l.state, now))
}

// changedErrors returns the errors of whole layers that appeared, changed or ended, and
// remembers the open ones.
func (l *Live) changedErrors(now time.Time) []*Update {
	if l.begun.IsZero() {
		return nil
	}
	var out []*Update
	for _, layer := range l.state.Layers {
		was := l.errors[layer.Name]
		msg := layerError(layer, l.begun, now)
		if msg == was.Problem.Msg {
			continue
		}
		u := Update{Time: now, Op: ERROR, Source: layer.Source, Location: layer.Location,
			Problem: pod.Problem{File: layer.Location, Msg: cmp.Or(msg, was.Problem.Msg)}, Ended: msg == ""}
		if u.Ended {
			delete(l.errors, layer.Name)
		} else {
			u.Since = unansweredSince(layer, l.begun)
			l.errors[layer.Name] = u
		}
		out = append(out, &u)
	}
	return out
}

// openErrors returns the errors of whole layers that are not over, for a new reader.
func (l *Live) openErrors(now time.Time) []*Update {
	var out []*Update
	for _, layer := range l.state.Layers {
		if u, open := l.errors[layer.Name]; open {
			u.Time, u.Last = now, false
			out = append(out, &u)
		}
	}
	return out
}

// markLast joins lists of updates and marks the last one.
func markLast(lists ...[]*Update) []*Update {
	all := slices.Concat(lists...)
	if len(all) > 0 {
		all[len(all)-1].Last = true
	}
	return all
}

// initialUpdates returns the updates from nothing to a state, in a mode.
func initialUpdates(mode podconfig.Mode, state *podconfig.Merged) []podconfig.PodUpdate {
	updates := podconfig.Diff(nil, state)
	for i, u := range updates {
		// The source of a restored layer has not confirmed its pods yet (C-1.3.8).
		if ready, _ := state.Ready(u.Source + ":" + u.Location); !ready && u.Op == podconfig.ADD {
			updates[i].Op = podconfig.RESTORE
		}
	}
	if mode == podconfig.Incremental || len(updates) == 0 {
		return updates
	}
	return []podconfig.PodUpdate{{Op: podconfig.SET, Source: podconfig.AllSources, Pods: state.Pods.Slice()}}
}

// sortedKeys returns the keys of a map of pods in order.
func sortedKeys[V any](m map[pod.Key]V) []pod.Key {
	return slices.SortedFunc(maps.Keys(m), pod.Key.Compare)
}
