// Package reclaim decides what a node removes when it runs short of disk, memory or process
// IDs: unused images, exited containers, and as the last means a pod. Images plans the
// garbage collection of images, Prune what a person asks for, Evict what pressure requires,
// and Foresee a whole sequence of rounds for a dry run.
//
// It sits between an observation of the node and the agent that acts. The agent observes,
// asks for one round, carries it out and observes again. Every step has its reason.
//
// The one rule: no I/O, no clock, no goroutine. What must be remembered between two rounds
// is passed in and returned.
package reclaim

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Node is what was observed of a node at one moment.
type Node struct {
	Now         time.Time
	Filesystems []Filesystem
	// Levels holds memory and process IDs by signal (memory.available, pid.available,
	// allocatableMemory.available). A signal without a level was not measured, and has no
	// pressure.
	Levels     map[string]Level
	Images     []Image
	Containers []Container // the exited ones
	Sandboxes  []Sandbox   // those that are not ready and have no container
	Pods       []Pod       // those that run
}

// Level is how much of something is left.
type Level struct{ Available, Capacity int64 }

// Usage is what something takes on a disk.
type Usage struct{ Bytes, Inodes int64 }

func (u Usage) plus(o Usage) Usage { return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes} }

// Filesystem is one file system, and what of the node lies on it. The kubelet's nodefs is the
// one with Data, imagefs the one with Images, containerfs the one with Layers.
type Filesystem struct {
	Name   string // for a person: its mount point
	Bytes  Level
	Inodes Level
	Data   bool // volumes and logs of pods
	Images bool
	Layers bool // writable layers of containers
}

// Image is an image of the container runtime.
type Image struct {
	ID    string
	Names []string // tags and digests; any may be missing
	// Bytes is its size. Layers says what of it is shared with other images; nil is not
	// known: its removal then frees Bytes.
	Bytes  int64
	Layers []Layer
	// FirstSeen is when this node first saw it, LastUsed when it last was in use, zero for
	// never (see Remember).
	FirstSeen, LastUsed time.Time
	// Users are the containers, desired pods and others that need it, for a person
	// ("pod default/web"). An image with users is never removed.
	Users  []string
	Pinned bool // the runtime must keep it
	// Archive says that it was imported from a file: no registry is known to have it.
	Archive bool
	// Silent names the registry that it came from if that does not answer now.
	Silent string
}

// Layer is a part of an image that other images may share.
type Layer struct {
	ID string
	Usage
}

// Name returns the image's tag, else its digest, else its ID.
func (i Image) Name() string {
	for _, n := range i.Names {
		if !strings.Contains(n, "@") {
			return n
		}
	}
	if len(i.Names) > 0 {
		return i.Names[0]
	}
	return i.ID
}

// Container is an exited container.
type Container struct {
	ID, Name string
	Pod      pod.Key
	Exited   time.Time
	// Needed says that its pod's plan still reads it: it is the newest one of a desired pod.
	// It is never removed.
	Needed bool
	Layer  Usage
	Logs   Usage
}

// Sandbox is a sandbox that is not ready and has no container.
type Sandbox struct {
	ID      string
	Pod     pod.Key
	Created time.Time
	Needed  bool // as in Container
	Usage        // of writable layers
}

// Pod is a pod that runs.
type Pod struct {
	Key      pod.Key
	UID      string
	Priority int32
	// Static says that no API server is its source.
	Static bool
	// Stopping says that it is being stopped: its resources return by themselves.
	Stopping bool
	// Grace is its own terminationGracePeriodSeconds.
	Grace int64
	// Measured says that its usage was read. A pod without is evicted first, as the
	// kubelet does.
	Measured bool
	// DiskUnknown says that Volumes and the logs were not measured, or only in part: for a disk,
	// the pod counts as one without usage. Otherwise many or deep files would hide it.
	DiskUnknown bool
	Memory      int64 // working set
	PIDs        int64
	Volumes     Usage // those of its volumes that are on the node's disk
	Containers  []Running
	// MemoryRequest and DiskRequest are what it requests in all; Requests are those of the
	// pod itself (pod-level resources), nil for none.
	MemoryRequest, DiskRequest int64
	Requests                   v1.ResourceList
}

// Running is a container of a pod that runs.
type Running struct {
	Name        string
	Memory      int64
	Layer, Logs Usage
	Requests    v1.ResourceList
}

// Action is one operation on the runtime, or the end of a pod.
type Action string

const (
	RemoveContainer Action = "remove-container"
	RemoveSandbox   Action = "remove-sandbox"
	RemoveImage     Action = "remove-image"
	EvictPod        Action = "evict-pod"
)

// Step is one action and its reason.
type Step struct {
	Action Action
	ID     string   // of the image, container or sandbox; the UID of the pod
	Name   string   // for a person: of the image or container
	Names  []string // all of an image
	Pod    pod.Key  // zero for an image
	// Bytes is what the step frees of disks, so far as that is known.
	Bytes int64
	// Grace is an evicted pod's grace period in seconds. Signal is what it is evicted for,
	// Message the message of its status, in the kubelet's words.
	Grace           int64
	Signal, Message string
	Why             string

	aged bool // the image was unused for too long, however full the disk is
}

// String returns the step on one line: action, target, bytes, reason.
func (s Step) String() string {
	var b strings.Builder
	b.WriteString(string(s.Action))
	if s.Pod != (pod.Key{}) {
		b.WriteString(" " + s.Pod.String())
	}
	if s.Name != "" {
		b.WriteString(" " + s.Name)
	}
	if s.Action != EvictPod {
		fmt.Fprintf(&b, " id=%s bytes=%d", s.ID, s.Bytes)
	} else {
		fmt.Fprintf(&b, " grace=%d", s.Grace)
	}
	if s.Why != "" {
		b.WriteString(" # " + s.Why)
	}
	return b.String()
}

// Size returns bytes for a person, in the kubelet's form: "1.5 GiB".
func Size(n int64) string {
	f, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for f >= 1024 && unit < len(units)-1 {
		f, unit = f/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[unit])
}
