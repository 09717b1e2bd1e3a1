package feed

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// The operations of an Update beside those of a PodUpdate.
const (
	ERROR    podconfig.Op = "ERROR"    // a layer cannot be read or does not answer, or does again
	REJECT   podconfig.Op = "REJECT"   // a manifest is rejected, or no longer
	CONFLICT podconfig.Op = "CONFLICT" // two places define one pod, or no longer
	DROPPED  podconfig.Op = "DROPPED"  // the reader fell behind: Dropped updates are lost, a SET follows
	NOTICE   podconfig.Op = "NOTICE"   // a source skipped something on purpose
)

// Update is a PodUpdate, or a problem that appeared, changed or ended.
type Update struct {
	Time     time.Time
	Op       podconfig.Op
	Source   string // kind of the layer; "" where a problem's layer is not known
	Location string
	Pods     []*pod.Spec
	Old      []*pod.Spec // as in PodUpdate
	// First marks the first update of a layer: the layer has answered.
	First   bool
	Problem pod.Problem // of ERROR, REJECT, CONFLICT, NOTICE
	Key     pod.Key     // of CONFLICT
	Ended   bool        // the problem is gone
	Since   time.Time   // of ERROR: since when; zero when it ended
	Last    bool        // the last update of one change
	Dropped int         // of DROPPED

	whole bool // the SET after DROPPED: dropping it loses nothing
	diffs *differences
}

// Difference is the difference between the two specs of one pod, and what it restarts.
type Difference struct {
	Fields     []pod.FieldChange
	RestartPod bool
	Containers []string // that restart
	Resizes    []pod.Resized
	Reason     string
}

// differences holds what differs between the pods of one update. The first reader that
// needs a value makes it for all of them. Its values are shared and immutable.
type differences struct {
	mu    sync.Mutex
	known map[*pod.Spec]Difference // by the newer spec
}

// Difference returns the difference of u.Pods[i], empty if Old has no spec of it.
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
	d := Difference{Fields: append(pod.Differences(old.Pod, new.Pod), pod.DataDifferences(old, new)...)}
	d.RestartPod, d.Containers, d.Reason = pod.RestartByData(old, new)
	d.Resizes = pod.Resizes(old, new)
	return d
}

// IsPods reports whether the update is a PodUpdate, not a problem.
func (u Update) IsPods() bool { return IsPods(u.Op) }

// IsPods reports whether op is that of a PodUpdate, not of a problem.
func IsPods(op podconfig.Op) bool {
	switch op {
	case ERROR, REJECT, CONFLICT, DROPPED, NOTICE:
		return false
	}
	return true
}

// podUpdates makes updates of PodUpdates. It marks the first one of a layer that has
// answered between the two states.
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

// problems returns the problems that appeared, changed or ended between two states, except
// for the errors of whole layers.
func problems(before, after *podconfig.Merged, now time.Time) []*Update {
	all := slices.Concat(rejections(before, after), conflicts(before, after), notices(before, after))
	out := make([]*Update, 0, len(all))
	for _, u := range all {
		u.Time = now
		out = append(out, &u)
	}
	return out
}

// layerError returns why a layer's newest set is missing, "" when it is not, or when the
// layer still has time. begun is when it was first asked.
func layerError(l podconfig.LayerState, begun, now time.Time) string {
	if l.Error != "" || l.Ready || l.Ended {
		return l.Error
	}
	if since := unansweredSince(l, begun); now.Sub(since) >= AnswerTimeout {
		return "has not answered since " + since.Format(time.RFC3339)
	}
	return ""
}

// unansweredSince returns since when a layer that has not answered is asked.
func unansweredSince(l podconfig.LayerState, begun time.Time) time.Time {
	if l.Since.IsZero() {
		return begun
	}
	return l.Since
}

func rejections(before, after *podconfig.Merged) []Update {
	appeared, ended := changed(before.Problems, after.Problems, func(p pod.Problem) string { return p.File })
	return problemUpdates(REJECT, appeared, ended, after.Layers)
}

// notices returns each new skipped item; it does not report their end.
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
	if shared(before.Conflicts, after.Conflicts) {
		return nil
	}
	type pair struct {
		key                       pod.Key
		loserFile, winner, reason string
	}
	// A place that moved by some lines has not changed.
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

// contested reports whether the loser of c still loses, to another winner or for another
// reason.
func contested(fresh []podconfig.Conflict, c podconfig.Conflict) bool {
	for _, f := range fresh {
		if f.Key == c.Key && f.Loser.Layer() == c.Loser.Layer() && f.Loser.File == c.Loser.File {
			return true
		}
	}
	return false
}

// ConflictProblem returns a conflict as a problem at the place of the losing definition.
func ConflictProblem(c podconfig.Conflict) pod.Problem {
	return pod.Problem{File: c.Loser.File, Line: c.Loser.Line, Msg: "loses to " + c.Winner.String(), Hint: c.Reason}
}

// changed returns the items of after that are new and those of before that are gone. An item
// that went while another one of the same identity appeared has changed, not ended.
func changed[T comparable](before, after []T, identity func(T) string) (appeared, ended []T) {
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
			ended = append(ended, b)
		}
	}
	return appeared, ended
}

// Appeared returns the items of after that are not in before, at whatever line of their file:
// a line inserted above them moves all that follow. placeless returns a value without its
// place.
func Appeared[T comparable](before, after []T, placeless func(T) T) []T {
	if shared(before, after) {
		return nil
	}
	had := make(map[T]bool, len(before))
	left := make(map[T]int, len(before)) // of before, by all but the place, without those that are unchanged in after
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

// shared reports whether two states share a list: then nothing in it differs, and it need not
// be compared. States share every list that a batch did not change.
func shared[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// layerOf returns the layer of a file: the one whose location is the longest prefix of its
// name.
func layerOf(file string, layers []podconfig.LayerState) podconfig.LayerState {
	var best podconfig.LayerState
	for _, l := range layers {
		if strings.HasPrefix(file, l.Location) && len(l.Location) >= len(best.Location) {
			best = l
		}
	}
	return best
}
