package soakdevices

import (
	"slices"
	"time"
)

// lives are the lives of a node that agents are ended in.
var lives = []struct {
	name string
	play func(w *world)
}{
	{"pods start, are edited and removed; plugins restart", story},
	{"pods are deleted by force, and others take their names", forced},
}

// settle is the time after which a node has finished everything: an agent unstages a volume that no
// pod uses two minutes after its start at the earliest.
const settle = 5 * time.Minute

// part lets time pass until the node has settled, and checks it.
func (w *world) part(name string, long time.Duration) {
	w.live(long)
	w.checkPods(name)
}

// begin creates the pods that every life has.
func (w *world) begin() {
	w.live(5 * time.Second) // the plugins register
	w.api.apply(shape{name: "all", gpus: "1", cpus: "2", card: "card-1", volume: "data-1"}.pod())
	w.api.apply(shape{name: "shares", gpus: "1", card: "card-1", volume: "data-1"}.pod())
	w.api.apply(shape{name: "pinned", gpus: "1", cpus: "4"}.pod())
	w.part("after the start", settle)
}

// story edits and removes pods, and restarts the plugin and the drivers.
func story(w *world) {
	w.begin()
	w.api.apply(shape{name: "all", gpus: "1", cpus: "2", card: "card-1", volume: "data-1", revision: "2"}.pod())
	w.part("after the edit", settle)
	w.gpu.Kill()
	w.api.remove("shares")
	w.live(5 * time.Second)
	w.api.apply(shape{name: "late", gpus: "1"}.pod())
	w.live(10 * time.Second)
	w.restart(w.gpu)
	w.part("after the restart of the plugin", settle)
	w.cards.Kill()
	w.disks.Kill()
	w.api.apply(shape{name: "other", cpus: "2", card: "card-2", volume: "data-2"}.pod())
	w.api.remove("all")
	w.live(10 * time.Second)
	w.restart(w.cards)
	w.restart(w.disks)
	w.part("after the restart of the drivers", settle)
	w.finish()
}

// forced deletes the pods by force: while no agent runs, if one ends before.
func forced(w *world) {
	replaced := false
	replace := func() {
		if !replaced && len(w.api.desired()) > 0 {
			replaced = true
			w.api.replace()
		}
	}
	w.away = replace
	w.begin()
	replace()
	w.part("after the replacement", settle)
	w.cards.Kill()
	w.disks.Kill()
	w.gpu.Kill()
	w.api.force("shares")
	w.live(10 * time.Second)
	w.api.force("all")
	w.live(10 * time.Second)
	w.restart(w.cards)
	w.restart(w.disks)
	w.restart(w.gpu)
	w.api.apply(shape{name: "late", gpus: "3", card: "card-1", volume: "data-1"}.pod())
	w.part("after the restart of the plugins", settle)
	w.finish()
}

// idle leaves plugins without a call for 40 minutes, twice.
func idle(w *world) {
	w.begin()
	for _, name := range []string{"first", "second"} {
		streams := w.gpu.Opened()
		w.live(40 * time.Minute)
		if wiped := w.api.wiped(); len(wiped) > 0 || w.gpu.Opened() != streams {
			w.problem(gone, "after 40 idle minutes: slices of %v are deleted, %d streams of the plugin", wiped, w.gpu.Opened()-streams)
		}
		w.api.apply(shape{name: name, cpus: "2", card: name, volume: name}.pod())
		w.part("after 40 idle minutes", 10*time.Second)
		w.end()
		w.arrive()
		w.part("after a restart", settle)
	}
	w.finish()
}

// finish removes all pods, one half of them before the other.
func (w *world) finish() {
	all := w.api.desired()
	for _, p := range slices.Backward(all) {
		w.api.remove(p.Name)
		w.live(time.Second)
	}
	w.part("at the end", 2*settle)
}

// restart starts a plugin again, unless a reboot has ended all of them.
func (w *world) restart(p interface{ Start() }) {
	if w.plugIn.IsZero() {
		p.Start()
	}
}
