package engine

import (
	"context"
	"errors"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/prober"
)

// handleReport handles a worker's report. It drops a pod only if the report that it is gone is
// about the newest update. So a spec that the worker has not read yet is never lost.
func (l *loop) handleReport(ctx context.Context, r report) {
	e := l.pods[r.key]
	if e == nil || e.seq != r.seq {
		return // from a worker whose pod is gone; another pod may have its name
	}
	e.last = &r
	if r.saveTried {
		l.logDisk(r.saveErr)
	}
	if r.gone && r.gen == e.gen && e.want == nil {
		l.setTargets(ctx, e, nil)
		l.drop(e, &r)
		l.updateDependents(e)
		if e.next != nil {
			l.want(ctx, e.key, e.next)
		}
		// A pod that was never admitted frees no room.
		l.nodeState.freed = l.nodeState.freed || e.admitted || e.ended || e.next != nil || len(e.holds) > 0
		return
	}
	if e.noteHolds(&r) {
		l.nodeState.freed = true
	}
	if r.ended && !r.busy && !e.ended && r.gen == e.gen {
		e.ended, l.order.current = true, false
		l.updateDependencies(e)  // they may stop now
		l.nodeState.freed = true // its ports are free
	}
	l.noteRuns(e, &r)
	l.noteEvicted(&r)
	l.setTargets(ctx, e, r.targets)
	l.adoptStarted(ctx, e)
	if now := dependencyStateOf(&r); now != e.dependencyState {
		e.dependencyState = now
		l.updateDependents(e)
	}
	if r.fresh {
		l.out.report(r.key, pod.StatusReport{Pod: r.pod, Origin: r.origin, Finished: r.finished, ObservedUID: r.observedUID, NotDesired: r.notDesired, Replacing: r.replacing, At: time.Now()})
	}
}

// adoptStarted sets the startup probe status of containers whose pod status says that they
// have started. An earlier agent ran that probe; the prober does not run it again.
func (l *loop) adoptStarted(ctx context.Context, e *entry) {
	for _, t := range e.targets {
		name := t.Container.Name
		if t.Kind == pod.Startup && t.Started && e.health.Started[name].ContainerID != t.ContainerID {
			l.handleProbeStatus(ctx, prober.Status{Key: e.key, Container: name, Kind: pod.Startup, ProbeStatus: pod.ProbeStatus{ContainerID: t.ContainerID, OK: true}})
		}
	}
}

// sweepDirectories removes, in a goroutine of its own, the directories and cgroups of unknown
// pods, which earlier agents left (I6).
func (l *loop) sweepDirectories(ctx context.Context) {
	keep := make(map[string]bool)
	for _, e := range l.pods {
		keep[e.uid] = true
		for _, spec := range []*pod.Spec{e.lastWant, e.allocated} {
			if spec != nil {
				keep[spec.UID()] = true
			}
		}
		for _, uid := range e.holds {
			keep[uid] = true
		}
	}
	for _, o := range l.orphans {
		for _, uid := range o.uids() {
			keep[uid] = true
		}
	}
	for uid := range l.start.found {
		keep[uid] = true
	}
	l.env.sweep.begin(maps.Clone(keep)) // the loop adds new pods to this copy
	l.workers.Go(func() {
		var removed []string
		err := boundedcall.New(1).Do(ctx, "sweep", 0, func() (err error) {
			if l.cfg.Claims != nil {
				l.cfg.Claims.Sweep(l.env.sweep.keeps)
			}
			removed, err = l.cfg.Volumes.Sweep(ctx, l.env.sweep.keeps)
			return err
		})
		if errors.Is(err, boundedcall.ErrHangs) { // and the agent exits
			return
		}
		l.env.sweep.end()
		if err != nil {
			l.log.Warn("Failed to remove directories of unknown pods", "error", err)
		}
		if len(removed) > 0 {
			l.log.Info("Removed directories of unknown pods", "uids", removed)
		}
		if l.cfg.Cgroups == nil {
			return
		}
		if removed, err = l.cfg.Cgroups.Sweep(keep); err != nil {
			l.log.Warn("Failed to remove cgroups of unknown pods", "error", err)
		}
		if len(removed) > 0 {
			l.log.Info("Removed cgroups of unknown pods", "uids", removed)
		}
	})
}

// drop forgets a pod that is gone.
func (l *loop) drop(e *entry, r *report) {
	l.reportGone(e.key, r)
	if e.updates != nil {
		close(e.updates)
	}
	delete(l.pods, e.key)
	delete(l.nodeState.pressure.evicted, e.key)
	l.env.board.SetState(e.key, activity.State{})
	l.forgetOrder(e)
	reason := "no longer in the desired set"
	if e.lastWant != nil && e.lastWant.Pod.DeletionTimestamp != nil {
		reason = "deleted at the API server"
	}
	l.log.Info("Pod removed", "pod", e.key.String(), "reason", reason)
}

// reportGone reports that nothing is left of a pod.
func (l *loop) reportGone(key pod.Key, r *report) {
	line := pod.StatusReport{Finished: true, Gone: true, NotDesired: true, At: time.Now()}
	if r != nil {
		line.Pod, line.Origin = r.pod, r.origin
	} else {
		line.Pod = &v1.Pod{}
		line.Pod.Namespace, line.Pod.Name = key.Namespace, key.Name
	}
	l.out.report(key, line)
}
