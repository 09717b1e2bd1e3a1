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
)

// AllSources is the Source of a SET that Sync asked for: it speaks of every
// layer (C-1.1.8).
const AllSources = "*"

// Config says which layers there are.
type Config struct {
	// Sources are the layers, the first one wins.
	Sources []source.Source
	// Mode is how much of a change updates tell.
	Mode Mode
	// Kept is what runs on this node, as the agent before this one wrote it down:
	// the last good version of files that are broken at the first reading, and
	// who owns a pod that two files want (see NewLayer). It must not change after
	// New.
	Kept []*pod.Spec
	// Restored is each layer's last good set, by the layer's name, as an agent
	// before this one wrote it down. A layer stands on it until it is heard
	// (C-1.3.8); Kept then says who owns a pod that two files want, and what stands
	// in a broken file of which the set has nothing. A set of a layer that is not
	// configured is ignored. It must not change after New.
	Restored map[string]Restored
	// Visible says whether pods of one kind of source see the config objects of
	// another; nil: each kind sees its own alone. It must give the same answer
	// always.
	Visible Visible
	// Log gets one debug line a message; nil is nowhere. Whatever a person has
	// to know is in the batches.
	Log *slog.Logger
}

// Visible reports whether pods of one kind of source see the config objects of
// another.
type Visible func(podSource, objectSource string) bool

// PodConfig reads sources and merges what they say. Its goroutines live inside
// Batches and Once.
type PodConfig struct {
	sources  []source.Source
	layers   []Layer
	kept     []*pod.Spec
	restored map[string]Restored
	mode     Mode
	visible  Visible
	log      *slog.Logger
	sync     chan struct{} // cap 1, sent by Sync, received by Batches; when full, that request is served by the same SET
}

// New returns a PodConfig. Nothing is read before Batches or Once.
func New(c Config) *PodConfig {
	p := &PodConfig{sources: slices.Clone(c.Sources), kept: c.Kept, restored: c.Restored, mode: c.Mode, visible: c.Visible, log: c.Log, sync: make(chan struct{}, 1)}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	for _, s := range p.sources {
		p.layers = append(p.layers, NewLayer(s.Name(), c.Kept))
	}
	return p
}

// Visible reports whether pods of one kind of source may name what another kind defines, as
// the configuration says.
func (c *PodConfig) Visible(podSource, objectSource string) bool {
	return podSource == objectSource || c.visible != nil && c.visible(podSource, objectSource)
}

// message is one word of one source.
type message struct {
	layer    int
	snapshot source.Snapshot
	err      error
	ended    bool
}

// Batches reads all sources at once and yields one Batch for every word of one
// of them that changed anything: pods, config objects, problems, conflicts,
// what was skipped, whether a layer was heard, can be read or has ended. A
// source waits while its batch is being handled; no word is lost or merged with
// another (C-1.1.3, C-1.1.4).
//
// Before any word it yields, for each layer with a Restored set, in layer order,
// one Batch with a RESTORE of those of its pods that no earlier layer holds,
// which may be none; in the other modes with the SET that this is.
//
// The sequence ends when ctx is done, when the caller leaves the loop, or when
// every source has ended; no goroutine outlives it. It may be ranged over once,
// and not beside Once: sources are read once.
func (c *PodConfig) Batches(ctx context.Context) iter.Seq[Batch] {
	return func(yield func(Batch) bool) {
		ctx, stop := context.WithCancel(ctx)
		var readers sync.WaitGroup
		defer readers.Wait()
		defer stop()
		messages := make(chan message) // cap 0: readers send, the loop below receives; readers wait
		for i, s := range c.sources {
			readers.Go(func() { c.read(ctx, i, s, messages) })
		}
		f := newFold(c.asked(time.Now()), c.kept, c.visible)
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
		for live := len(c.sources); ctx.Err() == nil; {
			select { // a Sync comes before any message
			case <-c.sync:
				if !yield(syncBatch(f.merged)) {
					return
				}
				continue
			default:
			}
			if live == 0 {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-c.sync:
				if !yield(syncBatch(f.merged)) {
					return
				}
			case m := <-messages:
				if m.ended {
					live--
				}
				var b Batch
				var news bool
				f, b, news = c.take(f, m, time.Now())
				if news && !yield(b) {
					return
				}
			}
		}
	}
}

// Sync asks Batches for one SET with the merged state of all layers as its next
// batch, whatever the mode (C-1.3.5). It never blocks and may be called from
// any goroutine; requests that were not served yet become one. The SET's Source
// is AllSources.
func (c *PodConfig) Sync() {
	select {
	case c.sync <- struct{}{}:
	default:
	}
}

