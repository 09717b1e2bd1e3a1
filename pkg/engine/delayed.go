package engine

import (
	"context"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// due returns which spec a desired pod gets for now. It differs from the desired one while a
// layer has not answered; nil leaves the pod as it is. Such pods wait in held.
func (l *loop) due(ctx context.Context, key pod.Key, want *pod.Spec) *pod.Spec {
	if e := l.pods[key]; e != nil { // it keeps the recorded spec
		if heard, configured := l.state.Heard(want.Origin.Layer()); configured && !heard {
			return nil
		}
		delete(l.held, key)
		return want
	}
	s := l.orphans[key]
	d := plan.Delayed(l.state, want, s.Found, l.cfg.RequireSourceReady)
	if d == nil {
		delete(l.held, key)
		return want
	}
	if !l.held[key] {
		l.held[key] = true
		log := l.log.With("pod", key.String(), "source", d.Layer)
		switch {
		case d.Stop:
			log.Info("Pod stops, as an agent before began, and waits for the word of its source")
		case s.Running:
			log.Info("Pod goes on as it runs until its source is heard")
		default:
			log.Info("Pod waits for the word of its source")
		}
	}
	if d.Stop {
		l.stop(ctx, key, s)
	}
	return d.As
}
