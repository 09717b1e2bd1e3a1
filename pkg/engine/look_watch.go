package engine

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// What an Update of Watch says besides the operations of a PodUpdate.
const (
	ERROR    podconfig.Op = "ERROR"    // a layer cannot be read or does not answer, or does again
	REJECT   podconfig.Op = "REJECT"   // a manifest is rejected, or no longer
	CONFLICT podconfig.Op = "CONFLICT" // two places want one pod, or no longer
	DROPPED  podconfig.Op = "DROPPED"  // the reader fell behind: Dropped updates are lost, a SET follows
	NOTICE   podconfig.Op = "NOTICE"   // a source passed something over on purpose
)

// watchLimit is how many updates may wait for a slow reader.
const watchLimit = 1024

// Update is one thing Watch has to say: a PodUpdate, or a problem that
// appeared, changed or ended.
type Update struct {
	Time     time.Time
	Op       podconfig.Op
	Source   string // kind of the layer; "" where a problem's layer is not known
	Location string
	Pods     []*pod.Spec
	Old      []*pod.Spec // as in PodUpdate
	// First marks the first update of a layer: the layer was heard.
	First   bool
	Problem pod.Problem // of ERROR, REJECT, CONFLICT, NOTICE
	Key     pod.Key     // of CONFLICT
	Ended   bool        // the problem is gone
	Since   time.Time   // of ERROR: since when; zero when it ended
	Last    bool        // nothing more comes of what led to this update
	Dropped int         // of DROPPED

	whole bool // the SET after DROPPED: if it is dropped in turn, nothing is lost by it
	found *differences
}

// Difference is what differs between the two specs of one pod, and what that
// restarts.
type Difference struct {
	Fields     []pod.FieldChange
	RestartPod bool
	Containers []string // that restart
	Resizes    []pod.Resized
	Reason     string
}

// differences holds what differs between the pods of one update: found when the
// first reader asks, once for all of them. Its values are shared and immutable.
type differences struct {
	mu    sync.Mutex
	known map[*pod.Spec]Difference // by the newer spec
}

// Difference returns what differs in u.Pods[i], nothing where Old has no spec of
// it.
func (u Update) Difference(i int) Difference {
	if i >= len(u.Old) || u.Old[i] == nil {
		return Difference{}
	}
	if u.found == nil {
		return difference(u.Old[i], u.Pods[i])
	}
	u.found.mu.Lock()
	defer u.found.mu.Unlock()
	d, known := u.found.known[u.Pods[i]]
	if !known {
		d = difference(u.Old[i], u.Pods[i])
		u.found.known[u.Pods[i]] = d
	}
	return d
}

func difference(old, new *pod.Spec) Difference {
	d := Difference{Fields: fieldsBetween(old, new)}
	d.RestartPod, d.Containers, d.Reason = pod.RestartByData(old, new)
	d.Resizes = pod.Resizes(old, new)
	return d
}

// fieldsBetween returns what differs between two versions of a pod, and between
// what they are bound to.
func fieldsBetween(old, new *pod.Spec) []pod.FieldChange {
	return append(pod.Differences(old.Pod, new.Pod), pod.DataDifferences(old, new)...)
}

// IsPods reports whether the update is a PodUpdate, not a word about one.
func (u Update) IsPods() bool { return IsPods(u.Op) }

// IsPods reports whether op is that of a PodUpdate, not a word about one.
func IsPods(op podconfig.Op) bool {
	switch op {
	case ERROR, REJECT, CONFLICT, DROPPED, NOTICE:
		return false
	}
	return true
}

// Watch yields what the layers of look.Config say as it happens, until ctx is
// done, the caller leaves the loop, or no layer can change any more. It never
// blocks a source: a caller more than 1,024 updates behind gets DROPPED with
// their count and then the whole set. A layer that says nothing for 5 s is an
// ERROR, until it does. Only look.Config is used.
func Watch(ctx context.Context, look Look) iter.Seq[Update] {
	return watch(ctx, look.Config.Layers(), look.Config.Batches, watchLimit)
}

// watch is Watch for any sequence of batches: a Live with one reader, which is
// there before the first batch. Its one goroutine reads batches, and ends before
// watch returns.
func watch(ctx context.Context, layers []podconfig.LayerState, batches func(context.Context) iter.Seq[podconfig.Batch], limit int) iter.Seq[Update] {
	return func(yield func(Update) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		live := newLive(layers)
		live.begin(time.Now())
		r, _ := live.join(podconfig.Incremental, limit) // look.Config has its mode
		defer live.leave(r)
		wg.Go(func() {
			defer live.end()
			for b := range batches(ctx) {
				live.publish(b)
			}
		})
		live.follow(ctx, r, yield)
	}
}

// podUpdates puts PodUpdates into words. The first one of a layer that was heard
// between the two states says so.
func podUpdates(before, after *podconfig.Merged, updates []podconfig.PodUpdate, now time.Time) []*Update {
	var out []*Update
	first := map[string]bool{}
	for _, l := range after.Layers {
		if heard, _ := before.Heard(l.Name); l.Heard && !heard {
			first[l.Name] = true
		}
	}
	for _, u := range updates {
		layer := u.Source + ":" + u.Location
		out = append(out, &Update{
			Time: now, Op: u.Op, Source: u.Source, Location: u.Location, Pods: u.Pods, Old: u.Old, First: first[layer],
			found: &differences{known: map[*pod.Spec]Difference{}},
		})
		delete(first, layer)
	}
	return out
}

