package engine

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/plan"
)

// node is what admission judges by now: this machine, with the labels and taints that
// its Node object has, where an API server keeps one (C-1.31.3). Somebody may have
// given it others than it registered with.
func (l *loop) node() plan.Node {
	n := l.cfg.Node
	l.strange = false
	if l.cfg.NodeSeen == nil {
		return n
	}
	labels, taints, ok := l.cfg.NodeSeen()
	if ok {
		n.Labels, n.Taints = labels, taints
	}
	l.strange = !ok
	return n
}

// early reports whether a pod is refused for labels or taints before those of the
// node's object are known: it is judged again, not failed for what may be otherwise.
func (l *loop) early(r plan.Refusal) bool {
	return l.strange && r.Final && (r.Reason == "NodeAffinity" || r.Reason == "TaintToleration")
}

// timed is do, whose time is told where a plan has steps.
func (w *worker) timed(ctx context.Context, v plan.View, p plan.Plan) (result, time.Duration) {
	if len(p.Steps) == 0 || w.cfg.Worked == nil {
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
	defer func() { w.cfg.Worked(operation, time.Since(begun)) }()
	return w.do(ctx, v, p)
}
