package engine

import (
	"log/slog"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// lastGoodWriter writes every layer's last good set to the disk, in a goroutine of its own: a
// slow or full disk delays no pod. It merges changes that are not written yet with later
// ones: a slow disk gets fewer writes, and only the newest content.
type lastGoodWriter struct {
	sets  Sets
	log   *slog.Logger
	queue chan pendingSets // capacity 1: keep sends, run receives; when it is full, keep takes it back and merges

	complete bool // pendingSets.only was sent; only keep uses this field
}

// pendingSets are changes that are not on the disk yet.
type pendingSets struct {
	layers map[string]*pendingLayer // by name
	// only names the configured layers, once all of them have answered; nil before. With it, run
	// removes the sets of all other layers from the disk. Until all layers have answered, run keeps
	// them: the command line may name a wrong source, and the next one may correct that.
	only map[string]bool
}

// pendingLayer is the current content of a layer's files.
type pendingLayer struct {
	at    time.Time // when the layer was last read without error
	files map[string]pod.LastGoodSet
}

func newLastGoodWriter(sets Sets, log *slog.Logger) *lastGoodWriter {
	return &lastGoodWriter{sets: sets, log: log, queue: make(chan pendingSets, 1)}
}

// keep queues the changes of a batch. It never waits. Only one goroutine calls it.
func (w *lastGoodWriter) keep(b podconfig.Batch) {
	var news pendingSets
	if at, ready := lastGood(b); ready && len(b.ChangedSets) > 0 { // a layer that is not ready has its sets from the disk
		files := make(map[string]pod.LastGoodSet, len(b.ChangedSets))
		for _, s := range b.ChangedSets {
			files[s.File] = s
		}
		news.layers = map[string]*pendingLayer{b.Layer: {at, files}}
	}
	if !w.complete && b.State.AllReady() {
		w.complete, news.only = true, make(map[string]bool, len(b.State.Layers))
		for _, l := range b.State.Layers {
			news.only[l.Name] = true
		}
	}
	if news.layers == nil && news.only == nil {
		return
	}
	select {
	case before := <-w.queue:
		before.add(news)
		news = before
	default:
	}
	w.queue <- news
}

// lastGood returns when the layer of a batch was last read without error, and whether it has
// answered.
func lastGood(b podconfig.Batch) (at time.Time, ready bool) {
	for _, l := range b.State.Layers {
		if l.Name == b.Layer {
			return l.LastGood, l.Ready
		}
	}
	return at, false
}

// add merges newer changes.
func (u *pendingSets) add(newer pendingSets) {
	if newer.only != nil {
		u.only = newer.only
	}
	if u.layers == nil {
		u.layers = newer.layers
		return
	}
	for name, layer := range newer.layers {
		old := u.layers[name]
		if old == nil {
			u.layers[name] = layer
			continue
		}
		old.at = layer.at
		for file, s := range layer.files {
			old.files[file] = s
		}
	}
}

// close ends run after a last write. The goroutine that calls keep calls close, and calls keep no
// more.
func (w *lastGoodWriter) close() { close(w.queue) }

// run writes the queued changes until close. It tries a failed write again with the next change,
// after saveRetry, and at close.
func (w *lastGoodWriter) run() {
	var left pendingSets
	logged := false
	for open := true; open; {
		var again <-chan time.Time
		if len(left.layers) > 0 || left.only != nil {
			again = time.After(saveRetry)
		}
		var u pendingSets
		select {
		case u, open = <-w.queue:
		case <-again:
		}
		left.add(u)
		failed, err := w.write(&left)
		switch {
		case err != nil && !logged:
			w.log.Warn("Failed to write last good set; retrying", "source", failed, "error", err)
		case err == nil && logged:
			w.log.Info("Writing last good sets succeeds again")
		}
		logged = err != nil
	}
}

// write writes the pending changes, and removes the written ones from left. It returns one layer
// that failed, and its error.
func (w *lastGoodWriter) write(left *pendingSets) (failed string, err error) {
	for name, layer := range left.layers {
		changed := make([]pod.LastGoodSet, 0, len(layer.files))
		for _, s := range layer.files {
			changed = append(changed, s)
		}
		if wrong := w.sets.Save(name, layer.at, changed); wrong != nil {
			failed, err = name, wrong
			continue
		}
		delete(left.layers, name)
	}
	if left.only == nil {
		return failed, err
	}
	if wrong := w.sets.Forget(func(layer string) bool { return left.only[layer] }); wrong != nil {
		w.log.Warn("Failed to remove last good sets of sources that are no longer configured", "error", wrong)
	}
	left.only = nil
	return failed, err
}
