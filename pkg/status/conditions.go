package status

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Reasons of conditions (C-1.26.19 to C-1.26.21).
const (
	podCompleted      = "PodCompleted"
	podFailed         = "PodFailed"
	notInitialized    = "ContainersNotInitialized"
	notReady          = "ContainersNotReady"
	unknownContainers = "UnknownContainerStatuses"
	gatesNotReady     = "ReadinessGatesNotReady"
)

func (b *build) conditions(st *v1.PodStatus) []v1.PodCondition {
	foreign := b.foreign()
	containers := b.containersReady(st)
	list := []v1.PodCondition{
		{Type: v1.PodReadyToStartContainers, Status: truth(b.readyToStart())},
		b.initializedCondition(st),
		b.ready(containers, foreign),
		containers,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	if c := b.resizing(st); c != nil {
		list = append(list, *c)
	}
	if pod.RulesRestartAll(&b.want.Pod.Spec) {
		list = append(list, b.restartingCondition(st))
	}
	if c := b.disruption(st); c != nil {
		list = append(list, *c)
		foreign = slices.DeleteFunc(foreign, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
	}
	for i := range list {
		c := &list[i]
		c.LastTransitionTime = seconds(b.now)
		c.ObservedGeneration = st.ObservedGeneration
		if old := find(b.before.Conditions, c.Type); old != nil && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime // C-1.26.23
		}
	}
	return append(list, foreign...)
}

// disruption returns the DisruptionTarget condition of a pod that the node has ended; nil for any
// other pod.
func (b *build) disruption(st *v1.PodStatus) *v1.PodCondition {
	if st.Phase != v1.PodFailed || b.notes.Disrupted == "" {
		return nil
	}
	return &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: b.notes.Disrupted}
}

// foreign returns the conditions that the node does not own (C-1.26.18). For a pod of an API server
// they come from the status at the server, for another pod from the last report. Both the node and
// other owners may set DisruptionTarget: a pod of an API server keeps it, and another pod does not.
func (b *build) foreign() []v1.PodCondition {
	var list []v1.PodCondition
	for _, c := range b.want.Pod.Status.Conditions {
		if !pod.ConditionByKubelet(c.Type) {
			list = append(list, c)
		}
	}
	for _, c := range b.before.Conditions {
		kept := b.want.Origin.FromAPI() == pod.ConditionSharedByKubelet(c.Type)
		if kept && !pod.ConditionByKubelet(c.Type) && find(list, c.Type) == nil {
			list = append(list, c)
		}
	}
	return list
}

// find returns the condition of a type; nil when there is none.
func find(list []v1.PodCondition, kind v1.PodConditionType) *v1.PodCondition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}

// isTrue reports whether the condition of a type exists and is True.
func isTrue(list []v1.PodCondition, kind v1.PodConditionType) bool {
	c := find(list, kind)
	return c != nil && c.Status == v1.ConditionTrue
}

func truth(b bool) v1.ConditionStatus {
	if b {
		return v1.ConditionTrue
	}
	return v1.ConditionFalse
}

// readyToStart reports whether the condition PodReadyToStartContainers is True (C-1.26.22).
func (b *build) readyToStart() bool {
	s := b.have.Sandbox
	if !b.SandboxReady() || !b.HasNewestSandbox() {
		return false
	}
	for _, older := range b.have.Older {
		if older.Ready {
			return false
		}
	}
	return b.want.Pod.Spec.HostNetwork || len(s.IPs) > 0
}

// initializedCondition returns the Initialized condition (C-1.26.19). Once True it stays so
// for the instance. It is also True while a regular container runs or has exited, even if
// init containers run again.
func (b *build) initializedCondition(st *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if st.Phase == v1.PodSucceeded {
		c.Reason = podCompleted
		return c
	}
	begun := func(s v1.ContainerStatus) bool { return s.State.Running != nil || s.State.Terminated != nil }
	if slices.ContainsFunc(st.ContainerStatuses, begun) || b.same && isTrue(b.before.Conditions, v1.PodInitialized) {
		return c
	}
	list := b.want.Pod.Spec.InitContainers
	if len(list) != len(st.InitContainerStatuses) { // the pod was rejected
		c.Status, c.Reason = v1.ConditionFalse, unknownContainers
		return c
	}
	var names []string
	for i, s := range st.InitContainerStatuses {
		done := s.Ready
		if pod.Restartable(&list[i]) {
			done = *s.Started
		}
		if !done {
			names = append(names, s.Name)
		}
	}
	if len(names) > 0 {
		c.Status = v1.ConditionFalse
		c.Reason = notInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: %s", names)
	}
	return c
}

// containersReady returns the ContainersReady condition (C-1.26.20), over sidecars and
// regular containers.
func (b *build) containersReady(st *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	ready := make(map[string]bool)
	for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for _, s := range list {
			ready[s.Name] = s.Ready
		}
	}
	var unready []string
	for _, container := range b.lasting() {
		if !ready[container.Name] {
			unready = append(unready, container.Name)
		}
	}
	switch {
	case st.Phase == v1.PodSucceeded:
		c.Reason = podCompleted
	case st.Phase == v1.PodFailed:
		c.Reason = podFailed
	case len(unready) > 0:
		c.Reason = notReady
		c.Message = fmt.Sprintf("containers with unready status: %s", unready)
	default:
		c.Status = v1.ConditionTrue
	}
	return c
}

// ready returns the Ready condition (C-1.26.21): the containers and every readiness gate.
func (b *build) ready(containers v1.PodCondition, foreign []v1.PodCondition) v1.PodCondition {
	c := containers
	c.Type = v1.PodReady
	if c.Status != v1.ConditionTrue {
		return c
	}
	var notTrue []string
	for _, gate := range b.want.Pod.Spec.ReadinessGates {
		switch g := find(foreign, gate.ConditionType); {
		case g == nil:
			notTrue = append(notTrue, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case g.Status != v1.ConditionTrue:
			notTrue = append(notTrue, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %s", gate.ConditionType, g.Status))
		}
	}
	if len(notTrue) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, gatesNotReady, strings.Join(notTrue, ", ")
	}
	return c
}
