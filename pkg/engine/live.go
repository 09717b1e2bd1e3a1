package engine

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

// silence is how long a source may take for its first word before whoever looks
// is told.
const silence = 5 * time.Second

// Live is what a running engine shows to whoever looks: its sources, the
// statuses it reported last, and PodUpdates as they happen. Readers come and go;
// nothing they do delays the engine. It is safe for concurrent use.
//
// Readers share every update by pointer. The lock is held for as long as it
// takes to append to their queues, never while anybody waits.
type Live struct {
	mu      sync.Mutex
	asked   time.Time            // when the sources were first asked
	state   *podconfig.Merged    // the newest; before any word, the layers alone
	said    map[string]Update    // by layer: the ERROR that readers were told, and that is not over
	readers map[*reader]struct{} // who follows
	pods    map[pod.Key]*v1.Pod  // as last reported
	// podReaders are those who follow pods.
	podReaders map[*podReader]struct{}
	looked     chan struct{} // closed once every pod there is was looked at
	ended      bool          // nothing more is published
}

// reader is the queue of one reader. Live's lock guards it.
type reader struct {
	mode    podconfig.Mode
	limit   int
	waiting []*Update
	room    int           // how many may wait: limit, and what a collapse put there
	wake    chan struct{} // cap 1: Live sends, follow receives; when full, it is about to look anyway
}

// WatchOptions say how much a reader wants to know.
type WatchOptions struct{ Mode podconfig.Mode }

// SourceState is one layer with all that is wrong with it.
type SourceState struct {
	podconfig.LayerState                      // Since is also set while it has not said a word
	Problems             []pod.Problem        // manifests it rejects
	Conflicts            []podconfig.Conflict // that it loses
	Skipped              []pod.Problem        // what it passes over, with reasons
}

func newLive(layers []podconfig.LayerState) *Live {
	return &Live{
		state:   &podconfig.Merged{Layers: layers},
		said:    make(map[string]Update),
		readers: make(map[*reader]struct{}),
		pods:    make(map[pod.Key]*v1.Pod),

		podReaders: make(map[*podReader]struct{}),
		looked:     make(chan struct{}),
	}
}

