package pod

import v1 "k8s.io/api/core/v1"

// ConditionByKubelet reports whether the node computes the conditions of this type
// (C-1.26.18). The conditions of all other types stay as their owners wrote them.
func ConditionByKubelet(t v1.PodConditionType) bool {
	switch t {
	case v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled,
		v1.PodResizePending, v1.PodResizeInProgress, v1.AllContainersRestarting:
		return true
	}
	return false
}

// ConditionSharedByKubelet reports whether the node may add a condition of this type,
// and others may too: it stays once it is there.
func ConditionSharedByKubelet(t v1.PodConditionType) bool { return t == v1.DisruptionTarget }
