package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// Rollout lists the changes of one workload, in order.
type Rollout struct {
	Object *pod.Object
	Steps  []workload.Step
	// Release is the release that the rollout belongs to; "" for none. Together are the other
	// workloads with a new version in the same rollout of the release.
	Release  string
	Together []pod.ObjectKey
	// Cut is the reason why Steps lacks later steps, or "" if it has all of them.
	Cut string
}

// Foresee returns the steps of each workload, by kind and key: those that the last Expand has
// begun, and those that follow. It assumes that every pod becomes ready, and that every pod that
// leaves is gone at once. A pod does not become ready while another pod of the workload has a host
// port that it needs. For Jobs and CronJobs it returns only the first steps: later ones depend on the
// results of their pods.
func (c *Controller) Foresee() []Rollout {
	var all []Rollout
	for _, id := range slices.SortedFunc(maps.Keys(c.workloads), compareIDs) {
		e := c.workloads[id]
		if e.object == nil {
			continue
		}
		r := Rollout{Object: e.object, Steps: slices.Clone(e.decision.Steps)}
		if id.Kind != pod.KindJob && id.Kind != pod.KindCronJob {
			var more []workload.Step
			more, r.Cut = c.foresee(e)
			r.Steps = append(r.Steps, more...)
		}
		if all, rolls := workload.Together(&e.decision.State, c.others(e)); rolls {
			r.Release, r.Together = e.decision.State.Release.Name, all
		}
		if len(r.Steps) > 0 {
			all = append(all, r)
		}
	}
	return all
}

// maxRounds limits the decisions about a workload in Foresee. A large workload may need more, and a
// workload that never settles would need an unlimited number.
const maxRounds = 1000

// foresee returns the steps after the newest decision. cut is the reason why steps are missing, or
// "".
func (c *Controller) foresee(e *entry) (steps []workload.Step, cut string) {
	now, pods, d := time.Now().Round(0), e.pods, e.decision
	ready := make(map[string]*v1.PodStatus, len(pods)) // the statuses of ready pods, by UID
	for _, s := range pods {
		if !slices.ContainsFunc(d.Steps, func(step workload.Step) bool { return step.Key == s.Key }) {
			ready[s.UID()] = readyAt(now.Add(time.Second)) // so it has its host ports before new pods get theirs
		}
	}
	for idle, round := 0, 0; idle < 2; round++ {
		if round == maxRounds {
			return steps, fmt.Sprintf("a forecast has at most %d decisions about a workload", maxRounds)
		}
		if now = now.Add(time.Second); idle > 0 {
			if d.Wake.IsZero() {
				break
			}
			now = latest(now, d.Wake)
		}
		in := workload.Input{Object: e.object, Node: c.cfg.Node, State: d.State, Now: now}
		in.Pods = foreseenPods(pods, ready, now)
		var err error
		if d, err = c.next(in); err != nil {
			return steps, "the next decision failed"
		}
		if idle++; len(d.Steps) > 0 {
			idle = 0
		}
		steps, pods = append(steps, d.Steps...), d.Pods
	}
	return steps, ""
}

// foreseenPods returns pods with the statuses that they would have at a time. ready has the
// statuses of ready pods, by UID; foreseenPods adds the pods that become ready now.
func foreseenPods(pods []*pod.Spec, ready map[string]*v1.PodStatus, now time.Time) []workload.Pod {
	out := make([]workload.Pod, 0, len(pods))
	var holders []*pod.Spec // of host ports
	for _, s := range pods {
		if ready[s.UID()] != nil && len(pod.HostPorts(s.Pod)) > 0 {
			holders = append(holders, s)
		}
	}
	for _, s := range pods {
		status := ready[s.UID()]
		waits := slices.ContainsFunc(holders, func(h *pod.Spec) bool {
			_, conflict := pod.PortConflict(s.Pod, h.Pod)
			return conflict && h != s
		})
		if status == nil && !waits {
			status = readyAt(now)
			ready[s.UID()] = status
			if len(pod.HostPorts(s.Pod)) > 0 {
				holders = append(holders, s)
			}
		}
		out = append(out, workload.Pod{Spec: s, Status: status})
	}
	return out
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// readyAt returns the status of a pod that has become ready.
func readyAt(now time.Time) *v1.PodStatus {
	at := metav1.NewTime(now)
	return &v1.PodStatus{Phase: v1.PodRunning, StartTime: &at, Conditions: []v1.PodCondition{
		{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: at},
		{Type: v1.ContainersReady, Status: v1.ConditionTrue, LastTransitionTime: at},
	}}
}
