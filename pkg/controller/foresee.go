package controller

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// Rollout is the changes of one workload, in order.
type Rollout struct {
	Object *pod.Object
	Steps  []workload.Step
}

// Foresee returns the steps of each workload, by kind and key, that the last Expand has begun, and
// those that follow if every pod becomes ready, and every pod that leaves is gone at once. Of Jobs
// and CronJobs it returns only the first steps: the other ones depend on how their pods end.
func (c *Controller) Foresee() []Rollout {
	var all []Rollout
	for _, id := range slices.SortedFunc(maps.Keys(c.workloads), compareIDs) {
		e := c.workloads[id]
		if e.object == nil {
			continue
		}
		steps := slices.Clone(e.decision.Steps)
		if id.Kind != pod.KindJob && id.Kind != pod.KindCronJob {
			steps = append(steps, c.foresee(e)...)
		}
		if len(steps) > 0 {
			all = append(all, Rollout{e.object, steps})
		}
	}
	return all
}

// maxRounds is more decisions than a rollout needs; it bounds one that never comes to rest.
const maxRounds = 1000

// foresee returns the steps after the newest decision.
func (c *Controller) foresee(e *entry) (steps []workload.Step) {
	now, pods, d := time.Now().Round(0), e.pods, e.decision
	ready := make(map[string]*v1.PodStatus, len(pods)) // by UID: since when a pod is ready stays
	for idle, round := 0, 0; idle < 2 && round < maxRounds; round++ {
		if now = now.Add(time.Second); idle > 0 {
			if d.Wake.IsZero() {
				break
			}
			now = latest(now, d.Wake)
		}
		in := workload.Input{Object: e.object, Node: c.cfg.Node, State: d.State, Now: now}
		for _, s := range pods {
			status := ready[s.UID()]
			if status == nil {
				status = readyAt(now)
				ready[s.UID()] = status
			}
			in.Pods = append(in.Pods, workload.Pod{Spec: s, Status: status})
		}
		var err error
		if d, err = c.next(in); err != nil {
			break
		}
		if idle++; len(d.Steps) > 0 {
			idle = 0
		}
		steps, pods = append(steps, d.Steps...), d.Pods
	}
	return steps
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
