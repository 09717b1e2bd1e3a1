package status

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// owned lists the conditions that are computed here, in the order in which they
// are written (C-1.26.18). All others are kept as they are.
var owned = [...]v1.PodConditionType{
	v1.PodReadyToStartContainers,
	v1.PodInitialized,
	v1.PodReady,
	v1.ContainersReady,
	v1.PodScheduled,
}

func (b *build) conditions(st *v1.PodStatus) []v1.PodCondition {
	containers := containersReady(st)
	list := []v1.PodCondition{
		{Type: v1.PodReadyToStartContainers, Status: truth(b.sandboxReady())},
		b.initializedCondition(st),
		b.ready(containers),
		containers,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	for i := range list {
		c := &list[i]
		c.LastTransitionTime = seconds(b.now)
		for _, old := range b.before.Conditions {
			if old.Type == c.Type && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
				c.LastTransitionTime = old.LastTransitionTime // C-1.26.23
			}
		}
	}
	for _, old := range b.before.Conditions {
		if !slices.Contains(owned[:], old.Type) {
			list = append(list, old)
		}
	}
	return list
}

func truth(b bool) v1.ConditionStatus {
	if b {
		return v1.ConditionTrue
	}
	return v1.ConditionFalse
}

// sandboxReady is C-1.26.22.
func (b *build) sandboxReady() bool {
	s := b.have.Sandbox
	if s == nil || !s.Ready || s.Instance != 0 && b.notes.Instance != 0 && s.Instance != b.notes.Instance {
		return false
	}
	for _, older := range b.have.Older {
		if older.Ready {
			return false
		}
	}
	return b.want.Pod.Spec.HostNetwork || len(s.IPs) > 0
}

// initializedCondition is C-1.26.19.
func (b *build) initializedCondition(st *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if st.Phase == v1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	var names []string
	for _, s := range st.InitContainerStatuses {
		if !s.Ready {
			names = append(names, s.Name)
		}
	}
	if len(names) > 0 {
		c.Status = v1.ConditionFalse
		c.Reason = "ContainersNotInitialized"
		c.Message = fmt.Sprintf("containers with incomplete status: %s", names)
	}
	return c
}

// containersReady is C-1.26.20.
func containersReady(st *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	var unready []string
	for _, s := range st.ContainerStatuses {
		if !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	switch {
	case st.Phase == v1.PodSucceeded:
		c.Reason = "PodCompleted"
	case st.Phase == v1.PodFailed:
		c.Reason = "PodFailed"
	case len(unready) > 0:
		c.Reason = "ContainersNotReady"
		c.Message = fmt.Sprintf("containers with unready status: %s", unready)
	default:
		c.Status = v1.ConditionTrue
	}
	return c
}

// ready is C-1.26.21: the containers and every readiness gate.
func (b *build) ready(containers v1.PodCondition) v1.PodCondition {
	c := containers
	c.Type = v1.PodReady
	if c.Status != v1.ConditionTrue {
		return c
	}
	for _, gate := range b.want.Pod.Spec.ReadinessGates {
		i := slices.IndexFunc(b.before.Conditions, func(c v1.PodCondition) bool { return c.Type == gate.ConditionType })
		switch {
		case i < 0:
			c.Message = fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType)
		case b.before.Conditions[i].Status != v1.ConditionTrue:
			c.Message = fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %s", gate.ConditionType, b.before.Conditions[i].Status)
		default:
			continue
		}
		c.Status, c.Reason = v1.ConditionFalse, "ReadinessGatesNotReady"
		return c
	}
	return c
}
