package engine

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// overfull is an instance of a pod whose volumes exceed their size limit.
type overfull struct {
	key      pod.Key
	uid      string
	instance int
	message  string // which limit, for a person; "": it exceeds none
}

// limited reports whether a pod has a limit that only measuring enforces: the size limit of an
// emptyDir on the node's disk (C-1.35.9).
func limited(p *v1.Pod) bool {
	for i := range p.Spec.Volumes {
		if e := p.Spec.Volumes[i].EmptyDir; e != nil && e.Medium == v1.StorageMediumDefault && e.SizeLimit != nil && !e.SizeLimit.IsZero() {
			return true
		}
	}
	return false
}

// measurement is the periodic job that measures the volumes of pods with such limits, in a
// goroutine of its own: one round at a time. If a round is not over when the next is due,
// that one is skipped.
type measurement struct {
	running bool
	done    chan []overfull // capacity 1: the instances that exceed a limit
}

// measurementPeriod is how often the volumes of pods with a limit are measured.
const measurementPeriod = 10 * time.Second

func newMeasurement() measurement { return measurement{done: make(chan []overfull, 1)} }

// measure begins a round, unless no pod has such a limit.
func (l *loop) measure(ctx context.Context) {
	if l.jobs.measurement.running {
		return
	}
	type place struct {
		spec *pod.Spec
		overfull
	}
	var places []place
	for _, e := range l.pods {
		if e.want != nil && !e.ended && e.last != nil && e.last.limited {
			places = append(places, place{e.requested(), overfull{key: e.key, uid: e.requested().UID(), instance: e.last.instance}})
		}
	}
	if len(places) == 0 {
		return
	}
	l.jobs.measurement.running = true
	done, volumes, log := l.jobs.measurement.done, l.cfg.Volumes, l.log
	l.workers.Go(func() {
		var found []overfull
		defer func() { done <- found }() // there is room: one round at a time
		for _, p := range places {
			if ctx.Err() != nil {
				return
			}
			message, err := volumes.Over(ctx, p.spec, p.instance)
			if err != nil {
				log.Debug("Failed to measure volumes", "pod", p.key.String(), "error", err)
			}
			if p.message = message; message != "" {
				found = append(found, p.overfull)
			}
		}
	})
}

// handleMeasured evicts the pods whose instances exceed a limit.
func (l *loop) handleMeasured(found []overfull) {
	l.jobs.measurement.running = false
	for _, o := range found {
		l.evict(o)
	}
}

// evict evicts a pod that exceeds a limit, unless another pod has its name by now. The worker
// ignores the eviction of an older instance.
func (l *loop) evict(o overfull) {
	e := l.pods[o.key]
	if e == nil || e.want == nil || e.requested().UID() != o.uid || e.evicted == o {
		return
	}
	l.log.Warn("Evicting pod", "pod", o.key.String(), "message", o.message)
	e.evicted = o
	l.env.recorder.event(o.key, o.uid, "", pod.EventWarning, eventEvicted, o.message)
	l.queueUpdate(e, true)
}
