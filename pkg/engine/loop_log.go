package engine

import (
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// logState logs the changes between two states that a person has to know: rejected manifests,
// conflicts, skipped objects, and sources that cannot be read.
func (l *loop) logState(now *podconfig.Merged) {
	var before podconfig.Merged
	if l.state != nil {
		before = *l.state
	}
	logNew(l, "Manifest rejected", feed.Appeared(before.Problems, now.Problems, placelessProblem), func(p pod.Problem) {
		l.log.Warn("Manifest rejected", "file", p.Place(), "field", p.Path, "error", p.Msg)
	})
	logNew(l, "Pod is defined more than once", feed.Appeared(before.Conflicts, now.Conflicts, placelessConflict), func(c podconfig.Conflict) {
		l.log.Warn("Pod is defined more than once", "pod", c.Key.String(), "kept", c.Winner.String(), "ignored", c.Loser.String(), "reason", c.Reason)
	})
	logNew(l, "Skipped object", feed.Appeared(before.Skipped, now.Skipped, placelessProblem), func(p pod.Problem) {
		l.log.Info("Skipped object", "file", p.Place(), "reason", p.Msg)
	})
	for i, layer := range now.Layers {
		old, restored := "", false
		if i < len(before.Layers) {
			old, restored = before.Layers[i].Error, before.Layers[i].Restored
		}
		if layer.Restored && !restored {
			l.log.Info("Using last good set until the source answers", "source", layer.Name, "pods", layer.Pods, "last_read", layer.LastGood)
		}
		switch {
		case layer.Error != "" && layer.Error != old:
			l.log.Warn("Failed to read source", "source", layer.Name, "error", layer.Error, "pods_kept", layer.Pods)
		case layer.Error == "" && old != "":
			l.log.Info("Source can be read again", "source", layer.Name, "pods", layer.Pods)
		}
	}
}

// mostLogged is how many lines one batch, of one layer, may log of one kind. A source can
// bring tens of thousands of problems at each poll; the sync loop writes the lines.
const mostLogged = 100

// logNew logs the first mostLogged of all, and the number of the others.
func logNew[T any](l *loop, message string, all []T, log func(T)) {
	for _, v := range all[:min(len(all), mostLogged)] {
		log(v)
	}
	if rest := len(all) - mostLogged; rest > 0 {
		l.log.Warn("Not logging further messages of this kind", "message", message, "count", rest, "hint", "nodectl get sources")
	}
}

func placelessProblem(p pod.Problem) pod.Problem {
	p.Line, p.Column = 0, 0
	return p
}

func placelessConflict(c podconfig.Conflict) podconfig.Conflict {
	c.Winner.Line, c.Loser.Line = 0, 0
	return c
}

// logDisk logs once that records cannot be written, and once that they can be again: one line
// for the node, not one for each pod.
func (l *loop) logDisk(err error) {
	switch {
	case err != nil && !l.diskFailing:
		l.log.Warn("Failed to write records; continuing without them", "error", err)
	case err == nil && l.diskFailing:
		l.log.Info("Writing records succeeds again")
	}
	l.diskFailing = err != nil
}
