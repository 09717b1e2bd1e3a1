package feed

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// The operations of an Update that is not a PodUpdate. The first three are problems: each has
// an Update when it appears or changes, and one with Resolved set when it is gone.
const (
	ERROR    podconfig.Op = "ERROR"    // a layer cannot be read, or has not answered in time
	REJECT   podconfig.Op = "REJECT"   // a manifest is rejected
	CONFLICT podconfig.Op = "CONFLICT" // two places define one pod
	DROPPED  podconfig.Op = "DROPPED"  // this reader was too slow and lost updates; a SET follows
	NOTICE   podconfig.Op = "NOTICE"   // a source skipped something on purpose
)

// Update is one item of a reader's stream: a PodUpdate, a problem, a notice, or DROPPED.
type Update struct {
	Time     time.Time
	Op       podconfig.Op
	Source   string // kind of the layer; AllSources for all layers; "" if the layer of a problem is not known
	Location string
	Pods     []*pod.Spec
	Old      []*pod.Spec // as in PodUpdate
	// First marks the first update of a layer that has answered.
	First    bool
	Problem  pod.Problem // of ERROR, REJECT, CONFLICT, NOTICE
	Key      pod.Key     // of CONFLICT: the pod
	Resolved bool        // of ERROR, REJECT, CONFLICT: the problem is gone
	Since    time.Time   // of ERROR: when it began; zero if Resolved
	Last     bool        // no further update belongs to the same change
	Dropped  int         // of DROPPED: how many PodUpdates this reader lost since the one it got last

	whole bool // the SET after DROPPED: it does not count as lost, because a newer one replaces it
	diffs *differences
}

// Difference has the differences between two specs of one pod, and the restarts of the edit.
type Difference struct {
	Fields     []podspec.FieldChange
	RestartPod bool
	Containers []string // that restart
	Resizes    []podspec.ContainerResize
	Reason     string
}

// differences caches the Difference of each pod of one update. The first reader that needs one
// computes it for all readers. The values are shared and immutable.
type differences struct {
	mu    sync.Mutex
	known map[*pod.Spec]Difference // by the newer spec
}

// Difference returns the difference between u.Old[i] and u.Pods[i]; it is empty if the pod has
// no old spec.
func (u Update) Difference(i int) Difference {
	if i >= len(u.Old) || u.Old[i] == nil {
		return Difference{}
	}
	if u.diffs == nil {
		return difference(u.Old[i], u.Pods[i])
	}
	u.diffs.mu.Lock()
	defer u.diffs.mu.Unlock()
	d, known := u.diffs.known[u.Pods[i]]
	if !known {
		d = difference(u.Old[i], u.Pods[i])
		u.diffs.known[u.Pods[i]] = d
	}
	return d
}

func difference(old, new *pod.Spec) Difference {
	d := Difference{Fields: append(podspec.Differences(old.Pod, new.Pod), podspec.DataDifferences(old, new)...)}
	d.RestartPod, d.Containers, d.Reason = podspec.RestartByData(old, new)
	d.Resizes = podspec.Resizes(old, new)
	return d
}

// IsPods reports whether the update is a PodUpdate.
func (u Update) IsPods() bool { return IsPods(u.Op) }

// IsPods reports whether op is an operation of PodUpdates: none of ERROR, REJECT, CONFLICT,
// DROPPED and NOTICE.
func IsPods(op podconfig.Op) bool {
	switch op {
	case ERROR, REJECT, CONFLICT, DROPPED, NOTICE:
		return false
	}
	return true
}

// podUpdates converts PodUpdates to Updates. before and after are the states around them: if a
// layer has answered only in after, its first update gets First.
func podUpdates(before, after *podconfig.Merged, updates []podconfig.PodUpdate, now time.Time) []*Update {
	var out []*Update
	first := map[string]bool{}
	for _, l := range after.Layers {
		if ready, _ := before.Ready(l.Name); l.Ready && !ready {
			first[l.Name] = true
		}
	}
	for _, u := range updates {
		layer := u.Source + ":" + u.Location
		out = append(out, &Update{
			Time: now, Op: u.Op, Source: u.Source, Location: u.Location, Pods: u.Pods, Old: u.Old, First: first[layer],
			diffs: &differences{known: map[*pod.Spec]Difference{}},
		})
		delete(first, layer)
	}
	return out
}

// problems returns the problems that appeared, changed or are gone between two states, and
// the new notices. changedErrors returns the errors of whole layers.
func problems(before, after *podconfig.Merged, now time.Time) []*Update {
	all := slices.Concat(rejections(before, after), conflicts(before, after), notices(before, after))
	out := make([]*Update, 0, len(all))
	for _, u := range all {
		u.Time = now
		out = append(out, &u)
	}
	return out
}

