package pod

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// The two types of Event.
const (
	EventNormal  = v1.EventTypeNormal
	EventWarning = v1.EventTypeWarning
)

// Event is an event of a pod, as the API's: reasons are the kubelet's (appendix D of
// the contract). Messages never hold a value of a Secret.
type Event struct {
	Key
	UID       string // of the pod
	Container string // field path, as spec.containers{web}; "" is the pod as a whole
	Type      string // EventNormal or EventWarning
	Reason    string // as Started
	Message   string
	At        time.Time
	// Annotations are those of the event's object; nil: it has none. They must not be written to.
	Annotations map[string]string
}

// EvictionCause says which resource of the node was short when a pod was evicted, and what of the
// pod used more of it than it requested. The zero value is not known.
type EvictionCause struct {
	Resource          string
	Containers, Usage string // names and usage of the containers, separated by commas
	// Pod and PodUsage are the pod's name and usage, if it requests the resource as a whole.
	Pod, PodUsage string
}

// Annotations returns the annotations of the event of an eviction, which are the kubelet's; nil if
// the cause is not known.
func (c EvictionCause) Annotations() map[string]string {
	if c.Resource == "" {
		return nil
	}
	all := map[string]string{"starved_resource": c.Resource, "offending_containers": c.Containers, "offending_containers_usage": c.Usage}
	if c.Pod != "" {
		all["offending_pod"], all["offending_pod_usage"] = c.Pod, c.PodUsage
	}
	return all
}

// StatusReport is one pod with its newest status, as the engine reports it to its
// sinks.
type StatusReport struct {
	Pod    *v1.Pod // shared: it must not be written to
	Origin Origin
	// Finished says that nothing of the pod is left on the node, neither containers nor
	// volumes nor cgroups, and that nothing of it will start: an object that is being
	// deleted may be removed from its API server (C-1.27.9).
	Finished bool
	// Gone says that the pod is not desired any more and that nothing of it is left: it
	// is the last report of this pod.
	Gone bool
	// ObservedUID is the UID of the pod that the runtime has under this name, "" if it has
	// none. It differs from Pod's UID while Pod replaces the observed one.
	ObservedUID string
	// NotDesired says that the pod is not in the desired set; something may be left of
	// it.
	NotDesired bool
	// Replacing says that the agent replaces containers of the pod, mostly after an edit: it
	// pulls the images that it needs, and then stops the old containers. Until they have
	// stopped, the node runs the pod as it was before. It is false while the edit is blocked:
	// after a failed pull, and while the runtime is not ready for a pull.
	Replacing bool
	At        time.Time
}
