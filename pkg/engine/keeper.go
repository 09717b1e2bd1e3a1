package engine

import (
	"log/slog"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// keeper writes every layer's last good set down, beside the loop: a disk that
// is slow or full delays no pod. What it has not written yet is merged with what
// comes after, so a file that changes often is written as often as the disk
// takes it.
type keeper struct {
	sets Sets
	log  *slog.Logger
	mail chan unwritten // capacity 1: the feed sends, run receives; when full, the feed takes it back and merges

	complete bool // the feed's: every layer was heard, and run was told
}

// unwritten is what has not reached the disk.
type unwritten struct {
	layers map[string]*unwrittenLayer // by name
	// only names the layers there are, once all of them were heard: what the disk
	// has of others is of no use any more. Before that somebody may have named the
	// wrong ones, and start the agent again with the right ones. Nil until then.
	only map[string]bool
}

// unwrittenLayer is what stands in files of a layer now.
type unwrittenLayer struct {
	at    time.Time // when the layer was last read well
	files map[string]pod.Standing
}

func newKeeper(sets Sets, log *slog.Logger) *keeper {
	return &keeper{sets: sets, log: log, mail: make(chan unwritten, 1)}
}

// keep takes what a batch changed. It never waits. Only the feed calls it.
func (k *keeper) keep(b podconfig.Batch) {
	var news unwritten
	if at, heard := lastGood(b); heard && len(b.Stands) > 0 { // before that it is what the disk said
		files := make(map[string]pod.Standing, len(b.Stands))
		for _, s := range b.Stands {
			files[s.File] = s
		}
		news.layers = map[string]*unwrittenLayer{b.Layer: {at, files}}
	}
	if !k.complete && b.State.AllHeard() {
		k.complete, news.only = true, make(map[string]bool, len(b.State.Layers))
		for _, l := range b.State.Layers {
			news.only[l.Name] = true
		}
	}
	if news.layers == nil && news.only == nil {
		return
	}
	select {
	case before := <-k.mail:
		before.add(news)
		news = before
	default:
	}
	k.mail <- news
}

// lastGood returns when the layer of a batch was last read well, and whether it
// was heard.
func lastGood(b podconfig.Batch) (at time.Time, heard bool) {
	for _, l := range b.State.Layers {
		if l.Name == b.Layer {
			return l.LastGood, l.Heard
		}
	}
	return at, false
}

// add puts what is newer on top.
func (u *unwritten) add(newer unwritten) {
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

// close ends run once everything is written; only the feed calls it, last.
func (k *keeper) close() { close(k.mail) }

// run writes until close. What could not be written is tried again with what
// comes next, after a while, and at the end: a set that is older than what runs
// is worth little.
func (k *keeper) run() {
	var left unwritten
	told := false
	for open := true; open; {
		var again <-chan time.Time
		if len(left.layers) > 0 || left.only != nil {
			again = time.After(saveRetry)
		}
		var u unwritten
		select {
		case u, open = <-k.mail:
		case <-again:
		}
		left.add(u)
		failed, err := k.write(&left)
		switch {
		case err != nil && !told:
			k.log.Warn("Last good set not written; pods go on without", "source", failed, "error", err)
		case err == nil && told:
			k.log.Info("Last good sets are written again")
		}
		told = err != nil
	}
}

// write writes what is left and takes out of it what reached the disk. The error
// is that of one layer that failed.
func (k *keeper) write(left *unwritten) (failed string, err error) {
	for name, layer := range left.layers {
		changed := make([]pod.Standing, 0, len(layer.files))
		for _, s := range layer.files {
			changed = append(changed, s)
		}
		if wrong := k.sets.Save(name, layer.at, changed); wrong != nil {
			failed, err = name, wrong
			continue
		}
		delete(left.layers, name)
	}
	if left.only == nil {
		return failed, err
	}
	if wrong := k.sets.Forget(func(layer string) bool { return left.only[layer] }); wrong != nil {
		k.log.Warn("Sets of sources that are not configured any more were not removed", "error", wrong)
	}
	left.only = nil
	return failed, err
}
