package engine

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/plan"
)

// nodeView is what the loop knows of the node: its object and its room.
type nodeView struct {
	unseen  bool // the object was not known when it was last read
	pending bool // pods wait for it to be seen
	freed   bool // another pod may be admitted for what this turn freed
}

// node returns the node as admission sees it: this machine, with the labels and taints of its
// Node object, where an API server keeps one (C-1.31.3). They may differ from those it
// registered with.
func (l *loop) node() plan.Node {
	n := l.cfg.Node
	l.view.unseen = false
	if l.cfg.NodeSeen == nil {
		return n
	}
	labels, taints, ok := l.cfg.NodeSeen()
	if ok {
		n.Labels, n.Taints = labels, taints
	}
	l.view.unseen = !ok
	return n
}

// early reports whether a pod is refused for labels or taints before those of the node's
// object are known. It is judged again, not failed.
func (l *loop) early(r plan.Refusal) bool {
	return l.view.unseen && r.Final && (r.Reason == "NodeAffinity" || r.Reason == "TaintToleration")
}

// timed is do, and measures the duration of a plan's steps.
func (w *worker) timed(ctx context.Context, v plan.View, p plan.Plan) (result, time.Duration) {
	if len(p.Steps) == 0 || w.env.worked == nil {
		return w.do(ctx, v, p)
	}
	operation := "sync"
	switch {
	case p.Stopping:
		operation = "kill"
	case v.Have.Empty():
		operation = "create"
	}
	begun := time.Now()
	defer func() { w.env.worked(operation, time.Since(begun)) }()
	return w.do(ctx, v, p)
}
