package podconfig

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// AllSources is the Source of a SET that covers every layer (C-1.1.8). Such a SET answers Sync, or
// follows a change of the pods of workloads.
const AllSources = "*"

// Config is the configuration of a PodConfig.
type Config struct {
	// Sources are the layers in their order: the first one that defines a pod wins.
	Sources []source.Source
	// Mode says which updates describe a change; the zero value is Incremental.
	Mode Mode
	// Recorded has the specs in the pod records of the previous agent. A file that is broken at
	// the first reading keeps its pods in Recorded. If two files define a pod, Recorded decides which
	// one owns it (see NewLayer). Pods on a cycle and pods that lack an object keep their
	// version in Recorded, too. It must not change after New.
	Recorded []*pod.Spec
	// Restored has the last good sets that the previous agent stored, by the layer's name.
	// A layer uses its set until it is ready (C-1.3.8). Recorded still decides which of two files
	// owns a pod. If the set lacks the pods of a broken file, they come from Recorded (see
	// Layer.Restore). Sets of layers that are not configured have no effect. It must not change
	// after New.
	Restored map[string]Restored
	// Visible says which pods may use the objects of other kinds of sources; nil: each kind of
	// source sees only its own pods and config objects.
	Visible Visible
	// Expander returns the pods of workloads; nil: workloads are objects without pods. Its pods and
	// claims form additional layers, after all others: one for the workloads of each layer, in the
	// order of the layers. So a pod or object of a source wins over one of the same key that a
	// workload asks for.
	Expander Expander
	// Log gets one debug line for each reading; nil discards them. Batches contain problems and
	// errors.
	Log *slog.Logger
}

// Visible reports whether a pod of one kind of source may be bound to the config objects of
// another kind, and depend on its pods. It is not called for equal kinds, and its answers must
// not change.
type Visible func(podSource, objectSource string) bool

// sees reports whether the pods of one kind of source see the objects and pods of a kind.
func (v Visible) sees(from, to string) bool { return from == to || v != nil && v(from, to) }

// PodConfig reads sources and merges their pods. Its goroutines run only during Batches
// and Once.
type PodConfig struct {
	sources  []source.Source
	layers   []Layer
	kept     []*pod.Spec
	restored map[string]Restored
	mode     Mode
	visible  Visible
	expander Expander
	log      *slog.Logger
	read     fold          // the state that Once has read, without the pods of workloads
	sync     wakeup.Signal // a request of Sync that Batches has not answered yet
}

// New returns a PodConfig. It reads nothing before Batches or Once.
func New(c Config) *PodConfig {
	p := &PodConfig{sources: slices.Clone(c.Sources), kept: c.Recorded, restored: c.Restored, mode: c.Mode, visible: c.Visible, expander: c.Expander, log: c.Log, sync: wakeup.New()}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	for _, s := range p.sources {
		p.layers = append(p.layers, NewLayer(s.Name(), c.Recorded))
	}
	return p
}

// Visible is Config.Visible; each kind of source sees its own pods and objects in any case.
func (c *PodConfig) Visible(podSource, objectSource string) bool {
	return c.visible.sees(podSource, objectSource)
}

// message is one reading of one source, or its end.
type message struct {
	layer    int
	snapshot source.Snapshot
	err      error
	ended    bool
}

