package engine

import (
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// logState says what changed between two states that a person has to know:
// rejections, conflicts, sources that cannot be read.
func (l *loop) logState(now *podconfig.Merged) {
	var before podconfig.Merged
	if l.state != nil {
		before = *l.state
	}
	for _, p := range feed.Appeared(before.Problems, now.Problems) {
		l.log.Warn("Manifest rejected", "place", p.Place(), "path", p.Path, "error", p.Msg)
	}
	for _, c := range feed.Appeared(before.Conflicts, now.Conflicts) {
		l.log.Warn("Pod wanted twice", "pod", c.Key.String(), "kept", c.Winner.String(), "ignored", c.Loser.String(), "reason", c.Reason)
	}
	for _, p := range feed.Appeared(before.Skipped, now.Skipped) {
		l.log.Info("Passed over", "place", p.Place(), "reason", p.Msg)
	}
	for i, layer := range now.Layers {
		old, restored := "", false
		if i < len(before.Layers) {
			old, restored = before.Layers[i].Error, before.Layers[i].Restored
		}
		if layer.Restored && !restored {
			l.log.Info("Source stands on its last good set until it answers", "source", layer.Name, "pods", layer.Pods, "last_read", layer.LastGood)
		}
		switch {
		case layer.Error != "" && layer.Error != old:
			l.log.Warn("Source not read", "source", layer.Name, "error", layer.Error, "pods_kept", layer.Pods)
		case layer.Error == "" && old != "":
			l.log.Info("Source is read again", "source", layer.Name, "pods", layer.Pods)
		}
	}
}

// noteDisk logs once that records cannot be written, and once that they can be again: one
// line for the node, not one for each pod.
func (l *loop) logDisk(err error) {
	switch {
	case err != nil && !l.diskFailing:
		l.log.Warn("Records not written; pods go on without", "error", err)
	case err == nil && l.diskFailing:
		l.log.Info("Records are written again")
	}
	l.diskFailing = err != nil
}