// Once reads every source until its first word, and returns the merged state
// of all layers. A source that has not said a word when ctx ends, or that ends
// without one, is not heard, and its layer's Error says so; where there is one,
// its Restored set stands. Once is called once, and not beside Batches.
func (c *PodConfig) Once(ctx context.Context) *Merged {
	start := time.Now()
	f := newFold(c.asked(start), c.kept, c.visible)
	for i, l := range f.layers {
		if r, known := c.restored[l.state.Name]; known {
			f, _ = f.step(i, l.Restore(r))
		}
	}
	layers := slices.Clone(f.layers)
	var readers sync.WaitGroup
	for i, s := range c.sources {
		readers.Go(func() {
			m, ok := firstWord(ctx, i, s)
			at := time.Now()
			if !ok || ctx.Err() != nil && errors.Is(m.err, ctx.Err()) {
				at = start // it has been silent since
				m.err = errors.New("ended without a word")
				if ctx.Err() != nil {
					m.err = fmt.Errorf("no answer: %w", context.Cause(ctx))
				}
			}
			layers[i] = c.hear(layers[i], m, at) // each goroutine has its own element
		})
	}
	readers.Wait()
	for i, l := range layers {
		f, _ = f.step(i, l)
	}
	return f.merged
}

// firstWord returns the first message of a source.
func firstWord(ctx context.Context, i int, s source.Source) (m message, ok bool) {
	for snapshot, err := range s.Sets(ctx) {
		return message{layer: i, snapshot: snapshot, err: err}, true
	}
	return message{layer: i}, false
}

// read sends every word of a source until it ends or ctx does.
func (c *PodConfig) read(ctx context.Context, i int, s source.Source, messages chan<- message) {
	send := func(m message) bool {
		select {
		case messages <- m:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for snapshot, err := range s.Sets(ctx) {
		// An error at the end of ctx says nothing about the source.
		if ctx.Err() != nil || !send(message{layer: i, snapshot: snapshot, err: err}) {
			return
		}
	}
	send(message{layer: i, ended: true})
}

// hear returns the layer after one message.
func (c *PodConfig) hear(l Layer, m message, now time.Time) Layer {
	switch {
	case m.ended:
		c.log.Debug("Source ended", "layer", l.state.Name)
		return l.Ended()
	case m.err != nil:
		c.log.Debug("Source could not look", "layer", l.state.Name, "err", m.err)
		return l.Failed(m.err, now)
	}
	l = l.Read(m.snapshot, now)
	c.log.Debug("Source read", "layer", l.state.Name, "revision", m.snapshot.Revision,
		"pods", l.state.Pods, "changed", len(l.changedPods), "problems", len(l.problems))
	return l
}

// asked returns the layers at the moment when their sources are first asked.
func (c *PodConfig) asked(now time.Time) []Layer {
	layers := slices.Clone(c.layers)
	for i, l := range layers {
		layers[i] = l.Asked(now)
	}
	return layers
}

// restore returns the fold after layer i was restored, and the batch that says
// so.
func (c *PodConfig) restore(f fold, i int, r Restored) (fold, Batch) {
	layer := f.layers[i].Restore(r)
	next, changed := f.step(i, layer)
	u := PodUpdate{Op: RESTORE, Source: layer.state.Source, Location: layer.state.Location}
	// Earlier layers win, later ones have not spoken: so the layer's own are all
	// new. But what is new may make a circle with what an earlier layer restored, and
	// may be what an earlier layer's pods are bound to.
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
		if updates[i].Op == ADD { // of an earlier layer, which had to wait for an object
			updates[i].Op = RESTORE
		}
	}
	b := Batch{Updates: append(updates, u), State: next.merged, Layer: layer.state.Name, Stands: layer.stands}
	b.Updates = c.mode.Tell(b)
	c.log.Debug("Source restored", "layer", layer.state.Name, "pods", layer.state.Pods, "last_good", r.At)
	return next, b
}

// take returns the fold after one message, the batch it leads to, and whether
// that says anything.
func (c *PodConfig) take(f fold, m message, now time.Time) (fold, Batch, bool) {
	old := f.layers[m.layer]
	layer := c.hear(old, m, now)
	next, pods := f.step(m.layer, layer)
	b := Batch{
		Updates: diffPods(f.merged, next.merged, pods), State: next.merged,
		Layer: layer.state.Name, Stands: layer.stands, First: !old.state.Heard && layer.state.Heard,
	}
	b.Updates = c.mode.Tell(b)
	return next, b, len(b.Updates)+len(b.Stands) > 0 || saysMore(f.merged, next.merged)
}

// saysMore reports whether two states differ in what no update tells: all but
// the pods and the time of the last good reading.
func saysMore(old, new *Merged) bool {
	told := func(l LayerState) LayerState {
		l.LastGood = time.Time{}
		return l
	}
	return !old.Objects.Is(new.Objects) || !same(old.Conflicts, new.Conflicts) ||
		!same(old.Problems, new.Problems) || !same(old.Skipped, new.Skipped) ||
		!slices.EqualFunc(old.Layers, new.Layers, func(a, b LayerState) bool { return told(a) == told(b) })
}

// syncBatch is the answer to Sync.
func syncBatch(state *Merged) Batch {
	return Batch{Updates: []PodUpdate{{Op: SET, Source: AllSources, Pods: state.Pods.Slice()}}, State: state}
}