// Batches reads all sources concurrently, and yields one Batch for each reading that changes the merged
// state. A change can be in pods, config objects, problems, conflicts and skipped entries. It can also
// be that a layer becomes ready, can or cannot be read, or has ended. While the caller handles a batch,
// the next readings wait. Batches loses no reading, and merges none with another (C-1.1.3, C-1.1.4).
//
// Before any reading it yields one Batch for each layer with a Restored set, in layer order. The
// RESTORE in it has the layer's pods that no earlier layer has; it may be empty. Restored pods of an
// earlier layer can be on a cycle with these pods, or get objects of this layer. Then updates of these
// earlier pods come before the RESTORE. In the modes other than Incremental, a SET replaces a RESTORE
// that has pods.
//
// The sequence ends when ctx is done, when the caller leaves the loop, or when every source has ended.
// No goroutine outlives it. Range over it only once, and do not call Once, because each source can be
// read only once.
//
// With an Expander, the batch of a reading that adds or changes workloads has their pods, too. When
// the Expander is due and the merged state changes, Batches yields a batch with the layer AllSources.
// If the Expander's Due is not nil, the sequence continues after every source has ended.
func (c *PodConfig) Batches(ctx context.Context) iter.Seq[Batch] {
	return func(yield func(Batch) bool) {
		ctx, stop := context.WithCancel(ctx)
		var readers sync.WaitGroup
		defer readers.Wait()
		defer stop()
		messages := make(chan message) // cap 0: a reader waits until the loop below receives
		for i, s := range c.sources {
			readers.Go(func() { c.follow(ctx, i, s, messages) })
		}
		f, _ := newFold(c.waitingLayers(time.Now()), c.kept, c.visible).withExpander(c.expander)
		due := dueOf(c.expander)
		for i, l := range f.layers {
			r, known := c.restored[l.state.Name]
			if !known || ctx.Err() != nil {
				continue
			}
			var b Batch
			f, b = c.restore(f, i, r)
			if !yield(b) {
				return
			}
		}
		for running := len(c.sources); ctx.Err() == nil; {
			select { // answer a Sync before the next message
			case <-c.sync:
				if !yield(syncBatch(f.merged)) {
					return
				}
				continue
			default:
			}
			if running == 0 && due == nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-c.sync:
				if !yield(syncBatch(f.merged)) {
					return
				}
			case <-due:
				next, b, changed := c.expand(f)
				if f = next; changed && !yield(b) {
					return
				}
			case m := <-messages:
				if m.ended {
					running--
				}
				var b Batch
				var changed bool
				f, b, changed = c.take(f, m, time.Now())
				if changed && !yield(b) {
					return
				}
			}
		}
	}
}

// Sync makes one SET with the merged state of all layers the next batch of Batches, in any mode
// (C-1.3.5). One SET answers all earlier calls. The SET's Source is AllSources. Sync never blocks, and
// any goroutine may call it.
func (c *PodConfig) Sync() {
	c.sync.Send()
}

// Once reads every source once, and returns the merged state of all layers. If a source ends or ctx is
// done before the source has answered, its layer is not ready and has an Error. It then uses its
// Restored set, if there is one. With an Expander, the state has the pods of workloads. Call Once only
// once, and do not use Batches.
func (c *PodConfig) Once(ctx context.Context) *Merged {
	start := time.Now()
	f := newFold(c.waitingLayers(start), c.kept, c.visible)
	for i, l := range f.layers {
		if r, known := c.restored[l.state.Name]; known {
			f, _ = f.step(i, l.Restore(r))
		}
	}
	layers := slices.Clone(f.layers)
	var readers sync.WaitGroup
	for i, s := range c.sources {
		readers.Go(func() {
			m, ok := firstMessage(ctx, i, s)
			at := time.Now()
			if !ok || ctx.Err() != nil && errors.Is(m.err, ctx.Err()) {
				at = start // the layer has been without an answer since then
				m.err = errors.New("source ended without an answer")
				if ctx.Err() != nil {
					m.err = fmt.Errorf("no answer: %w", context.Cause(ctx))
				}
			}
			layers[i] = c.receive(layers[i], m, at) // each goroutine has its own element
		})
	}
	readers.Wait()
	for i, l := range layers {
		f, _ = f.step(i, l)
	}
	c.read = f
	f, _ = f.withExpander(c.expander)
	return f.merged
}

// firstMessage returns a source's first message.
func firstMessage(ctx context.Context, i int, s source.Source) (m message, ok bool) {
	for snapshot, err := range s.Sets(ctx) {
		return message{layer: i, snapshot: snapshot, err: err}, true
	}
	return message{layer: i}, false
}

