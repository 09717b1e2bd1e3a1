// Package feed shows the state of a running agent to its readers: the state of each layer, the
// newest status of each pod, and PodUpdates as they happen.
//
// A layer is one configured source of pods, named kind:location, such as
// file:/etc/nodectl/manifests. Layers are ordered: the first one that has a pod wins. The
// engine is package engine: it runs the pods that the layers define together.
//
// The engine writes through a Publisher. Readers use the Publisher's Live, whose methods
// change no state of the engine. Watch serves one reader of layers without an engine. A Report is
// the result of runonce.
//
// A reader never delays the engine. One lock guards all state of a Live. No method waits for a
// reader while it holds that lock. Each reader of updates has a queue of limited length: when it
// is full, the reader loses updates and gets the whole set instead (DROPPED). A reader of pods
// has no queue: it gets the newest status of each pod that has changed.
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
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// AnswerTimeout is how long a source may take for its first answer. After that, readers get
// an ERROR about its layer.
const AnswerTimeout = 5 * time.Second

// watchLimit is how many updates may wait for a slow reader.
const watchLimit = 1024

// Live is the readers' side of a feed. It holds the state of each layer and the newest status
// of each pod, and passes on PodUpdates as they happen. Readers may join and leave at any
// time. It is safe for concurrent use.
//
// All readers share the specs and pods that an update points to, and must not change them.
type Live struct {
	mu      sync.Mutex           // guards all fields below, and the queues of all readers
	begun   time.Time            // when the sources were first asked
	state   *podconfig.Merged    // the newest; before the first one, the layers alone
	errors  map[string]Update    // by name: the ERROR of each layer that has an error now
	readers map[*reader]struct{} // of updates
	pods    map[pod.Key]*v1.Pod  // as last reported
	// podReaders are the readers of pods.
	podReaders map[*podReader]struct{}
	observed   chan struct{} // closed once the engine has observed every pod
	known      chan struct{} // closed once DesiredAndExisting is complete
	done       bool          // the engine publishes nothing more
}

// reader is the queue of one reader. Live's lock guards it.
type reader struct {
	mode  podconfig.Mode
	limit int
	queue []*Update
	room  int           // how many updates may wait: limit, and more after a collapse
	wake  wakeup.Signal // Live sends, follow receives
}

// WatchOptions say which updates a reader wants.
type WatchOptions struct{ Mode podconfig.Mode }

// SourceState is the state of one layer, with all its problems.
type SourceState struct {
	podconfig.LayerState                      // Since is also set while the layer has not answered
	Problems             []pod.Problem        // its manifests that are rejected
	Conflicts            []podconfig.Conflict // in which an earlier definition wins
	Skipped              []pod.Problem        // the parts that its source skips on purpose, with reasons
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

// Watch yields the current state, then every later update in order. It ends when ctx is done,
// when the caller leaves the loop, or when the engine publishes nothing more.
//
// In Incremental mode, the current state is one ADD for each layer that has answered, even if
// the layer has no pods. For a layer that has not answered and whose last good set was
// restored, it is a RESTORE. In both snapshot modes, it is one SET of the pods of all layers;
// there is none before a layer has answered or was restored. In each mode, the present
// problems follow, and the last of these updates has Last set.
//
// A caller that is more than 1,024 updates behind loses those that wait for it. It gets
// DROPPED, with the number of PodUpdates that it lost, then one SET of the pods of all layers
// and the present problems. These give it the whole current state.
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

// Sources returns the state of each layer, in layer order.
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

// publish appends the updates of a batch to every reader's queue.
func (l *Live) publish(b podconfig.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(b, time.Now())
}

// begin sets the time at which the sources were first asked: AnswerTimeout counts from it.
func (l *Live) begin(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = now
	l.wakeAll() // each reader now waits for the deadline, too
}

// end notes that nothing more is published. Each reader of updates ends when its queue is
// empty.
func (l *Live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	l.wakeAll()
}

// checkTimeouts sends an ERROR for each layer that has not answered within AnswerTimeout.
func (l *Live) checkTimeouts(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(podconfig.Batch{State: l.state}, now)
}

func (l *Live) wakeAll() {
	for r := range l.readers {
		r.wake.Send()
	}
}

// join adds a reader. Its queue gets the updates after the current state. current returns the
// current state as updates. It may take long for many pods, so the caller calls it without
// the lock.
func (l *Live) join(mode podconfig.Mode, limit int) (r *reader, current func() []*Update) {
	r = &reader{mode: mode, limit: limit, room: limit, wake: wakeup.New()}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(podconfig.Batch{State: l.state}, now) // while there was no reader, no timeout was noticed
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
		u, deadline, done := l.take(r)
		switch {
		case ctx.Err() != nil, u != nil && !yield(*u), u == nil && done:
			return
		case u != nil:
			continue
		}
		if !l.wait(ctx, r, deadline) {
			return
		}
	}
}

