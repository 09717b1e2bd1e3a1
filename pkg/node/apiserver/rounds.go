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
func (p *Presence) rounds(ctx context.Context) {
	if p.cfg.Register {
		p.recordEvents(nil, p.cfg.Observer.New(ctx)) // the state at the start, whatever it was before
	}
	changed := p.cfg.Observer.Changed()
	for {
		if p.seen.Load() == nil {
			p.register(ctx)
		} else {
			p.round(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		p.schedulable()
		if node.Condition(p.seen.Load(), v1.NodeReady).Status == v1.ConditionTrue {
			changed = nil
		}
		next := time.NewTimer(jitter(p.cfg.UpdateFrequency))
		select {
		case <-next.C:
		case <-p.roundDue:
		case <-changed:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// register creates the object or takes the existing one, and retries until there is one
// (C-1.25.2). Without Config.Register it only reads.
func (p *Presence) register(ctx context.Context) {
	if !p.cfg.Register {
		p.note("registration", p.adopt(ctx))
		return
	}
	for wait := firstRegister; ctx.Err() == nil; wait = backoff.Next(wait, firstRegister, lastRegister) {
		fresh := p.cfg.Observer.New(ctx)
		made, err := p.nodes.Create(ctx, fresh, metav1.CreateOptions{})
		switch {
		case err == nil:
			p.cfg.Log.Info("Successfully registered node", "node", made.Name)
			p.sent(made, true)
			if node.Condition(made, v1.NodeReady).Status == v1.ConditionTrue {
				p.event(node.Event{Reason: "NodeReady", Type: v1.EventTypeNormal, Message: "Node " + made.Name + " status is now: NodeReady"})
			}
			p.note("registration", nil)
			return
		case apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err): // it may exist
			if taken := p.adopt(ctx); taken == nil {
				p.note("registration", nil)
				return
			} else if !apierrors.IsForbidden(err) {
				err = taken
			}
		}
		if ctx.Err() != nil {
			return
		}
		p.note("registration", err)
		backoff.Sleep(ctx, wait)
	}
}

// adopt adopts the existing object.
func (p *Presence) adopt(ctx context.Context) error {
	before, err := p.nodes.Get(ctx, p.cfg.Observer.Name(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	known := node.WithoutExtended(before)
	after := p.cfg.Observer.Node(ctx, known)
	if p.cfg.Register {
		after = p.cfg.Observer.Adopted(ctx, known)
	}
	p.cfg.Log.Info("Node was previously registered", "node", before.Name)
	return p.send(ctx, before, after, true)
}

// round updates the status, with several attempts (C-1.25.4).
func (p *Presence) round(ctx context.Context) {
	var err error
	for try := range tries {
		if err = p.try(ctx, try); err == nil || ctx.Err() != nil || p.seen.Load() == nil {
			break
		}
	}
	if ctx.Err() == nil {
		p.note("status", err)
	}
}

// try sends the status if it changed, or was not sent for long (C-1.25.3). The first
// attempt uses the last seen object.
func (p *Presence) try(ctx context.Context, n int) error {
	before := p.seen.Load()
	if before == nil {
		return nil
	}
	if n > 0 {
		is, err := p.nodes.Get(ctx, before.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			p.deleted(before.UID)
		}
		if err != nil {
			return err
		}
		p.update(is)
		before = is
	}
	known := before
	if !p.settled.Load() {
		known = node.WithoutExtended(before)
	}
	after := p.cfg.Observer.Node(ctx, known)
	changed := node.Changed(before, after) && !p.inVain(before, after)
	if !changed && time.Since(p.reported) < p.cfg.ReportFrequency+p.delay {
		return nil
	}
	return p.send(ctx, before, after, changed)
}

// send patches the object's status.
func (p *Presence) send(ctx context.Context, before, after *v1.Node, changed bool) error {
	patch, err := difference(before, after)
	if err != nil {
		return err
	}
	is, err := p.nodes.Patch(ctx, before.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		p.deleted(before.UID)
	}
	if err != nil {
		return err
	}
	again := p.last.sent != nil && !node.Changed(p.last.sent, after) && !node.Changed(p.last.kept, is)
	p.last = exchange{after, is, again}
	p.sent(is, changed)
	p.recordEvents(before, after)
	return nil
}

// inVain reports whether after was sent twice and the server kept before both times: a
// server that does not know a field drops it. Then nothing has changed.
func (p *Presence) inVain(before, after *v1.Node) bool {
	return p.last.again && !node.Changed(p.last.sent, after) && !node.Changed(p.last.kept, before)
}

// sent notes the server's result of a patch. After a change, the next report comes up
// to half its period sooner or later, so that a cluster's nodes do not report in step.
func (p *Presence) sent(is *v1.Node, changed bool) {
	p.settled.Store(true)
	p.update(is)
	p.reported, p.delay = time.Now(), 0
	if changed {
		p.delay = time.Duration((rand.Float64() - 0.5) * float64(p.cfg.ReportFrequency))
	}
}

func (p *Presence) recordEvents(before, after *v1.Node) {
	for _, e := range node.Events(before, after) {
		p.event(e)
	}
}

// schedulable reports the event when a client cordoned the node or uncordoned it.
func (p *Presence) schedulable() {
	n := p.seen.Load()
	if n == nil || n.Spec.Unschedulable == p.unschedulable {
		return
	}
	p.unschedulable = n.Spec.Unschedulable
	reason := "NodeSchedulable"
	if p.unschedulable {
		reason = "NodeNotSchedulable"
	}
	p.event(node.Event{Reason: reason, Type: v1.EventTypeNormal, Message: "Node " + n.Name + " status is now: " + reason})
}
