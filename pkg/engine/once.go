package engine

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Until is the goal of runonce.
type Until string

const (
	// UntilRunning: every container has started, or has exited with 0.
	UntilRunning Until = "running"
	// UntilReady: every pod is Ready or has Succeeded.
	UntilReady Until = "ready"
	// UntilDone: every pod has terminated.
	UntilDone Until = "done"
	// UntilGone: the pods are stopped, and nothing of them is left.
	UntilGone Until = "gone"
)

// Once brings the pods of set to the state that until names, and returns the result of each.
// When it returns, running containers continue. Unlike Run, it stops and changes no pod outside
// set. With UntilGone it stops and removes the pods of set. Once does not wait for a pod that cannot
// reach the state: the result of such a pod is failed, or rejected if it was not admitted. If ctx
// ends first, the result of the remaining pods is timeout, and the error is ctx.Err().
//
// With Config.Workloads, unless until is UntilGone, the set changes with the pods of its
// workloads. These pods have no result of their own: each workload has one.
func (e *Engine) Once(ctx context.Context, set *podconfig.Merged, until Until) (feed.Report, error) {
	l := e.newLoop(false)
	results := make(map[pod.Key]feed.PodReport, set.Pods.Len())
	l.mode.finished = func() bool { return l.arrived(set, until, results) }
	if e.cfg.Workloads != nil && until != UntilGone {
		return e.onceWithWorkloads(ctx, l, until, results)
	}
	batch := podconfig.Batch{State: set, Updates: []podconfig.PodUpdate{{Op: podconfig.ADD, Pods: set.Pods.Slice()}}}
	if until == UntilGone {
		batch = podconfig.Batch{State: &podconfig.Merged{Layers: set.Layers}}
		l.mode.down = make(map[pod.Key]string, set.Pods.Len())
		for spec := range set.Pods.All() {
			l.mode.down[spec.Key] = spec.UID()
		}
	}
	err := e.run(ctx, l, func(ctx context.Context, out chan<- podconfig.Batch) {
		select {
		case out <- batch:
		case <-ctx.Done():
		}
	})
	var rep feed.Report
	for spec := range set.Pods.All() {
		rep.Pods = append(rep.Pods, l.finalReport(ctx, spec, results))
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return rep, err
}

// finalReport returns the result of a pod at the end: timeout if it has none.
func (l *loop) finalReport(ctx context.Context, spec *pod.Spec, results map[pod.Key]feed.PodReport) feed.PodReport {
	r, ok := results[spec.Key]
	if !ok {
		r = l.reportOf(spec, l.pods[spec.Key])
		r.Result = feed.ResultTimeout
		if errors.Is(ctx.Err(), context.Canceled) && r.Reason == "" {
			r.Message = "interrupted"
		}
	}
	return r
}

// arrived stores the result of each pod that has one in results, and reports whether all pods have
// one. With UntilGone, a pod has one when it is gone, else when judge returns one. With UntilReady,
// arrived removes a pod that is no longer ready from results. With the other states the first
// result stays.
func (l *loop) arrived(set *podconfig.Merged, until Until, results map[pod.Key]feed.PodReport) bool {
	if !l.start.dispatching() {
		return false
	}
	for spec := range set.Pods.All() {
		e := l.pods[spec.Key]
		if until == UntilGone {
			if _, there := l.orphans[spec.Key]; e == nil && !there {
				results[spec.Key] = feed.PodReport{Key: spec.Key, UID: spec.UID(), Result: feed.ResultGone}
			}
			continue
		}
		if r, known := l.goalResult(spec, until); known && (r.Result != "" || until == UntilReady) {
			results[spec.Key] = r // a container in a crash loop is ready for moments only
		}
		if results[spec.Key].Result == "" {
			delete(results, spec.Key)
		}
	}
	return len(results) == set.Pods.Len()
}

// goalResult returns the newest report of a pod with its result. The result is "" while Once has to
// wait for it; known is false before the first report.
func (l *loop) goalResult(spec *pod.Spec, until Until) (r feed.PodReport, known bool) {
	e := l.pods[spec.Key]
	if e == nil || e.last == nil {
		return r, false
	}
	r = l.reportOf(spec, e)
	r.Result = judge(&r.Status, e, until)
	return r, true
}

func (l *loop) reportOf(spec *pod.Spec, e *entry) feed.PodReport {
	r := feed.PodReport{Key: spec.Key, UID: spec.UID(), Phase: string(v1.PodPending)}
	if e != nil && e.last != nil {
		r.Status = e.last.pod.Status
		r.Phase = string(r.Status.Phase)
		r.Reason, r.Message = r.Status.Reason, r.Status.Message
		if reason, message := firstReason(&r.Status); r.Reason == "" && reason != "" {
			r.Reason, r.Message = reason, message
		}
		if t := e.last.stuck; r.Reason == "" && t.Reason != "" {
			r.Reason, r.Message = t.Reason, t.Message
		}
		if b := e.last.behind; b.Reason != "" {
			r.Reason, r.Message = b.Reason, b.Message
		}
	}
	switch {
	case r.Reason != "" || r.Phase != string(v1.PodPending):
	case !l.runtime.Runtime:
		r.Reason, r.Message = "RuntimeNotReady", l.runtime.RuntimeMessage
	case !l.runtime.Network && !spec.Pod.Spec.HostNetwork:
		r.Reason, r.Message = eventNetwork, l.runtime.NetworkMessage
	}
	return r
}

// firstReason returns the reason and message of the first container that has one.
func firstReason(s *v1.PodStatus) (reason, message string) {
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range list {
			if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
				return w.Reason, w.Message
			}
			if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
				return t.Reason, t.Message
			}
		}
	}
	return "", ""
}

// judge returns the result of a pod, "" while Once has to wait for it.
func judge(s *v1.PodStatus, e *entry, until Until) string {
	switch {
	case e.refused != (refusal{}):
		return feed.ResultRejected
	case e.last.busy:
		return "" // the worker has steps to do
	case s.Phase == v1.PodFailed, e.last.final:
		return feed.ResultFailed
	case e.last.behind.Reason != "":
		return "" // it still runs as before the edit
	case s.Phase == v1.PodSucceeded:
		return feed.ResultDone
	}
	switch until {
	case UntilRunning:
		if allStarted(s) {
			return feed.ResultRunning
		}
	case UntilReady:
		for _, c := range s.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
				return feed.ResultReady
			}
		}
	}
	return ""
}

// allStarted reports whether every regular container runs or has exited with 0.
func allStarted(s *v1.PodStatus) bool {
	if len(s.ContainerStatuses) == 0 {
		return false
	}
	for _, c := range s.ContainerStatuses {
		succeeded := c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		if c.State.Running == nil && !succeeded {
			return false
		}
	}
	return true
}