// wait returns true when the reader's queue may have an update, and false when ctx is done. At
// the deadline, a layer has not answered in time: the first reader that notices sends the
// ERROR to all readers. A zero deadline is none.
func (l *Live) wait(ctx context.Context, r *reader, deadline time.Time) bool {
	var late <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
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

// take removes the oldest update from the reader's queue and returns it; nil if the queue is
// empty. With an empty queue, deadline is the earliest time at which AnswerTimeout ends for a
// layer that has not answered; zero if there is no such layer. done says that nothing more is
// published.
func (l *Live) take(r *reader) (u *Update, deadline time.Time, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(r.queue) > 0 {
		u, r.queue[0] = r.queue[0], nil
		r.queue = r.queue[1:]
		return u, deadline, l.done
	}
	r.queue, r.room = nil, r.limit
	if l.begun.IsZero() {
		return nil, deadline, l.done
	}
	for _, layer := range l.state.Layers {
		_, reported := l.errors[layer.Name]
		if reported || layer.Ready || layer.Ended || layer.Error != "" {
			continue
		}
		if at := unansweredSince(layer, l.begun).Add(AnswerTimeout); deadline.IsZero() || at.Before(deadline) {
			deadline = at
		}
	}
	return nil, deadline, l.done
}

// enqueue appends the updates of a batch to every reader's queue, in the reader's mode. It
// makes them once for each mode, not for each reader.
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
		r.wake.Send()
	}
}

// collapse empties the queue and does not append updates. Instead it appends DROPPED, with the
// number of PodUpdates that the reader loses by this, and whole. The SET of an earlier
// collapse does not count, because whole has a newer one.
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

// wholeSet returns one SET of the pods of all layers and the present problems, for a reader
// that lost updates.
func (l *Live) wholeSet(now time.Time) []*Update {
	set := &Update{Time: now, Op: podconfig.SET, Source: podconfig.AllSources, Pods: l.state.Pods.Slice(), whole: true}
	return markLast([]*Update{set}, l.openErrors(now), problems(&podconfig.Merged{}, l.state, now))
}

// changedErrors returns an ERROR for each layer whose error appeared, changed or is gone, and
// updates errors.
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
			Problem: pod.Problem{File: layer.Location, Msg: cmp.Or(msg, was.Problem.Msg)}, Resolved: msg == ""}
		if u.Resolved {
			delete(l.errors, layer.Name)
		} else {
			u.Since = unansweredSince(layer, l.begun)
			l.errors[layer.Name] = u
		}
		out = append(out, &u)
	}
	return out
}

// openErrors returns the ERROR of each layer that has an error now, for a reader that needs
// the whole state.
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

// initialUpdates returns the updates, in a mode, that lead from an empty state to state.
func initialUpdates(mode podconfig.Mode, state *podconfig.Merged) []podconfig.PodUpdate {
	updates := podconfig.Diff(nil, state)
	for i, u := range updates {
		// The pods of a layer that has not answered were restored (C-1.3.8).
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
