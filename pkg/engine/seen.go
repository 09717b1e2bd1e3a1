package engine

import "github.com/nodectl/nodectl/pkg/plan"

// node is what admission judges by now: this machine, with the labels and taints that
// its Node object has, where an API server keeps one (C-1.31.3). Somebody may have
// given it others than it registered with.
func (l *loop) node() plan.Node {
	n := l.cfg.Node
	if l.cfg.NodeSeen == nil {
		return n
	}
	if labels, taints, ok := l.cfg.NodeSeen(); ok {
		n.Labels, n.Taints = labels, taints
	}
	return n
}