// follow sends every reading of a source until it ends or ctx does.
func (c *PodConfig) follow(ctx context.Context, i int, s source.Source, messages chan<- message) {
	send := func(m message) bool {
		select {
		case messages <- m:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for snapshot, err := range s.Sets(ctx) {
		// After the end of ctx, an error says nothing about the source.
		if ctx.Err() != nil || !send(message{layer: i, snapshot: snapshot, err: err}) {
			return
		}
	}
	send(message{layer: i, ended: true})
}

// receive returns the layer after one message.
func (c *PodConfig) receive(l Layer, m message, now time.Time) Layer {
	switch {
	case m.ended:
		c.log.Debug("Source ended", "source", l.state.Name)
		return l.Ended()
	case m.err != nil:
		c.log.Debug("Failed to read source", "source", l.state.Name, "error", m.err)
		return l.Failed(m.err, now)
	}
	l = l.Read(m.snapshot, now)
	c.log.Debug("Source read", "source", l.state.Name, "revision", m.snapshot.Revision,
		"pods", l.state.Pods, "pods_changed", len(l.changedPods), "problems", len(l.problems))
	return l
}

// waitingLayers returns the layers at now, when the wait for their sources begins.
func (c *PodConfig) waitingLayers(now time.Time) []Layer {
	layers := slices.Clone(c.layers)
	for i, l := range layers {
		layers[i] = l.WaitingSince(now)
	}
	return layers
}

// restore returns the fold after layer i was restored, and its batch.
func (c *PodConfig) restore(f fold, i int, r Restored) (fold, Batch) {
	layer := f.layers[i].Restore(r)
	next, changed := f.step(i, layer)
	u := PodUpdate{Op: RESTORE, Source: layer.state.Source, Location: layer.state.Location}
	// Earlier layers win, and later ones are still empty. So the RESTORE has all pods that the
	// layer adds to the merged state. Pods of earlier layers can change too: they may be on a
	// cycle with the layer's pods, or name its objects.
	var others []ident
	for _, id := range changed {
		if s := next.merged.Pod(id.key); s != nil && f.merged.Pod(id.key) == nil && s.Origin.Layer() == layer.state.Name {
			u.Pods = append(u.Pods, s)
		} else {
			others = append(others, id)
		}
	}
	updates := diffPods(f.merged, next.merged, others)
	for i := range updates {
		if updates[i].Op == ADD { // a pod of an earlier layer whose object the layer has
			updates[i].Op = RESTORE
		}
	}
	b := Batch{Updates: append(updates, u), State: next.merged, Layer: layer.state.Name, ChangedSets: layer.changedSets}
	b.Updates = c.mode.Convert(b)
	c.log.Debug("Source restored", "source", layer.state.Name, "pods", layer.state.Pods, "last_read", r.At)
	return next, b
}

// take returns the fold after one message, the batch of that message, and whether the batch has any
// change.
func (c *PodConfig) take(f fold, m message, now time.Time) (fold, Batch, bool) {
	old := f.layers[m.layer]
	layer := c.receive(old, m, now)
	next, pods := f.step(m.layer, layer)
	b := Batch{
		Updates: diffPods(f.merged, next.merged, pods), State: next.merged,
		Layer: layer.state.Name, ChangedSets: layer.changedSets, First: !old.state.Ready && layer.state.Ready,
	}
	b.Updates = c.mode.Convert(b)
	return next, b, len(b.Updates)+len(b.ChangedSets) > 0 || differsInState(f.merged, next.merged)
}

// differsInState reports whether two states differ in a part that updates do not contain. The time
// of the last good reading does not count.
func differsInState(old, new *Merged) bool {
	withoutLastGood := func(l LayerState) LayerState {
		l.LastGood = time.Time{}
		return l
	}
	return !old.Objects.Is(new.Objects) || !same(old.Conflicts, new.Conflicts) ||
		!same(old.Problems, new.Problems) || !same(old.Skipped, new.Skipped) ||
		!slices.EqualFunc(old.Layers, new.Layers, func(a, b LayerState) bool { return withoutLastGood(a) == withoutLastGood(b) })
}

// syncBatch is the answer to Sync.
func syncBatch(state *Merged) Batch {
	return Batch{Updates: []PodUpdate{{Op: SET, Source: AllSources, Pods: state.Pods.Slice()}}, State: state}
}