// Watch yields the state there is (an ADD for each layer that was heard, also
// without pods; what is wrong), then every update without gaps, until ctx is
// done, the caller leaves the loop, or the engine has ended. In a snapshot mode
// the state there is comes as one SET of all sources, once any was heard. A
// caller more than 1,024 updates behind gets DROPPED with their count, then the
// whole set as one SET and what is wrong.
func (l *Live) Watch(ctx context.Context, o WatchOptions) iter.Seq[Update] {
	return func(yield func(Update) bool) {
		r, there := l.join(o.Mode, watchLimit)
		defer l.leave(r)
		for _, u := range there() {
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
	state, asked := l.state, l.asked
	l.mu.Unlock()
	index := make(map[string]int, len(state.Layers))
	out := make([]SourceState, len(state.Layers))
	for i, layer := range state.Layers {
		if !layer.Heard && layer.Error == "" {
			layer.Since = silentSince(layer, asked)
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

// Pods returns every pod that is not gone with the status reported last, sorted
// by key. What the pods point to is shared and must not be written to.
func (l *Live) Pods() []v1.Pod {
	l.mu.Lock()
	all := maps.Clone(l.pods)
	l.mu.Unlock()
	out := make([]v1.Pod, 0, len(all))
	for _, key := range sortedKeys(all) {
		out = append(out, *all[key])
	}
	return out
}

// Looked is closed once the engine has looked at every pod there is: until then it does
// not know of one that Pods does not hold that it is not there. While the runtime does not
// answer that may take long.
func (l *Live) Looked() <-chan struct{} { return l.looked }

// report shows the newest status of a pod.
func (l *Live) report(key pod.Key, r pod.StatusReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Gone {
		delete(l.pods, key)
	} else {
		l.pods[key] = r.Pod
	}
	l.tellPods(key)
}

// begin says that the sources are asked from now on.
func (l *Live) begin(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = now
	l.wakeAll() // there is something to wait for
}

// publish puts a batch into every reader's queue. It waits for nobody.
func (l *Live) publish(b podconfig.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell(b, time.Now())
}

// end says that nothing more is published: readers end when they have taken
// what waits for them.
func (l *Live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wakeAll()
}

// look tells readers of layers that have been silent for too long.
func (l *Live) look(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell(podconfig.Batch{State: l.state}, now)
}

func (l *Live) wakeAll() {
	for r := range l.readers {
		r.poke()
	}
}

// join makes a reader whose queue begins after the state of this moment, and a
// function that puts that state into words, which may take a while.
func (l *Live) join(mode podconfig.Mode, limit int) (r *reader, there func() []*Update) {
	r = &reader{mode: mode, limit: limit, room: limit, wake: make(chan struct{}, 1)}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell(podconfig.Batch{State: l.state}, now) // who comes late hears of the silent too
	l.readers[r] = struct{}{}
	state, errors := l.state, l.errors(now)
	return r, func() []*Update {
		updates := podUpdates(&podconfig.Merged{}, state, wholeState(mode, state), now)
		return closed(updates, errors, problems(&podconfig.Merged{}, state, now))
	}
}

func (l *Live) leave(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, r)
}

// follow yields what comes into the reader's queue.
func (l *Live) follow(ctx context.Context, r *reader, yield func(Update) bool) {
	for {
		u, due, ended := l.take(r)
		switch {
		case ctx.Err() != nil, u != nil && !yield(*u), u == nil && ended:
			return
		case u != nil:
			continue
		}
		if !l.wait(ctx, r, due) {
			return
		}
	}
}

// wait returns when there may be something in the reader's queue; false at the
// end of ctx. At due, a layer will have been silent for too long: the first
// reader to notice tells all of them.
func (l *Live) wait(ctx context.Context, r *reader, due time.Time) bool {
	var late <-chan time.Time
	if !due.IsZero() {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-r.wake:
	case now := <-late:
		l.look(now)
	case <-ctx.Done():
		return false
	}
	return true
}

// take takes the oldest update out of the reader's queue, nil when it is empty;
// and says when the next layer will have been silent for too long.
func (l *Live) take(r *reader) (u *Update, due time.Time, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(r.waiting) > 0 {
		u, r.waiting[0] = r.waiting[0], nil
		r.waiting = r.waiting[1:]
		return u, due, l.ended
	}
	r.waiting, r.room = nil, r.limit
	if l.asked.IsZero() {
		return nil, due, l.ended
	}
	for _, layer := range l.state.Layers {
		_, said := l.said[layer.Name]
		if said || layer.Heard || layer.Ended || layer.Error != "" {
			continue
		}
		if at := silentSince(layer, l.asked).Add(silence); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return nil, due, l.ended
}

// tell puts what a batch has to say into every reader's queue, each in its
// mode; the words are made once for all of them.
func (l *Live) tell(b podconfig.Batch, now time.Time) {
	before := l.state
	l.state = b.State
	wrong := l.troubles(now)
	if len(l.readers) == 0 {
		return
	}
	if before != b.State {
		wrong = append(wrong, problems(before, b.State, now)...)
	}
	words := map[podconfig.Mode][]*Update{}
	var whole []*Update
	for r := range l.readers {
		updates, made := words[r.mode]
		if !made {
			updates = closed(podUpdates(before, b.State, r.mode.Tell(b), now), wrong)
			words[r.mode] = updates
		}
		if len(updates) == 0 {
			continue
		}
		if len(r.waiting)+len(updates) > r.room {
			if whole == nil {
				whole = l.whole(now)
			}
			r.collapse(updates, whole, now)
		} else {
			r.waiting = append(r.waiting, updates...)
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

// collapse replaces everything that waits, and what would have been added, by
// its count, the whole set, and the problems there are.
func (r *reader) collapse(updates, whole []*Update, now time.Time) {
	dropped := 0
	for _, u := range slices.Concat(r.waiting, updates) {
		dropped += u.Dropped
		if u.IsPods() && !u.whole {
			dropped++
		}
	}
	r.waiting = append([]*Update{{Time: now, Op: DROPPED, Source: podconfig.AllSources, Dropped: dropped}}, whole...)
	r.room = r.limit + len(r.waiting)
}

// whole returns the whole set and all that is wrong, for a reader that lost
// updates.
func (l *Live) whole(now time.Time) []*Update {
	set := &Update{Time: now, Op: podconfig.SET, Source: podconfig.AllSources, Pods: l.state.Pods.Slice(), whole: true}
	return closed([]*Update{set}, l.errors(now), problems(&podconfig.Merged{}, l.state, now))
}

// troubles returns what appeared, changed or ended of what is wrong with whole
// layers, and remembers it as said.
func (l *Live) troubles(now time.Time) []*Update {
	if l.asked.IsZero() {
		return nil
	}
	var out []*Update
	for _, layer := range l.state.Layers {
		was := l.said[layer.Name]
		msg := trouble(layer, l.asked, now)
		if msg == was.Problem.Msg {
			continue
		}
		u := Update{Time: now, Op: ERROR, Source: layer.Source, Location: layer.Location,
			Problem: pod.Problem{File: layer.Location, Msg: cmp.Or(msg, was.Problem.Msg)}, Ended: msg == ""}
		if u.Ended {
			delete(l.said, layer.Name)
		} else {
			u.Since = silentSince(layer, l.asked)
			l.said[layer.Name] = u
		}
		out = append(out, &u)
	}
	return out
}

// errors returns what is wrong with whole layers, for a reader who does not
// know yet.
func (l *Live) errors(now time.Time) []*Update {
	var out []*Update
	for _, layer := range l.state.Layers {
		if u, said := l.said[layer.Name]; said {
			u.Time, u.Last = now, false
			out = append(out, &u)
		}
	}
	return out
}

// closed joins lists of updates and marks the last one.
func closed(lists ...[]*Update) []*Update {
	all := slices.Concat(lists...)
	if len(all) > 0 {
		all[len(all)-1].Last = true
	}
	return all
}

// wholeState returns what leads from nothing to a state, in a mode.
func wholeState(mode podconfig.Mode, state *podconfig.Merged) []podconfig.PodUpdate {
	updates := podconfig.Diff(nil, state)
	for i, u := range updates {
		// Nobody has said yet that what was restored is wanted (C-1.3.8).
		if heard, _ := state.Heard(u.Source + ":" + u.Location); !heard && u.Op == podconfig.ADD {
			updates[i].Op = podconfig.RESTORE
		}
	}
	if mode == podconfig.Incremental || len(updates) == 0 {
		return updates
	}
	return []podconfig.PodUpdate{{Op: podconfig.SET, Source: podconfig.AllSources, Pods: state.Pods.Slice()}}
}
