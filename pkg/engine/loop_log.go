package engine

import (
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// logState logs new problems of a state: rejected pods and other errors in manifests,
// conflicts, skipped objects, and sources that cannot be read.
func (l *loop) logState(now *podconfig.Merged) {
	var before podconfig.Merged
	if l.state != nil {
		before = *l.state
	}
	const rejected, broken = "Rejecting pod", "Error in manifest file"
	logNew(l, rejected+" / "+broken, feed.NewItems(before.Problems, now.Problems, placelessProblem), func(p pod.Problem) {
		if p.Pod != (pod.Key{}) {
			l.log.Warn(rejected, "pod", p.Pod.String(), "file", p.Place(), "field", p.Path, "error", p.Msg)
		} else {
			l.log.Warn(broken, "file", p.Place(), "field", p.Path, "error", p.Msg)
		}
	})
	logNew(l, "Pod is defined more than once", feed.NewItems(before.Conflicts, now.Conflicts, placelessConflict), func(c podconfig.Conflict) {
		l.log.Warn("Pod is defined more than once", "pod", c.Key.String(), "kept", c.Winner.String(), "ignored", c.Loser.String(), "reason", c.Reason)
	})
	logNew(l, "Skipped object", feed.NewItems(before.Skipped, now.Skipped, placelessProblem), func(p pod.Problem) {
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

// mostLogged is how many lines of one kind the loop logs for one batch at most. A source can have
// tens of thousands of problems at each poll, and the sync loop waits until each line is written.
const mostLogged = 100

// logNew calls log for the first mostLogged elements of all, and logs the number of the others.
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

// logDisk logs when records cannot be written, and when they can be written again: one line for
// the node, not one for each pod.
func (l *loop) logDisk(err error) {
	switch {
	case err != nil && !l.diskFailing:
		l.log.Warn("Failed to write records; retrying", "error", err)
	case err == nil && l.diskFailing:
		l.log.Info("Writing records succeeds again")
	}
	l.diskFailing = err != nil
}
