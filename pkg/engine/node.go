package engine

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// nodeState is the sync loop's state of the node.
type nodeState struct {
	pressure pressures

	unseen  bool // the agent had not read the Node object when admission ran last
	pending bool // a pod waits until the Node object is known
	freed   bool // room, a port, a UID or a CPU may have become free: admission runs at the end of this iteration
	halting halting
	cpus    cpuView
	// devicesKnown says that a listing has found all containers with devices, and claimsKnown all
	// those with claims.
	devicesKnown, claimsKnown bool
}

// node returns the node for admission. Labels and taints are those of the Node object at the API
// server, once the agent has read it (C-1.31.3): other clients may have changed them since the
// registration.
func (l *loop) node() plan.Node {
	n := l.cfg.Node
	n.Devices = map[v1.ResourceName]pod.DeviceSupply{}
	if l.cfg.Devices != nil {
		n.Devices = l.cfg.Devices.Supply()
	}
	n.Pressure = l.nodeState.pressure.now
	if of := l.nodeState.halting.halt; of != nil {
		n.Halted = of.HaltReason
	}
	l.nodeState.unseen = false
	if l.cfg.NodeSeen == nil {
		return n
	}
	labels, taints, ok := l.cfg.NodeSeen()
	if ok {
		n.Labels, n.Taints = labels, taints
	}
	l.nodeState.unseen = !ok
	return n
}

// isEarly reports whether admission has refused a pod for labels or taints of the node although the
// agent has not read the Node object yet. Such a pod does not fail: admission judges it again.
func (l *loop) isEarly(r plan.Refusal) bool {
	return l.nodeState.unseen && r.Final && (r.Reason == "NodeAffinity" || r.Reason == "TaintToleration")
}

// doTimed calls do, and passes its duration to Config.PodWorkerDuration if the plan has steps.
func (w *worker) doTimed(ctx context.Context, v plan.View, p plan.Plan) (result, time.Duration) {
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
