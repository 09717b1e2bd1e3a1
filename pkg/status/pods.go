package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Pods returns the pods of a node with their statuses, sorted by key. It is for commands that run
// beside an agent, or without one.
//
// have is the current state in the runtime; it is nil if the runtime does not answer. reported has the
// agent's last report of each pod. The status of a pod in have follows from have, except that of a
// stopped pod that waits to start again: its report is the result. A pod that was reported as Running
// and is not in have is not Running in the result. Only the agent knows readiness and back-offs: they
// come from its report, if that is about the same containers.
func Pods(have *[]pod.Actual, reported map[pod.Key]*v1.Pod, records []pod.Record, hostIPs []string, now time.Time) []v1.Pod {
	recordOf := make(map[pod.Key]*pod.Record, len(records))
	for i := range records {
		recordOf[records[i].Key] = &records[i]
	}
	all := make(map[pod.Key]v1.Pod, len(reported))
	for key, p := range reported {
		all[key] = *p
	}
	if have != nil {
		for _, a := range *have {
			all[a.Key] = seen(a, reported[a.Key], recordOf[a.Key], hostIPs, now)
		}
		for key, p := range all {
			if p.Status.Phase == v1.PodRunning && !slices.ContainsFunc(*have, func(a pod.Actual) bool { return a.Key == key }) {
				gone := pod.Actual{Key: key, UID: string(p.UID)} // it was reported as running, and the runtime shows nothing of it
				all[key] = seen(gone, &p, nil, hostIPs, now)
			}
		}
	}
	pods := make([]v1.Pod, 0, len(all))
	for _, key := range slices.SortedFunc(maps.Keys(all), pod.Key.Compare) {
		p := all[key]
		p.TypeMeta.Kind, p.TypeMeta.APIVersion = "Pod", "v1"
		pods = append(pods, p)
	}
	return pods
}

// seen returns one pod with the status that follows from its state in the runtime.
func seen(a pod.Actual, reported *v1.Pod, rec *pod.Record, hostIPs []string, now time.Time) v1.Pod {
	spec := specOf(a, reported, rec)
	var before v1.PodStatus
	if reported != nil {
		before = reported.Status
	}
	if rec != nil && rec.StopAsked && reported != nil && !podview.Running(a) {
		return *reported // the pod waits to start again, and only the agent knows the reason
	}
	notes := Notes{HostIPs: hostIPs}
	if rec != nil {
		notes.StartTime, notes.Instance, notes.Terminal = rec.StartTime, rec.Instance, rec.Terminal
		notes.TerminalReason, notes.TerminalMessage, notes.ContainerNotes = rec.TerminalReason, rec.TerminalMessage, rec.ContainerNotes
		notes.Terminating, notes.Disrupted = !rec.StopSince.IsZero(), DisruptedBy(rec)
	}
	current := Of(spec, a, pod.Health{}, before, notes, now)
	keepWaiting(&current, before)
	out := *spec.Pod
	out.Status = current
	if notes.Terminating {
		MarkStopping(&out, rec.StopSince, podview.Grace(spec, nil, a))
		MarkOverdue(&out, a, rec.StopSince, podview.Grace(spec, nil, a), now)
	}
	return out
}

// MarkStopping sets the deletion timestamp and grace of a pod that stops: readers expect them in a
// terminating pod. since is when the stop began; grace is in seconds. It leaves a deleted pod as it is.
func MarkStopping(p *v1.Pod, since time.Time, grace int64) {
	if p.DeletionTimestamp != nil {
		return
	}
	by := metav1.NewTime(since.Add(podview.GraceDuration(grace)).Truncate(time.Second))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &by, &grace
}

// ReasonOverdue is the status reason of a pod that has been stopping for twice its grace and
// still has a running container: even SIGKILL does not end it (F32).
const ReasonOverdue = "StopOverdue"

// OverdueAt is when a stop that began at since, with grace in seconds, becomes overdue.
func OverdueAt(since time.Time, grace int64) time.Time {
	return since.Add(2 * podview.GraceDuration(max(grace, podview.MinGrace)))
}

// MarkOverdue sets the status reason and message of a pod whose stop is overdue, and returns the names
// of the containers that still run, sorted. If the stop is not overdue or no container runs, it
// changes nothing and returns nil. A terminated pod keeps its reason.
func MarkOverdue(p *v1.Pod, have pod.Actual, since time.Time, grace int64, now time.Time) (left []string) {
	if pod.IsPhaseTerminal(p.Status.Phase) || since.IsZero() || now.Before(OverdueAt(since, grace)) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(have.Containers)) {
		if have.Containers[name].MayRun() {
			left = append(left, name)
		}
	}
	if left != nil {
		p.Status.Reason = ReasonOverdue
		p.Status.Message = fmt.Sprintf("stop began at %s with a grace period of %d s; containers still running: %s",
			since.UTC().Format(time.RFC3339), grace, strings.Join(left, ", "))
	}
	return left
}

// keepWaiting gives an exited container the waiting state that the agent last reported for it: only
// the agent knows back-offs.
func keepWaiting(current *v1.PodStatus, before v1.PodStatus) {
	for _, list := range [][2][]v1.ContainerStatus{
		{current.ContainerStatuses, before.ContainerStatuses},
		{current.InitContainerStatuses, before.InitContainerStatuses},
	} {
		for i := range list[0] {
			c := &list[0][i]
			j := slices.IndexFunc(list[1], func(o v1.ContainerStatus) bool { return o.Name == c.Name })
			if j < 0 || list[1][j].State.Waiting == nil {
				continue
			}
			last := list[1][j].LastTerminationState.Terminated
			same := c.State.Terminated != nil && last != nil && last.ContainerID == c.State.Terminated.ContainerID
			if same || c.State.Waiting != nil {
				c.State, c.LastTerminationState = list[1][j].State, list[1][j].LastTerminationState
			}
		}
	}
}

// specOf returns the known spec of a pod: the reported one, else the recorded one, else one built
// from the state in the runtime.
func specOf(a pod.Actual, reported *v1.Pod, rec *pod.Record) *pod.Spec {
	switch {
	case reported != nil && string(reported.UID) == a.UID:
		return &pod.Spec{Key: a.Key, Pod: reported, Origin: pod.Origin{Source: pod.SourceOf(reported)}}
	case rec != nil && rec.Want != nil && rec.UID == a.UID:
		return rec.Want
	}
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = a.Namespace, a.Name, types.UID(a.UID)
	if a.Sandbox != nil {
		p.Spec.HostNetwork = a.Sandbox.HostNetwork
	}
	for _, name := range slices.Sorted(maps.Keys(a.Containers)) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: a.Containers[name].Image})
	}
	return &pod.Spec{Key: a.Key, Pod: p}
}
