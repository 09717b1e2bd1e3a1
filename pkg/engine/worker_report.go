package engine

import (
	"cmp"
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
	"github.com/nodectl/nodectl/pkg/prober"
	"github.com/nodectl/nodectl/pkg/status"
)

// report is the message of a worker to the sync loop after each plan.
type report struct {
	key  pod.Key
	seq  uint64 // of the entry whose worker reports
	gen  uint64 // of the update it acted on
	busy bool   // the plan has steps, or stops the pod
	// behind is why an edit, or the pod's stop, is blocked; zero: it is not.
	behind pod.Failure
	// stuck is a failure that keeps the pod from continuing, see worker.stuck; zero: none.
	stuck pod.Failure
	pod   *v1.Pod
	reportMetadata
	fresh bool // the status or its metadata differs from the last report
	gone  bool // nothing is left of the pod, and it is not desired
	ended bool // terminated: its ports and resources are free
	// settled says that the plan has nothing to do until the worker gets an update or a hint.
	settled   bool
	saveTried bool // a write of the record was tried since the last report; saveErr is its result
	saveErr   error
	final     bool // the pod cannot start before a person changes something
	targets   []prober.Target
	// limits says which measurements of this instance's disk are needed.
	limits   storageLimits
	runs     bool // a container or the sandbox of the pod runs
	instance int
	eviction *pod.Eviction // of this instance; nil: it was not evicted
	holds    []string      // UIDs under which the runtime or the disk has something of the pod
	logs     []logFile     // of the containers that run
	// runsOn are the sets of exclusive CPUs of running containers, sorted.
	runsOn []string
	// containersRun says that a container of any instance may run.
	containersRun bool
}

// looked reports whether the worker has read the pod for this report. The report of a quarantine
// has neither holds nor runsOn, but containers may run.
func (r *report) looked() bool { return r.holds != nil }

// reportMetadata has the data that sinks get beside a status, see pod.StatusReport.
type reportMetadata struct {
	origin      pod.Origin
	finished    bool
	observedUID string
	notDesired  bool
	replacing   bool
}

// sendReport computes the status and sends it to the sync loop; it returns false if ctx ends
// first.
func (w *worker) sendReport(ctx context.Context, v plan.View, p plan.Plan) bool {
	r := report{
		key:     w.key,
		seq:     w.seq,
		busy:    len(p.Steps) > 0 || p.Stopping,
		gen:     w.update.gen,
		gone:    p.Gone,
		ended:   w.instanceTerminated(v, p) || deleting(v.Want) && v.Have.Empty() && !p.Stopping,
		settled: p.Settled,

		reportMetadata: reportMetadata{
			finished:   p.Gone || deleting(v.Want) && v.Have.Empty() && !p.Stopping && len(p.Steps) == 0,
			notDesired: w.update.want == nil,
			replacing:  v.Want != nil && !deleting(v.Want) && p.Replacing(0) && !w.waitsForRuntime(p),
		},
		saveTried: w.rec.saveTried,
		saveErr:   w.rec.saveErr,

		instance: w.rec.Instance,
		runs:     podview.Running(v.Have) || podview.MayRun(v.Have),
		eviction: w.rec.Evicted(),
		stuck:    w.stuck(),
	}
	if !v.Have.Empty() {
		r.observedUID = v.Have.UID
		if v.Want != nil && w.rec.Terminal == "" {
			r.limits = storageLimitsOf(v.Want.Pod)
		}
	}
	w.keepDevices(v, r.ended && !r.runs)
	r.holds = w.holds(v.Have)
	r.runsOn, r.containersRun = exclusiveCPUs(v.Have), podview.MayRun(v.Have)
	spec := w.update.requested
	if spec == nil {
		spec = v.Record.Want
	}
	switch {
	case spec != nil:
		r.origin = spec.Origin
		r.pod = w.statusOf(spec, v, p)
	default:
		r.pod = &v1.Pod{}
		r.pod.Namespace, r.pod.Name = w.key.Namespace, w.key.Name
	}
	r.fresh = w.reported.pod == nil || r.reportMetadata != w.reported.reportMetadata || !equality.Semantic.DeepEqual(w.reported.pod, r.pod)
	w.reported.pod, w.reported.reportMetadata, w.rec.saveTried = r.pod, r.reportMetadata, false
	if spec != nil {
		r.targets = probeTargets(spec, v.Have, &r.pod.Status, v.Want == nil || p.Stops() || w.rec.Terminal != "")
	}
	if w.env.reportLogs {
		r.logs = logsOf(v.Have)
	}
	if p.Behind || w.failedSteps.stopFailure.Reason != "" {
		if r.behind = r.stuck; r.behind.Reason == "" {
			r.behind = pod.Failure{Reason: "Waiting", Message: p.WaitFor}
		}
	}
	r.final = v.Forbidden != "" && !podview.ContainersRunning(v.Have)
	for _, t := range w.failedSteps.byContainer {
		r.final = r.final || t.Final
	}
	select {
	case w.env.reports <- r:
		return true
	case <-ctx.Done():
		return false
	}
}