// layerError returns the present error of a layer: why its last read failed, or that it has
// not answered within AnswerTimeout. It returns "" if there is none. begun is when the sources
// were first asked.
func layerError(l podconfig.LayerState, begun, now time.Time) string {
	if l.Error != "" || l.Ready || l.Ended {
		return l.Error
	}
	if since := unansweredSince(l, begun); now.Sub(since) >= AnswerTimeout {
		return "has not answered since " + since.Format(time.RFC3339)
	}
	return ""
}

// unansweredSince returns when the source of a layer that has not answered was first asked:
// the layer's own time, or begun if it has none.
func unansweredSince(l podconfig.LayerState, begun time.Time) time.Time {
	if l.Since.IsZero() {
		return begun
	}
	return l.Since
}

func rejections(before, after *podconfig.Merged) []Update {
	appeared, gone := changed(before.Problems, after.Problems, func(p pod.Problem) string { return p.File })
	return problemUpdates(REJECT, appeared, gone, after.Layers)
}

// notices returns one NOTICE for each newly skipped item, and none when it is no longer
// skipped.
func notices(before, after *podconfig.Merged) []Update {
	appeared, _ := changed(before.Skipped, after.Skipped, func(p pod.Problem) string { return p.File })
	return problemUpdates(NOTICE, appeared, nil, after.Layers)
}

func problemUpdates(op podconfig.Op, appeared, gone []pod.Problem, layers []podconfig.LayerState) []Update {
	var out []Update
	add := func(p pod.Problem, resolved bool) {
		l := layerOf(p.File, layers)
		out = append(out, Update{Op: op, Source: l.Source, Location: l.Location, Problem: p, Resolved: resolved})
	}
	for _, p := range gone {
		add(p, true)
	}
	for _, p := range appeared {
		add(p, false)
	}
	return out
}

func conflicts(before, after *podconfig.Merged) []Update {
	if shared(before.Conflicts, after.Conflicts) {
		return nil
	}
	type pair struct {
		key                       pod.Key
		loserFile, winner, reason string
	}
	// Line numbers do not count: an edit above a pod moves its definition and changes nothing.
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
	add := func(c podconfig.Conflict, resolved bool) {
		out = append(out, Update{Op: CONFLICT, Source: c.Loser.Source, Location: c.Loser.Location, Key: c.Key, Resolved: resolved, Problem: ConflictProblem(c)})
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

// contested reports whether fresh has another conflict that the losing definition of c loses,
// with another winner or for another reason.
func contested(fresh []podconfig.Conflict, c podconfig.Conflict) bool {
	for _, f := range fresh {
		if f.Key == c.Key && f.Loser.Layer() == c.Loser.Layer() && f.Loser.File == c.Loser.File {
			return true
		}
	}
	return false
}

// ConflictProblem returns a conflict as a problem of the losing definition, at its file and
// line.
func ConflictProblem(c podconfig.Conflict) pod.Problem {
	return pod.Problem{File: c.Loser.File, Line: c.Loser.Line, Msg: "loses to " + c.Winner.String(), Hint: c.Reason}
}

// changed returns the items that only after has (appeared) and those that only before has
// (gone). If an item of the same identity appeared, the old one was replaced: it is not among
// gone.
func changed[T comparable](before, after []T, identity func(T) string) (appeared, gone []T) {
	if shared(before, after) {
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
			gone = append(gone, b)
		}
	}
	return appeared, gone
}

// NewItems returns the items of after that before does not have. An item that has only moved
// to another line of its file is not new. placeless returns an item without its line.
func NewItems[T comparable](before, after []T, placeless func(T) T) []T {
	if shared(before, after) {
		return nil
	}
	had := make(map[T]bool, len(before))
	left := make(map[T]int, len(before)) // by item without its line: how many of before are not in after unchanged
	for _, b := range before {
		had[b] = true
		left[placeless(b)]++
	}
	for _, a := range after {
		if had[a] {
			left[placeless(a)]--
		}
	}
	return slices.DeleteFunc(slices.Clone(after), func(a T) bool {
		if had[a] {
			return true
		}
		moved := placeless(a)
		left[moved]--
		return left[moved] >= 0
	})
}

// shared reports whether two states share a list, so that the caller need not compare it.
// Successive states share every list that did not change.
func shared[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// layerOf returns the layer of a file: of the layers whose location is a prefix of the file's
// name, the one with the longest location.
func layerOf(file string, layers []podconfig.LayerState) podconfig.LayerState {
	var best podconfig.LayerState
	for _, l := range layers {
		if strings.HasPrefix(file, l.Location) && len(l.Location) >= len(best.Location) {
			best = l
		}
	}
	return best
}
