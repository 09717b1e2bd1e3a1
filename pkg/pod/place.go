package pod

import v1 "k8s.io/api/core/v1"

// Place has the values that the node assigns to one instance of a pod in addition to its spec. It
// is the same for the sandbox and every container in it.
type Place struct {
	// CgroupParent is the pod's own cgroup, as the runtime's driver names it:
	// "/kubepods/burstable/pod<uid>" or
	// "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice". Empty
	// leaves it to the runtime adapter.
	CgroupParent string
	// Users is the block of users of a pod with hostUsers: false; nil for a pod that
	// has the node's.
	Users *Users
}

// Users is a block of user and group IDs of the node that a pod sees from 0 on.
type Users struct {
	HostID uint32 `json:"hostId"`
	Length uint32 `json:"length"`
}

// NodeFacts has the facts that a pod can learn about its node.
type NodeFacts struct {
	HostIPs     []string        // first is the pod IP of host-network pods
	Allocatable v1.ResourceList // what resourceFieldRef says where a container has no limit (C-1.38.3)
}

// SandboxRequest is one sandbox to make.
type SandboxRequest struct {
	Want     *Spec
	Instance int
	Attempt  uint32
	Place    Place
	Warn     Warn
}