// instanceTerminated reports whether the pod's newest instance has terminated. If an edit needs a
// new instance, the recorded end of the old instance does not count.
func (w *worker) instanceTerminated(v plan.View, p plan.Plan) bool {
	return p.End.Phase != "" || w.rec.Terminal != "" && (v.Want == nil || deleting(v.Want) || plan.Instance(v) == w.rec.Instance)
}

// holds returns the UIDs under which the runtime or the disk has something of the pod. A record
// without an instance is not on the disk.
func (w *worker) holds(have pod.Actual) (uids []string) {
	uids = append(uids, w.uid)
	if !have.Empty() {
		uids = append(uids, have.UID)
	}
	if w.rec.Instance > 0 {
		uids = append(uids, w.rec.UID)
	}
	return uids
}

// stuck returns the failure that keeps the pod from continuing. A failure to stop or remove
// something comes first, then one of the pod as a whole, then that of the first container by name.
func (w *worker) stuck() pod.Failure {
	if w.failedSteps.stopFailure.Reason != "" {
		return w.failedSteps.stopFailure
	}
	for _, name := range sortedNames(w.failedSteps.byContainer) {
		return w.failedSteps.byContainer[name]
	}
	return pod.Failure{}
}

// restartCounts returns the part of a status that the next instance of the pod keeps: the restart
// counts, which only rise.
func restartCounts(of v1.PodStatus) (kept v1.PodStatus) {
	only := func(list []v1.ContainerStatus) (counts []v1.ContainerStatus) {
		for _, c := range list {
			counts = append(counts, v1.ContainerStatus{Name: c.Name, RestartCount: c.RestartCount})
		}
		return counts
	}
	kept.InitContainerStatuses, kept.ContainerStatuses = only(of.InitContainerStatuses), only(of.ContainerStatuses)
	return kept
}

// statusOf computes the status of the pod by spec, and returns the pod with it.
func (w *worker) statusOf(spec *pod.Spec, v plan.View, p plan.Plan) *v1.Pod {
	notes := status.Notes{
		Failures:           v.Failures,
		Backoff:            p.Backoff,
		NotAdmittedReason:  w.update.refused.reason,
		NotAdmittedMessage: w.update.refused.message,
		Rejected:           w.update.refused.final,
		ResizeReason:       w.update.resize.reason,
		ResizeMessage:      w.update.resize.message,
		Waits:              w.update.waits,
		ContainerNotes:     w.rec.ContainerNotes,
		TerminalReason:     w.rec.TerminalReason, TerminalMessage: w.rec.TerminalMessage,
		Disrupted:   status.DisruptedBy(&w.rec.Record),
		StartTime:   w.rec.StartTime,
		Instance:    w.rec.Instance,
		Terminal:    w.rec.Terminal,
		HostIPs:     w.env.hostIPs,
		RuntimeName: w.env.runtimeName,
		Disabled:    w.env.disabled,
		Terminating: v.Want == nil || deleting(v.Want),
	}
	notes.Unhealthy = w.unhealthyDevices(v.Have)
	if w.env.claims != nil {
		notes.Claims = w.env.claims.Health(v.Have.UID)
	}
	if v.Want != nil {
		notes.Allocated, notes.ResizeError = v.Want.Pod.Spec.Resources, w.lowered.err
	}
	if v.Forbidden != "" {
		reason := cmp.Or(w.update.halt.Reason, eventForbidden)
		if v.Forbidden == w.update.unplaced.message {
			reason = w.update.unplaced.reason
		}
		notes.NotAdmittedReason, notes.NotAdmittedMessage, notes.Rejected = reason, v.Forbidden, false
	}
	if next := plan.Instance(v); v.Want != nil && !deleting(v.Want) && next != w.rec.Instance && !podview.ContainersRunning(v.Have) {
		// The old instance has stopped: the status is that of the next one.
		notes.Instance, notes.Terminal, notes.TerminalReason, notes.TerminalMessage, notes.Disrupted = next, "", "", "", ""
		if !w.rec.StopSince.IsZero() || w.rec.UID != spec.UID() {
			notes.StartTime = w.rec.StopSince // if zero, the status keeps the start time it had, or gets the current time
		}
	}
	if !w.update.runtime {
		notes.NetworkWait = "container runtime is not ready"
	} else if v.NoNetwork {
		notes.NetworkWait = "network is not ready"
	}
	if last := w.reported.pod; last != nil && last.UID != spec.Pod.UID {
		w.reported.status = v1.PodStatus{} // of another pod of this name
	}
	before := w.reported.status
	w.reported.status = status.Of(spec, v.Have, w.update.health, before, notes, v.Now)
	w.reportResized(spec, &before, &w.reported.status)
	out := *spec.Pod // shares all but the status with the immutable spec
	out.Status = w.reported.status
	if v.Want == nil && !w.rec.StopSince.IsZero() {
		status.MarkStopping(&out, w.rec.StopSince, podview.StopGrace(v.Record, v.Have))
	}
	if p.Stopping {
		w.noteOverdue(&out, v)
	}
	return &out
}
