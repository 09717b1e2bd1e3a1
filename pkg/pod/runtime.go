package pod

import v1 "k8s.io/api/core/v1"

// RuntimeFacts has the facts that a container runtime reports about itself, for the Node object
// (C-1.25.6, C-1.25.7).
type RuntimeFacts struct {
	Name, Version string                  // as containerd and 2.1.4
	Runtime       RuntimeCondition        // can make pods
	Network       RuntimeCondition        // can give them a network
	Handlers      []v1.NodeRuntimeHandler // by name
	Features      *v1.NodeFeatures        // nil where it says nothing of them
}

// RuntimeCondition is one condition of a runtime in its own words.
type RuntimeCondition struct {
	Known   bool // the runtime reports this condition
	OK      bool
	Reason  string
	Message string
}

// Image is one image that a runtime has.
type Image struct {
	ID    string   `json:"id"`
	Names []string `json:"names"` // by digest first, then by tag
	Size  int64    `json:"size"`  // in bytes
	// Pinned says that the runtime must keep it, as the image of the sandboxes.
	Pinned bool `json:"pinned,omitempty"`
}

// ImageUser is a container, running or not, and the image it was made from.
type ImageUser struct {
	ID        string // of the container
	Key       Key    // of its pod; zero for a container of no pod
	Container string
	// Images names its image in every way that the runtime does: by ID, name or digest.
	Images []string
}
