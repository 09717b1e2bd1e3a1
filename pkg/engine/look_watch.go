package engine

import (
	"context"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// What an Update of Watch says besides the operations of a PodUpdate.
const (
	ERROR    podconfig.Op = "ERROR"    // a layer could not be read, or can be again
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
	Last    bool        // nothing more comes of what led to this update
	Dropped int         // of DROPPED
}

// IsPods reports whether the update is a PodUpdate, not a word about one.
func (u Update) IsPods() bool {
	switch u.Op {
	case ERROR, REJECT, CONFLICT, DROPPED, NOTICE:
		return false
	}
	return true
}

// Watch yields what the layers of look.Config say as it happens, until ctx is
// done, the caller leaves the loop, or no layer can change any more. It never
// blocks a source: a caller more than 1,024 updates behind gets DROPPED with
// their count and then the whole set. Only look.Config is used.
func Watch(ctx context.Context, look Look) iter.Seq[Update] {
	return watch(ctx, look.Config.Batches, watchLimit)
}

// watch is Watch for any sequence of batches. Of its two goroutines one reads
// batches, the other owns the queue; both end before it returns.
//
//	in   0  reader → queue; the queue is always in its select
//	out  0  queue → the loop over watch; a slow loop makes the queue grow to limit
func watch(ctx context.Context, batches func(context.Context) iter.Seq[podconfig.Batch], limit int) iter.Seq[Update] {
	return func(yield func(Update) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		in, out := make(chan podconfig.Batch), make(chan Update)
		wg.Go(func() {
			defer close(in)
			for b := range batches(ctx) {
				select {
				case in <- b:
				case <-ctx.Done():
					return
				}
			}
		})
		wg.Go(func() {
			defer close(out)
			queue(ctx, in, out, limit)
		})
		for u := range out {
			if !yield(u) {
				return
			}
		}
	}
}

// queue turns batches into updates and keeps those the reader has not taken.
func queue(ctx context.Context, in <-chan podconfig.Batch, out chan<- Update, limit int) {
	var waiting []Update
	before, first := &podconfig.Merged{}, map[string]bool{}
	for in != nil || len(waiting) > 0 {
		var take chan<- Update
		var head Update
		if len(waiting) > 0 {
			take, head = out, waiting[0]
		}
		select {
		case b, ok := <-in:
			if !ok {
				in = nil
				continue
			}
			updates := say(before, b, first, time.Now())
			before = b.State
			if waiting = append(waiting, updates...); len(waiting) > limit {
				waiting = collapse(waiting, b)
			}
		case take <- head:
			waiting = waiting[1:]
		case <-ctx.Done():
			return
		}
	}
}

// say returns what a batch has to say after the state before it: its updates,
// then its problems. first remembers which layers have had an update.
func say(before *podconfig.Merged, b podconfig.Batch, first map[string]bool, now time.Time) []Update {
	var out []Update
	for _, u := range b.Updates {
		layer := u.Source + ":" + u.Location
		out = append(out, Update{Time: now, Op: u.Op, Source: u.Source, Location: u.Location, Pods: u.Pods, Old: u.Old, First: !first[layer]})
		first[layer] = true
	}
	out = append(out, layerErrors(before, b.State)...)
	out = append(out, rejections(before, b.State)...)
	out = append(out, conflicts(before, b.State)...)
	out = append(out, notices(before, b.State)...)
	for i := range out {
		out[i].Time = now
	}
	if len(out) > 0 {
		out[len(out)-1].Last = true
	}
	return out
}

// collapse replaces everything that waits by its count, the whole set, and the
// problems there are.
func collapse(waiting []Update, b podconfig.Batch) []Update {
	now, dropped := waiting[len(waiting)-1].Time, 0
	set := Update{Time: now, Op: podconfig.SET, Pods: b.State.Pods}
	for _, u := range waiting {
		dropped += u.Dropped
		if u.IsPods() {
			dropped++
			set.Source, set.Location = u.Source, u.Location
		}
	}
	if waiting[0].Op == DROPPED && len(waiting) > 1 && waiting[1].Op == podconfig.SET {
		dropped-- // the set nobody took is not an update that was lost
	}
	problems := say(&podconfig.Merged{}, podconfig.Batch{State: b.State}, nil, now)
	set.Last = len(problems) == 0
	return append([]Update{{Time: now, Op: DROPPED, Source: set.Source, Location: set.Location, Dropped: dropped}, set}, problems...)
}

func layerErrors(before, after *podconfig.Merged) []Update {
	was := map[string]string{}
	for _, l := range before.Layers {
		was[l.Name] = l.Error
	}
	var out []Update
	for _, l := range after.Layers {
		if l.Error == was[l.Name] {
			continue
		}
		u := Update{Op: ERROR, Source: l.Source, Location: l.Location, Problem: pod.Problem{File: l.Location, Msg: l.Error}}
		if l.Error == "" {
			u.Ended, u.Problem.Msg = true, was[l.Name]
		}
		out = append(out, u)
	}
	return out
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
