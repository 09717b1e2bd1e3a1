package engine

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// This file sends the events of states that last, such as a back-off, a missing network or a
// resize. It sends one event when the state begins or ends, not one for each plan.

// sentEvents are the lasting states whose event the worker has sent.
type sentEvents struct {
	crash   map[string]time.Time // by container: the end of its back-off
	image   map[string]time.Time // the same for an image
	network bool                 // the pod waits for the network
	failing bool                 // the pod cannot be read
}

// reportWaits sends one event for each lasting state that the plan found: a back-off, or a network
// that is not ready.
func (w *worker) reportWaits(v plan.View, p plan.Plan) {
	spec := v.Want
	if spec == nil || deleting(spec) {
		return
	}
	for _, name := range sortedNames(p.Backoff) {
		until := p.Backoff[name].Until
		if w.reported.events.crash[name].Equal(until) {
			continue
		}
		if w.reported.events.crash == nil {
			w.reported.events.crash = make(map[string]time.Time)
		}
		w.reported.events.crash[name] = until
		w.event(spec, name, pod.EventWarning, eventBackOff, "Back-off restarting failed container %s in pod %s_%s(%s)", name, spec.Name, spec.Namespace, spec.UID())
	}
	for _, name := range sortedNames(w.failedSteps.byContainer) {
		t := w.failedSteps.byContainer[name]
		if w.failedSteps.step[name] != plan.PullImage || !podview.InPullBackOff(t, v.Now) || !t.Until.After(v.Now) || w.reported.events.image[name].Equal(t.Until) {
			continue
		}
		if w.reported.events.image == nil {
			w.reported.events.image = make(map[string]time.Time)
		}
		w.reported.events.image[name] = t.Until
		w.reportImageBackOff(spec, name, t)
	}
	waits := p.WaitFor == plan.WaitNetwork
	if waits && !w.reported.events.network {
		w.event(spec, "", pod.EventWarning, eventNetwork, "network is not ready: container runtime network not ready: %s", w.update.noNetwork)
	}
	w.reported.events.network = waits
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (w *worker) reportImageBackOff(spec *pod.Spec, name string, t pod.Failure) {
	if podview.IsNeverPulled(t.Reason) {
		return
	}
	c, _ := spec.Container(name)
	if c == nil {
		return
	}
	w.event(spec, name, pod.EventNormal, eventBackOff, "Back-off pulling image %q", c.Image)
	w.event(spec, name, pod.EventWarning, eventFailed, "Error: "+podview.ImagePullBackOff)
}

// reportSandbox sends the events of a sandbox that replaces a lost one, and of a pod that
// gets other name servers than it asks for.
func (w *worker) reportSandbox(v plan.View, s plan.Step) {
	if b := v.Have.Sandbox; b != nil && v.Have.UID == v.Want.UID() && v.Record.Instance == s.Instance {
		w.event(v.Want, "", pod.EventNormal, eventSandboxChanged, "Pod sandbox changed, it will be killed and re-created.")
	}
	policy := v.Want.Pod.Spec.DNSPolicy
	clusterFirst := policy == v1.DNSClusterFirstWithHostNet || policy == v1.DNSClusterFirst && !v.Want.Pod.Spec.HostNetwork
	if w.env.noClusterDNS && clusterFirst {
		w.event(v.Want, "", pod.EventWarning, eventNoDNS,
			"pod: \"%s_%s(%s)\". kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			v.Want.Name, v.Want.Namespace, v.Want.UID(), policy, v1.DNSDefault)
	}
}

// reportUnread sends one event when the pod cannot be read, and no other one until it can be read
// again. It sends none if the runtime does not answer, which is a problem of the node.
func (w *worker) reportUnread(err error) {
	if err == nil {
		w.reported.events.failing = false
		return
	}
	if !w.reported.events.failing && !errors.Is(err, pod.ErrUnavailable) {
		w.reported.events.failing = true
		w.event(w.update.want, "", pod.EventWarning, eventSync, "error determining status: %v", err)
	}
}

// reportResized sends the event of a completed resize.
func (w *worker) reportResized(spec *pod.Spec, before, now *v1.PodStatus) {
	if of := resizingOf(before); of == nil || resizingOf(now) != nil || pendingOf(now) != nil || now.Phase != v1.PodRunning || w.update.want == nil {
		return
	}
	w.event(spec, "", pod.EventNormal, eventResizeDone, "%s", resizeText("completed", spec, ""))
}

func resizingOf(st *v1.PodStatus) *v1.PodCondition { return condition(st, v1.PodResizeInProgress) }
func pendingOf(st *v1.PodStatus) *v1.PodCondition  { return condition(st, v1.PodResizePending) }

func condition(st *v1.PodStatus, kind v1.PodConditionType) *v1.PodCondition {
	if i := slices.IndexFunc(st.Conditions, func(c v1.PodCondition) bool { return c.Type == kind }); i >= 0 {
		return &st.Conditions[i]
	}
	return nil
}

// resizeText is the message of a resize event: its state and the requested resources.
func resizeText(how string, spec *pod.Spec, wrong string) string {
	type requested struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources"`
	}
	var all struct {
		InitContainers []requested `json:"initContainers,omitempty"`
		Containers     []requested `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}
	if spec == nil {
		return "Pod resize " + how
	}
	all.Generation, all.Error = spec.Pod.Generation, wrong
	for i := range spec.Pod.Spec.InitContainers {
		c := &spec.Pod.Spec.InitContainers[i]
		all.InitContainers = append(all.InitContainers, requested{c.Name, c.Resources})
	}
	for i := range spec.Pod.Spec.Containers {
		c := &spec.Pod.Spec.Containers[i]
		all.Containers = append(all.Containers, requested{c.Name, c.Resources})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "Pod resize " + how
	}
	return "Pod resize " + how + ": " + string(text)
}
