package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// reader is the state of one run of Sets. Only the goroutine that ranges over Sets uses it.
type reader struct {
	*Source
	yield     func(source.Snapshot, error) bool
	left      bool   // the caller has left the loop
	yielded   bool   // a set was yielded
	lastError string // the last yielded error; "" after a set

	set     source.Builder
	skipped map[string]pod.Problem
	skips   bool // skipped has changed, and the set does not have the change yet
	seen    known

	unconfirmed *unconfirmedList
}

// unconfirmedList is a listing that contradicts earlier reads, and the time at which it was read.
type unconfirmedList struct {
	listing
	since time.Time
}

func newReader(s *Source, yield func(source.Snapshot, error) bool) *reader {
	return &reader{Source: s, yield: yield, skipped: map[string]pod.Problem{}, seen: known{keys: map[string]keyState{}}}
}

// pause returns how long to wait before the next round, by the back-off retry. It waits at most until the
// unconfirmed list can be confirmed.
func (r *reader) pause(retry time.Duration) time.Duration {
	wait := backoff.Jitter(retry, 0.5, 1)
	if r.unconfirmed != nil {
		if left := time.Until(r.unconfirmed.since.Add(r.cfg.Confirm)); left > 0 {
			return min(wait, left)
		}
	}
	return wait
}

// yieldError yields why the source could not be read, unless the last yield was the same error. It reports
// whether the caller continues.
func (r *reader) yieldError(err error) bool {
	if err.Error() == r.lastError {
		return true
	}
	r.lastError = err.Error()
	r.left = !r.yield(source.Snapshot{}, err)
	return !r.left
}

// yieldSet yields the set if it changed. It reports whether the caller continues.
func (r *reader) yieldSet() bool {
	if r.skips {
		r.set.Skip(slices.Collect(maps.Values(r.skipped)))
		r.skips = false
	}
	if r.yielded && r.lastError == "" && !r.set.Dirty() {
		return true
	}
	r.yielded, r.lastError = true, ""
	r.left = !r.yield(r.set.Snapshot(), nil)
	return !r.left
}

// session lists and watches one member until that fails, and returns the reason. looked says that the list
// succeeded.
func (r *reader) session(ctx context.Context, e endpoint) (looked bool, why error) {
	m, err := r.dial(e, r.yielded)
	if err != nil {
		return false, err
	}
	defer m.close()
	if err := m.login(ctx); err != nil {
		return false, err
	}
	if err := r.list(ctx, m); err != nil {
		return false, err
	}
	if !r.yieldSet() {
		return true, nil
	}
	return true, r.watch(ctx, m)
}

// list updates the set to the member's newest revision.
func (r *reader) list(ctx context.Context, m *member) error {
	l, err := m.keys(ctx, r.prefix, r.end, 0)
	if err != nil {
		return err
	}
	listAll := r.seen.revision == 0
	why := r.seen.contradicts(l)
	if why == "" && !listAll && len(r.seen.missing(l)) > 0 {
		if why, err = r.remembers(ctx, m); err != nil {
			return err
		}
	}
	if why != "" {
		if err := r.confirm(ctx, m, l, why); err != nil {
			return err
		}
		listAll = true
	}
	var want []int
	for i, e := range l.keys {
		if was, there := r.seen.keys[e.key]; listAll || !there || was.modified != e.modified {
			want = append(want, i)
		}
	}
	r.cfg.Log.Debug("Listed etcd's keys", "member", m.address, "prefix", r.prefix, "revision", l.revision, "keys", len(l.keys), "changed", len(want))
	if err := r.values(ctx, m, l, want); err != nil {
		return err // the set was not yielded, and earlier reads still hold
	}
	for _, key := range r.seen.missing(l) {
		r.remove(key)
	}
	if r.seen.tooMuch() {
		return errTooMuch
	}
	r.seen.cluster, r.seen.revision = l.cluster, l.revision
	r.unconfirmed = nil
	return nil
}

// values reads values into the set. It stops if the set exceeds twice the limit: until list has removed
// the missing keys, the set may have old and new values.
func (r *reader) values(ctx context.Context, m *member, l listing, want []int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	full := false
	err := m.values(ctx, l, want, func(c change) {
		if full {
			return
		}
		r.put(c)
		if full = r.seen.bytes > 2*mostBytes; full {
			stop()
		}
	})
	if full {
		return errTooMuch
	}
	return err
}

