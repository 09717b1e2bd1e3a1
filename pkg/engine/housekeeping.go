package engine

import (
	"cmp"
	"context"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// listing is the result of reading the runtime's pods and the records on the disk.
type listing struct {
	pods    []pod.Actual
	records []pod.Record
	err     error     // why some of the runtime's pods could not be read; pods then holds the others
	damaged bool      // some records could not be read
	only    []pod.Key // the listing read only these pods; nil: all
}

// lister is the job that makes a listing, in a goroutine of its own, to find pods that the loop
// does not know. It makes one at the start, after a hint about an unknown pod or about all pods, and
// after a listing that failed. It never makes two at a time.
type lister struct {
	running bool
	done    chan listing     // capacity 0
	all     bool             // the next listing reads all pods and records
	hinted  map[pod.Key]bool // unknown pods with a hint: the next listing reads at least these
}

func newLister() lister {
	return lister{done: make(chan listing), hinted: make(map[pod.Key]bool)}
}

// housekeep has admission judge the pods that wait for the Node object. It also starts evicted pods
// again when they may start, and makes a listing if one is due.
func (l *loop) housekeep(ctx context.Context) {
	if l.nodeState.pending {
		l.admit(ctx)
	}
	l.revive(ctx)
	switch {
	case !l.runtime.Runtime, l.jobs.lister.running:
	case l.jobs.lister.all || !l.start.adopted():
		l.listAll(ctx)
	case len(l.jobs.lister.hinted) > 0:
		l.listHinted(ctx)
	}
}

// listAll reads all pods and records.
func (l *loop) listAll(ctx context.Context) {
	if l.jobs.lister.running {
		return
	}
	l.jobs.lister.all = false
	runtime, records, log := l.cfg.Runtime, l.cfg.Records, l.log
	l.startListing(ctx, func() (found listing) {
		found.pods, found.err = runtime.Pods(ctx)
		if found.pods != nil {
			var err error
			if found.records, err = records.All(); err != nil {
				log.Warn("Failed to read records", "error", err)
				found.damaged = true
			}
		}
		return found
	})
}

// listHinted reads only the unknown pods with a hint.
func (l *loop) listHinted(ctx context.Context) {
	keys := sortedKeys(l.jobs.lister.hinted)
	clear(l.jobs.lister.hinted)
	runtime := l.cfg.Runtime
	l.startListing(ctx, func() (found listing) {
		found.pods, found.only = []pod.Actual{}, keys
		for _, key := range keys {
			a, err := runtime.Pod(ctx, key)
			switch {
			case err != nil:
				found.err = err
			case !a.Empty():
				found.pods = append(found.pods, a)
			}
		}
		return found
	})
}

// startListing runs list, which makes a listing, in a goroutine of its own.
func (l *loop) startListing(ctx context.Context, list func() listing) {
	l.jobs.lister.running = true
	done := l.jobs.lister.done
	l.workers.Go(func() {
		select {
		case done <- list():
		case <-ctx.Done():
		}
	})
}

// handleListing notes the orphaned pods that a listing found, and judges them. The first listing also
// allows the first dispatch.
func (l *loop) handleListing(ctx context.Context, found listing) {
	l.jobs.lister.running = false
	if found.err != nil {
		// The next listing reads all pods again. The pods that this one could read are noted.
		l.log.Warn("Failed to read pods from runtime", "error", found.err)
		l.jobs.lister.all = true
		if found.pods == nil {
			return
		}
	}
	for _, r := range plan.RecordsOf(found.pods, found.records) {
		o := orphan{uid: r.UID}
		evicted := r.Evicted()
		o.revived = evicted != nil && evicted.Over
		o.Stopping, o.Ended = !r.StopSince.IsZero(), r.Terminal != "" && !o.revived
		o.Running = found.err != nil // a pod that could not be read may run
		o.placed, o.instance, o.running = recordedPlaced(r.Want), r.Instance, o.Running
		if o.Spec = r.Want; r.Want != nil {
			o.Layer = r.Want.Origin.Layer()
		}
		l.noteOrphan(r.Key, o)
	}
	for _, a := range found.pods {
		o := orphan{uid: a.UID}
		o.ShownUID, o.Running = a.UID, podview.Running(a)
		if a.Sandbox != nil {
			o.Layer = a.Sandbox.Layer
		}
		l.noteOrphan(a.Key, o)
		if noted, known := l.orphans[a.Key]; known {
			noted.notePlaced(a)
			l.orphans[a.Key] = noted
		}
	}
	if found.err == nil {
		l.forgetForeign(found)
	}
	if found.only == nil && l.start.dispatching() && l.cfg.CPUs != nil {
		l.nodeState.freed = true // admission counts the allocations of the pods that it found
	}
	l.adoptDevices(found)
	l.adoptClaims(found)
	if !l.start.adopted() {
		l.start.adopt(found)
		l.reviewPlaced()
		for key, uid := range l.mode.down {
			l.noteOrphan(key, orphan{uid: uid})
		}
		l.begin(ctx)
	}
	l.judgeOrphans(ctx)
}

// noteOrphan adds an orphaned pod, unless the loop has an entry for it. For one listing, the caller
// first notes the records, and then the pods of the runtime. A pod of the runtime does not replace
// its record.
func (l *loop) noteOrphan(key pod.Key, o orphan) {
	old, known := l.orphans[key]
	switch {
	case l.pods[key] != nil:
		return
	case known && (old.Layer != "" || o.Layer == ""):
		old.Running = old.Running || o.Running
		if o.ShownUID != "" {
			old.ShownUID = o.ShownUID
		}
		l.orphans[key] = old
		return
	case known:
		o.uid, o.Spec, o.Ended = cmp.Or(old.uid, o.uid), old.Spec, old.Ended
		o.podCPUs, o.instance = old.podCPUs, old.instance
	}
	o.foundAtStart = !l.start.dispatching()
	l.orphans[key] = o
}

// isForeign reports whether an orphaned pod belongs to an agent with another root directory: it
// appeared after this agent had locked its own root directory, and this agent does not have its
// source.
func (l *loop) isForeign(o orphan) bool {
	if o.foundAtStart || l.state == nil {
		return false
	}
	_, configured := l.state.Ready(o.Layer)
	return !configured
}

// forgetForeign forgets the foreign pods that a listing no longer found. Otherwise their number
// would grow without limit, since the other agent may use a new name for each pod.
func (l *loop) forgetForeign(found listing) {
	there := make(map[pod.Key]bool, len(found.pods))
	for _, a := range found.pods {
		there[a.Key] = true
	}
	keys := found.only
	if keys == nil {
		keys = sortedKeys(l.orphans)
	}
	for _, key := range keys {
		if o, known := l.orphans[key]; known && !there[key] && l.isForeign(o) {
			delete(l.orphans, key)
		}
	}
}

// isTakenDown reports whether runonce removes this pod: with UntilGone, or because its workload
// does not have it any more.
func (l *loop) isTakenDown(key pod.Key) bool {
	_, ok := l.mode.down[key]
	return ok || l.mode.leaves != nil && l.mode.leaves(key)
}

// judgeOrphans stops each orphaned pod once its source has answered without it. If that source is
// not configured any more, all sources have to answer first. Pods of agents with another root
// directory continue (isForeign). A runonce stops only the pods that it takes down. An orphaned
// pod that is in the desired set gets its spec as soon as specToRun allows it.
func (l *loop) judgeOrphans(ctx context.Context) {
	if !l.start.dispatching() {
		return
	}
	for _, key := range sortedKeys(l.orphans) {
		o := l.orphans[key]
		if l.state.Pod(key) == nil && !l.mode.serves && !l.isTakenDown(key) {
			continue
		}
		if l.pods[key] != nil {
			delete(l.orphans, key)
			continue
		}
		if want := l.state.Pod(key); want != nil { // it is in l.waiting, or was until now
			l.want(ctx, key, want)
			continue
		}
		ready, configured := l.state.Ready(o.Layer)
		if !configured && o.foundAtStart {
			ready = l.state.AllReady() // a source that has not answered may define the pod
		}
		if !ready && (configured || o.foundAtStart) && !l.isTakenDown(key) {
			if !o.logged {
				l.log.Info("Keeping pod until its source answers", "pod", key.String(), "source", o.Layer)
				o.logged = true
				l.orphans[key] = o
			}
			continue
		}
		if !configured && !o.foundAtStart && !l.isTakenDown(key) {
			// See isForeign.
			if !o.logged {
				l.log.Warn("Ignoring pod of an agent with another root directory", "pod", key.String(), "source", o.Layer)
				o.logged = true
				l.orphans[key] = o
			}
			continue
		}
		if configured || l.isTakenDown(key) {
			l.log.Info("Stopping pod that is no longer in the desired set", "pod", key.String(), "source", o.Layer)
		} else {
			l.log.Warn("Stopping pod whose source is no longer configured", "pod", key.String(), "source", o.Layer)
		}
		l.stopOrphan(ctx, key, o)
	}
}

// stopOrphan has a worker stop and remove an orphaned pod.
func (l *loop) stopOrphan(ctx context.Context, key pod.Key, o orphan) {
	delete(l.orphans, key)
	e := l.addEntry(key)
	e.admitted, e.uid, e.lastWant = true, o.uid, o.Spec
	e.podCPUs = o.podCPUs
	e.hold(o.uids()...)
	l.noteOrder(e)
	l.queueUpdate(e, true)
}
