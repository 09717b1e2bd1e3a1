package readonly

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/forecast"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// RecordedPods returns the agent's recorded pods with their last statuses, for workloads to find their
// existing pods. In the origins, layers have their names on this command line.
func (c Config) RecordedPods(kept []pod.Record, reported map[pod.Key]*v1.Pod) []workload.Pod {
	newest := make(map[pod.Key]pod.Record, len(kept))
	for _, r := range kept {
		if have, known := newest[r.Key]; r.Want != nil && (!known || have.StartTime.Before(r.StartTime)) {
			newest[r.Key] = r
		}
	}
	pods := make([]workload.Pod, 0, len(newest))
	for _, r := range newest {
		spec := *r.Want
		spec.Origin = c.here(spec.Origin)
		p := workload.Pod{Spec: &spec, Leaving: !r.StopSince.IsZero() && !r.StopAsked}
		if last := reported[r.Key]; last != nil && last.UID == spec.Pod.UID {
			p.Status = &last.Status
		}
		pods = append(pods, p)
	}
	return pods
}

// newWorkloads returns a controller for a command that changes nothing. The workloads have no pods
// yet, and of the agent's state only the overrides.
func (c Config) newWorkloads() *controller.Controller {
	cfg := controller.Config{Node: c.NodeName, Log: c.Log}
	if states := c.workloadStates(); states != nil {
		cfg.Store = overrides{states}
	}
	return controller.New(cfg)
}

// overrides is a store of states that loads only the overrides. It loads nothing from an unreadable
// store: the command may run on a machine without an agent, or for a user without access.
type overrides struct{ controller.Store }

// Load implements controller.Store.
func (o overrides) Load(each func(of pod.ObjectKey, layer string, state []byte)) error {
	_ = o.Store.Load(func(of pod.ObjectKey, layer string, state []byte) {
		var s workload.State
		if json.Unmarshal(state, &s) != nil || s.Override == nil {
			return
		}
		if state, err := json.Marshal(workload.State{Override: s.Override}); err == nil {
			each(of, layer, state)
		}
	})
	return nil
}

// noticeOverrides prints a notice for each overridden field of a workload.
func (c Config) noticeOverrides(w *controller.Controller) {
	for _, of := range w.Workloads() {
		for _, o := range of.Decision.State.Override.Fields() {
			name := strings.ToLower(of.Object.Kind) + " " + of.Object.Key.String()
			if o.Field == "spec.template" {
				c.Notice(name + ": spec.template is not that of the source (" + o.Why + ")")
				continue
			}
			c.Notice(name + ": " + o.Field + " is " + o.Value + ", and " + o.Source + " in the source (" + o.Why + ")")
		}
	}
}

// agentWorkloads returns a controller for a command that changes nothing. The workloads have their
// pods from kept, the agent's records, and the agent's state.
func (c Config) agentWorkloads(kept []pod.Record) *controller.Controller {
	return controller.New(controller.Config{
		Node: c.NodeName, Recorded: c.RecordedPods(kept, c.reported()), Store: c.workloadStates(), Log: c.Log,
	})
}

// readOnly loads the states of workloads, with the layer names of this command line. It stores
// nothing.
type readOnly struct {
	c    Config
	load func(each func(of pod.ObjectKey, layer string, state []byte)) error
}

// Load implements controller.Store.
func (r readOnly) Load(each func(of pod.ObjectKey, layer string, state []byte)) error {
	return r.load(func(of pod.ObjectKey, layer string, state []byte) {
		source, location, _ := strings.Cut(layer, ":")
		each(of, r.c.here(pod.Origin{Source: source, Location: location}).Layer(), state)
	})
}

// Save implements controller.Store: the decision is only shown.
func (readOnly) Save(pod.ObjectKey, string, []byte) error { return nil }

// Remove implements controller.Store.
func (readOnly) Remove(pod.ObjectKey) error { return nil }

// addRollouts adds the steps of workloads to a forecast.
func addRollouts(f *forecast.Forecast, all []controller.Rollout) {
	for _, r := range all {
		out := forecast.Rollout{ObjectKey: r.Object.ObjectKey(), Release: r.Release, Together: r.Together}
		for _, s := range r.Steps {
			out.Steps = append(out.Steps, forecast.RolloutStep{Action: string(s.Action), Pod: s.Key, Reason: s.Reason})
		}
		f.Rollouts = append(f.Rollouts, out)
		if r.Cut != "" {
			f.Notices = append(f.Notices, fmt.Sprintf("%s %s: only its first %d steps are known: %s", strings.ToLower(r.Object.Kind), r.Object.Key, len(r.Steps), r.Cut))
		}
	}
	slices.Sort(f.Notices)
}
