package agent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/workload"
)

// newController makes the Controller of workloads. once is true for runonce: CronJobs then start no
// Jobs. rules returns the rules of the sources; its first call comes with the first workload.
func (a *Agent) newController(once bool, rules func() readonly.Rules) *controller.Controller {
	return controller.New(controller.Config{
		Node: a.cfg.NodeName, Recorded: a.cfg.RecordedPods(a.state.kept, a.state.reported), Store: record.NewWorkloads(a.cfg.RootDir),
		Live: true, NoSchedules: once, Event: a.workloadEvent, Log: a.log, Keep: a.keepLogs,
		Judge: func(o *pod.Object) string { return rules().ForbidsWorkload(o) },
	})
}

// workloadEvent stores an event of a workload.
func (a *Agent) workloadEvent(o *pod.Object, e workload.Event) {
	a.events.ObjectEvent(v1.ObjectReference{Kind: o.Kind, APIVersion: pod.WorkloadAPIVersion(o.Kind), Namespace: o.Namespace, Name: o.Name}, e.Type, e.Reason, e.Message)
}

// withWorkloads adds the controller of workloads to the receivers.
func (to receivers) withWorkloads(w *controller.Controller) receivers {
	synced := to.synced
	to.listeners = append(slices.Clone(to.listeners), w)
	to.synced = func() {
		w.Synced()
		if synced != nil {
			synced()
		}
	}
	return to
}

// onceWorkloads implements engine.Workloads for runonce.
type onceWorkloads struct {
	*controller.Controller
	config *podconfig.PodConfig // the sources were read
}

// Batches implements engine.Workloads.
func (w onceWorkloads) Batches(ctx context.Context) iter.Seq[podconfig.Batch] {
	return w.config.Expanded(ctx, w.Controller)
}

// Results implements engine.Workloads.
func (w onceWorkloads) Results(until engine.Until, set *podconfig.Merged, pods map[pod.Key]feed.PodReport) []feed.WorkloadReport {
	rejected := rejectedPods(set)
	var all []feed.WorkloadReport
	for _, of := range w.Workloads() {
		r := resultOf(of, until, pods)
		if why := rejectionOf(of, rejected); r.Result == "" && why != "" {
			r.Result, r.Reason, r.Message = feed.ResultRejected, "Rejected", why
		}
		all = append(all, r)
	}
	return all
}

// rejectedPod is the reason why a pod is not in the set. For a conflict it has the place of the pod
// that lost.
type rejectedPod struct {
	why  string
	lost pod.Origin
}

// rejectedPods returns the pods that a set lacks: pods with a problem, and pods that lost to
// another pod of their name.
func rejectedPods(set *podconfig.Merged) map[pod.Key][]rejectedPod {
	all := make(map[pod.Key][]rejectedPod)
	for _, p := range set.Problems {
		if p.Pod != (pod.Key{}) {
			all[p.Pod] = append(all[p.Pod], rejectedPod{why: p.Msg})
		}
	}
	for _, c := range set.Conflicts {
		if c.Kind == "Pod" {
			all[c.Key] = append(all[c.Key], rejectedPod{why: fmt.Sprintf("%s has a pod of this name (%s)", c.Winner, c.Reason), lost: c.Loser})
		}
	}
	return all
}

// rejectionOf returns the reason why the first rejected pod of a workload is not in the set; "" if
// all pods are.
func rejectionOf(w controller.Workload, rejected map[pod.Key][]rejectedPod) string {
	if len(rejected) == 0 {
		return ""
	}
	for _, p := range w.Pods {
		for _, r := range rejected[p.Spec.Key] {
			if !p.Leaving && (r.lost == (pod.Origin{}) || r.lost == w.Object.Origin) {
				return "pod " + p.Spec.Name + ": " + r.why
			}
		}
	}
	return ""
}

// resultOf returns the result of a workload, "" while it has none. A Job is done when it has
// completed or failed. For any goal, another workload is ready when it is complete and its pods are
// available. With the goal running, it suffices that its pods run.
func resultOf(w controller.Workload, until engine.Until, pods map[pod.Key]feed.PodReport) feed.WorkloadReport {
	p := w.Progress()
	r := feed.WorkloadReport{ObjectKey: w.Object.ObjectKey(), Reason: p.Reason, Message: p.Message}
	isJob := w.Object.Kind == pod.KindJob || w.Object.Kind == pod.KindCronJob
	switch {
	case p.Failed:
		r.Result = feed.ResultFailed
		return r
	case p.Complete && isJob:
		r.Result = feed.ResultDone
		return r
	case p.Complete:
		r.Result = feed.ResultReady
		return r
	}
	reached := p.Whole && (until == engine.UntilRunning || until == engine.UntilReady && isJob)
	for _, of := range w.Pods {
		report, known := pods[of.Spec.Key]
		if of.Leaving || isJob && report.Result == feed.ResultFailed { // the Job decides about another attempt
			continue
		}
		if known && report.Reason != "" {
			r.Reason, r.Message = report.Reason, "pod "+of.Spec.Name+": "+report.Message
		}
		switch report.Result {
		case feed.ResultRejected, feed.ResultFailed:
			r.Result = report.Result
			return r
		case "":
			reached = false
		}
	}
	if reached {
		r.Result, r.Reason, r.Message = string(until), "", ""
	}
	return r
}

// workloadsIn returns the workloads of a set.
func workloadsIn(set *podconfig.Merged) []*pod.Object {
	var all []*pod.Object
	for o := range set.Objects.All() {
		if pod.IsWorkload(o.Kind) {
			all = append(all, o)
		}
	}
	return all
}

// withRecorded returns the set with the recorded pods of its workloads.
func (a *Agent) withRecorded(set *podconfig.Merged) (*podconfig.Merged, error) {
	workloads := workloadsIn(set)
	if len(workloads) == 0 {
		return set, nil
	}
	records, err := a.state.records.All()
	all, pods := *set, set.Pods.Slice()
	for _, p := range a.cfg.RecordedPods(records, nil) {
		owned := slices.ContainsFunc(workloads, func(o *pod.Object) bool { return workload.Owns(o, a.cfg.NodeName, p.Spec) })
		if owned && set.Pod(p.Spec.Key) == nil {
			pods = append(pods, p.Spec)
		}
	}
	all.Pods = sorted.From(pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
	return &all, err
}

// forget removes the states of a set's workloads. Their pods are gone.
func (a *Agent) forget(set *podconfig.Merged) error {
	var errs []error
	for _, o := range workloadsIn(set) {
		errs = append(errs, record.NewWorkloads(a.cfg.RootDir).Remove(o.ObjectKey()))
	}
	return errors.Join(errs...)
}