// remembers reads the member's keys at the last known revision, and returns how they contradict earlier
// reads; "" if they do not. list calls it before it removes keys. If the member has compacted that
// revision, there is no contradiction.
func (r *reader) remembers(ctx context.Context, m *member) (string, error) {
	then, err := m.keys(ctx, r.prefix, r.end, r.seen.revision)
	switch {
	case errors.Is(err, errCompacted):
		return "", nil
	case err != nil:
		return "", err
	case len(r.seen.missing(then)) > 0:
		return otherHistory, nil
	}
	return r.seen.contradicts(then), nil
}

// confirm decides about a listing that contradicts earlier reads, because the cluster was restored or the
// member belongs to another cluster (F71). confirm accepts the listing at once if it removes and changes
// nothing. Otherwise it accepts it only if it continues an earlier unconfirmed listing, and lacks the
// same keys. The error says that a listing is not accepted.
func (r *reader) confirm(ctx context.Context, m *member, l listing, why string) error {
	if r.confirmed(l) {
		return nil
	}
	harmless := len(r.seen.missing(l)) == 0
	if harmless {
		all := make([]int, len(l.keys))
		for i := range all {
			all[i] = i
		}
		err := m.values(ctx, l, all, func(c change) {
			was, there := r.seen.keys[c.key]
			harmless = harmless && (!there || was.sum == c.sum())
		})
		if err != nil || harmless {
			return err
		}
	}
	if r.unconfirmed == nil || !r.follows(l) {
		r.unconfirmed = &unconfirmedList{l, time.Now()}
	}
	return errors.New(why + ", as after a restore from a backup; keys are removed only after a second list confirms it")
}

// follows reports whether l continues the unconfirmed listing: it does not contradict it, and it has all
// known keys that the unconfirmed listing has.
func (r *reader) follows(l listing) bool {
	first := known{cluster: r.unconfirmed.cluster, revision: r.unconfirmed.revision, keys: map[string]keyState{}}
	for _, e := range r.unconfirmed.keys {
		first.keys[e.key] = keyState{modified: e.modified}
	}
	if first.contradicts(l) != "" {
		return false
	}
	return !slices.ContainsFunc(r.seen.missing(l), func(key string) bool {
		_, had := first.keys[key]
		return had
	})
}

func (r *reader) confirmed(l listing) bool {
	return r.unconfirmed != nil && time.Since(r.unconfirmed.since) >= r.cfg.Confirm && r.follows(l)
}

// put makes the value of c the reading of its key.
func (r *reader) put(c change) {
	if !r.seen.put(c) {
		return
	}
	if why := whySkipped(c.key, r.prefix); why != "" {
		r.skipped[c.key], r.skips = skipped(c.key, why), true
		return
	}
	if c.tooLarge || len(c.value) > ValueLimit {
		r.set.Put(source.File{File: c.key, Incomplete: true, Problems: []pod.Problem{tooLarge(c.key)}}, nil)
		return
	}
	f, notices := r.cfg.Parse(c.value, c.key)
	f.File = c.key
	r.set.Put(f, notices)
}

// remove removes a key from the set.
func (r *reader) remove(key string) {
	r.seen.forget(key)
	if _, there := r.skipped[key]; there {
		delete(r.skipped, key)
		r.skips = true
	}
	r.set.Remove(key)
}

// watch updates the set with each answer of the member's watch, and returns why the watch ended.
func (r *reader) watch(ctx context.Context, m *member) error {
	w, err := m.watch(ctx, r.prefix, r.end, r.seen.revision+1)
	if err != nil {
		return err
	}
	defer w.close()
	for {
		header, batch, err := w.next()
		switch {
		case err != nil:
			return err
		case header.GetClusterId() != r.seen.cluster:
			return errors.New("the cluster's ID has changed")
		}
		r.apply(header, batch)
		if r.seen.tooMuch() {
			return errTooMuch
		}
		if !r.yieldSet() {
			return nil
		}
	}
}

// apply applies a batch of events to the set.
func (r *reader) apply(header *etcdserverpb.ResponseHeader, batch []*mvccpb.Event) {
	for _, c := range r.seen.events(header, batch, r.prefix, r.end) {
		if c.removed {
			r.remove(c.key)
		} else {
			r.put(c)
		}
	}
}
