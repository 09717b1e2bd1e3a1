package apiserver

import (
	"context"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/node"
)

const (
	tries         = 5 // of one round (C-1.25.4)
	firstRegister = 100 * time.Millisecond
	lastRegister  = 7 * time.Second
)

// rounds registers the node and updates its status until ctx ends. Until the node was
// ready once, it sends the status as soon as the runtime is ready (C-1.25.5).
func (h *Heartbeat) rounds(ctx context.Context) {
	if h.cfg.Register {
		h.recordEvents(nil, h.cfg.Observer.NewNode(ctx)) // the state at the start, whatever it was before
	}
	changed := h.cfg.Observer.Changed()
	for {
		if h.seen.Load() == nil {
			h.register(ctx)
		} else {
			h.round(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		h.schedulable()
		if node.Condition(h.seen.Load(), v1.NodeReady).Status == v1.ConditionTrue {
			changed = nil
		}
		next := time.NewTimer(jitter(h.cfg.UpdateFrequency))
		select {
		case <-next.C:
		case <-h.roundDue:
		case <-changed:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// register creates the object or takes the existing one, and retries until there is one
// (C-1.25.2). Without Config.Register it only reads.
func (h *Heartbeat) register(ctx context.Context) {
	if !h.cfg.Register {
		h.note("registration", h.adopt(ctx))
		return
	}
	for wait := firstRegister; ctx.Err() == nil; wait = backoff.Next(wait, firstRegister, lastRegister) {
		fresh := h.cfg.Observer.NewNode(ctx)
		made, err := h.nodes.Create(ctx, fresh, metav1.CreateOptions{})
		switch {
		case err == nil:
			h.cfg.Log.Info("Successfully registered node", "node", made.Name)
			h.sent(made, true)
			if node.Condition(made, v1.NodeReady).Status == v1.ConditionTrue {
				h.event(node.Event{Reason: "NodeReady", Type: v1.EventTypeNormal, Message: "Node " + made.Name + " status is now: NodeReady"})
			}
			h.note("registration", nil)
			return
		case apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err): // it may exist
			if taken := h.adopt(ctx); taken == nil {
				h.note("registration", nil)
				return
			} else if !apierrors.IsForbidden(err) {
				err = taken
			}
		}
		if ctx.Err() != nil {
			return
		}
		h.note("registration", err)
		backoff.Sleep(ctx, wait)
	}
}

// adopt adopts the existing object.
func (h *Heartbeat) adopt(ctx context.Context) error {
	before, err := h.nodes.Get(ctx, h.cfg.Observer.Name(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	known := node.WithoutExtended(before)
	after := h.cfg.Observer.Node(ctx, known)
	if h.cfg.Register {
		after = h.cfg.Observer.AdoptedNode(ctx, known)
	}
	h.cfg.Log.Info("Node was previously registered", "node", before.Name)
	return h.send(ctx, before, after, true)
}

// round updates the status, with several attempts (C-1.25.4).
func (h *Heartbeat) round(ctx context.Context) {
	var err error
	for try := range tries {
		if err = h.try(ctx, try); err == nil || ctx.Err() != nil || h.seen.Load() == nil {
			break
		}
	}
	if ctx.Err() == nil {
		h.note("status", err)
	}
}

// try sends the status if it changed, or was not sent for long (C-1.25.3). The first
// attempt uses the last seen object.
func (h *Heartbeat) try(ctx context.Context, n int) error {
	before := h.seen.Load()
	if before == nil {
		return nil
	}
	if n > 0 {
		is, err := h.nodes.Get(ctx, before.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			h.deleted(before.UID)
		}
		if err != nil {
			return err
		}
		h.update(is)
		before = is
	}
	known := before
	if !h.settled.Load() {
		known = node.WithoutExtended(before)
	}
	after := h.cfg.Observer.Node(ctx, known)
	changed := node.Changed(before, after) && !h.inVain(before, after)
	if !changed && time.Since(h.reported) < h.cfg.ReportFrequency+h.delay {
		return nil
	}
	return h.send(ctx, before, after, changed)
}

// send patches the object's status.
func (h *Heartbeat) send(ctx context.Context, before, after *v1.Node, changed bool) error {
	patch, err := difference(before, after)
	if err != nil {
		return err
	}
	is, err := h.nodes.Patch(ctx, before.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		h.deleted(before.UID)
	}
	if err != nil {
		return err
	}
	again := h.last.sent != nil && !node.Changed(h.last.sent, after) && !node.Changed(h.last.kept, is)
	h.last = exchange{after, is, again}
	h.sent(is, changed)
	h.recordEvents(before, after)
	return nil
}

// inVain reports whether after was sent twice and the server kept before both times: a
// server that does not know a field drops it. Then nothing has changed.
func (h *Heartbeat) inVain(before, after *v1.Node) bool {
	return h.last.again && !node.Changed(h.last.sent, after) && !node.Changed(h.last.kept, before)
}

// sent notes the server's result of a patch. After a change, the next report comes up
// to half its period sooner or later, so that a cluster's nodes do not report in step.
func (h *Heartbeat) sent(is *v1.Node, changed bool) {
	h.settled.Store(true)
	h.update(is)
	h.reported, h.delay = time.Now(), 0
	if changed {
		h.delay = time.Duration((rand.Float64() - 0.5) * float64(h.cfg.ReportFrequency))
	}
}

func (h *Heartbeat) recordEvents(before, after *v1.Node) {
	for _, e := range node.Events(before, after) {
		h.event(e)
	}
}

// schedulable reports the event when a client cordoned the node or uncordoned it.
func (h *Heartbeat) schedulable() {
	n := h.seen.Load()
	if n == nil || n.Spec.Unschedulable == h.unschedulable {
		return
	}
	h.unschedulable = n.Spec.Unschedulable
	reason := "NodeSchedulable"
	if h.unschedulable {
		reason = "NodeNotSchedulable"
	}
	h.event(node.Event{Reason: reason, Type: v1.EventTypeNormal, Message: "Node " + n.Name + " status is now: " + reason})
}