// problems says what appeared, changed or ended between two states, but for
// what is wrong with whole layers.
func problems(before, after *podconfig.Merged, now time.Time) []*Update {
	all := slices.Concat(rejections(before, after), conflicts(before, after), notices(before, after))
	out := make([]*Update, 0, len(all))
	for _, u := range all {
		u.Time = now
		out = append(out, &u)
	}
	return out
}

// trouble says in words why a layer's newest word is not there: "" when it is,
// or is not late yet. asked is when it was first asked.
func trouble(l podconfig.LayerState, asked, now time.Time) string {
	if l.Error != "" || l.Heard || l.Ended {
		return l.Error
	}
	if since := silentSince(l, asked); now.Sub(since) >= silence {
		return "has not answered since " + since.Format(time.RFC3339)
	}
	return ""
}

// silentSince returns since when a layer that has not said a word is silent.
func silentSince(l podconfig.LayerState, asked time.Time) time.Time {
	if l.Since.IsZero() {
		return asked
	}
	return l.Since
}

func rejections(before, after *podconfig.Merged) []Update {
	appeared, ended := changed(before.Problems, after.Problems, func(p pod.Problem) string { return p.File })
	return problemUpdates(REJECT, appeared, ended, after.Layers)
}

// notices says each thing passed over once; that it is gone is no news.
func notices(before, after *podconfig.Merged) []Update {
	appeared, _ := changed(before.Skipped, after.Skipped, func(p pod.Problem) string { return p.File })
	return problemUpdates(NOTICE, appeared, nil, after.Layers)
}

func problemUpdates(op podconfig.Op, appeared, ended []pod.Problem, layers []podconfig.LayerState) []Update {
	var out []Update
	add := func(p pod.Problem, ended bool) {
		l := layerOf(p.File, layers)
		out = append(out, Update{Op: op, Source: l.Source, Location: l.Location, Problem: p, Ended: ended})
	}
	for _, p := range ended {
		add(p, true)
	}
	for _, p := range appeared {
		add(p, false)
	}
	return out
}

func conflicts(before, after *podconfig.Merged) []Update {
	if oneList(before.Conflicts, after.Conflicts) {
		return nil
	}
	type pair struct {
		key                       pod.Key
		loserFile, winner, reason string
	}
	// A place that moved by some lines is no news.
	of := func(c podconfig.Conflict) pair {
		return pair{c.Key, c.Loser.Layer() + c.Loser.File, c.Winner.Layer() + c.Winner.File, c.Reason}
	}
	known := map[pair]podconfig.Conflict{}
	for _, c := range before.Conflicts {
		known[of(c)] = c
	}
	var fresh []podconfig.Conflict
	for _, c := range after.Conflicts {
		if _, ok := known[of(c)]; ok {
			delete(known, of(c))
			continue
		}
		fresh = append(fresh, c)
	}
	var out []Update
	add := func(c podconfig.Conflict, ended bool) {
		out = append(out, Update{Op: CONFLICT, Source: c.Loser.Source, Location: c.Loser.Location, Key: c.Key, Ended: ended, Problem: ConflictProblem(c)})
	}
	for _, c := range before.Conflicts {
		if _, gone := known[of(c)]; gone && !contested(fresh, c) {
			add(c, true)
		}
	}
	for _, c := range fresh {
		add(c, false)
	}
	return out
}

// contested reports whether the loser of c still loses, in another way.
func contested(fresh []podconfig.Conflict, c podconfig.Conflict) bool {
	for _, f := range fresh {
		if f.Key == c.Key && f.Loser.Layer() == c.Loser.Layer() && f.Loser.File == c.Loser.File {
			return true
		}
	}
	return false
}

// ConflictProblem puts a conflict into words, at the place of its loser.
func ConflictProblem(c podconfig.Conflict) pod.Problem {
	return pod.Problem{File: c.Loser.File, Line: c.Loser.Line, Msg: "loses to " + c.Winner.String(), Hint: c.Reason}
}

// changed returns what of after is new and what of before is gone. One that
// went while another of the same identity appeared has changed, not ended.
func changed[T comparable](before, after []T, identity func(T) string) (appeared, ended []T) {
	if oneList(before, after) {
		return nil, nil
	}
	had := map[T]bool{}
	for _, b := range before {
		had[b] = true
	}
	replaced := map[string]int{}
	for _, a := range after {
		if had[a] {
			delete(had, a)
			continue
		}
		appeared = append(appeared, a)
		replaced[identity(a)]++
	}
	for _, b := range before {
		switch {
		case !had[b]:
		case replaced[identity(b)] > 0:
			replaced[identity(b)]--
		default:
			ended = append(ended, b)
		}
	}
	return appeared, ended
}

// appeared returns what of after is not in before.
func appeared[T comparable](before, after []T) []T {
	if oneList(before, after) {
		return nil
	}
	had := make(map[T]bool, len(before))
	for _, b := range before {
		had[b] = true
	}
	return slices.DeleteFunc(slices.Clone(after), func(a T) bool { return had[a] })
}

// oneList reports whether two states share a list: then nothing in it differs,
// however long it is. States do, of whatever a batch did not change.
func oneList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// layerOf returns the layer a file belongs to: the one whose location is the
// longest beginning of its name.
func layerOf(file string, layers []podconfig.LayerState) podconfig.LayerState {
	var best podconfig.LayerState
	for _, l := range layers {
		if strings.HasPrefix(file, l.Location) && len(l.Location) >= len(best.Location) {
			best = l
		}
	}
	return best
}
