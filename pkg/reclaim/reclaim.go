// Package reclaim plans the removals of a node that is short of disk, memory or process IDs. It removes
// unused images, exited containers and, as a last resort, a pod. Images plans the garbage collection
// of images, and Prune the removal of all unused ones. Evict plans one round for the eviction
// thresholds, and Foresee predicts its rounds for a dry run.
//
// The agent observes the node, plans one round, carries it out and observes again. Each step has its
// reason.
//
// The package has no I/O, no clock and no goroutine. The caller passes in the result of the last
// round.
package reclaim

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Node is an observation of a node at one moment.
type Node struct {
	Now         time.Time
	Filesystems []Filesystem
	// Levels holds memory and process IDs by signal (memory.available, pid.available,
	// allocatableMemory.available). A signal without a level was not measured: its thresholds
	// are not met.
	Levels     map[string]Level
	Images     []Image
	Containers []Container // the exited ones
	Sandboxes  []Sandbox   // those that are not ready and have no container
	// Pods are those that run, and stopped ones whose volumes are not removed yet.
	Pods []Pod
}

// Level is how much of a resource is available, and its total: bytes, inodes or process IDs.
type Level struct{ Available, Capacity int64 }

// Usage is the space that an object takes on a disk.
type Usage struct{ Bytes, Inodes int64 }

func (u Usage) plus(o Usage) Usage { return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes} }

// Filesystem is one file system, with the kinds of data that are on it. The kubelet's nodefs is the
// file system with Data, imagefs the one with Images, and containerfs the one with Writable.
type Filesystem struct {
	Name     string // a directory on it, which identifies it
	Bytes    Level
	Inodes   Level
	Data     bool // volumes and logs of pods
	Images   bool
	Writable bool // writable layers of containers
}

// Image is an image of the container runtime.
type Image struct {
	ID    string
	Names []string // tags and digests; any may be missing
	// Bytes is its size. Layers are its layers; other images may share them. If they are unknown,
	// Layers is nil, and the removal of the image counts as freeing Bytes.
	Bytes  int64
	Layers []Layer
	// FirstSeen is when this node first had it. LastUsed is when it was last in use, zero for
	// never. See Remember.
	FirstSeen, LastUsed time.Time
	// Users names the containers, desired pods and other objects that need it, as text for
	// messages ("pod default/web"). An image with users is never removed.
	Users  []string
	Pinned bool // the runtime must keep it
	// Archive says that it was imported from a file: maybe no registry has it.
	Archive bool
	// Silent is the registry that it came from, if that registry does not answer now; else "".
	UnresponsiveRegistry string
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
	// Needed says that it must stay. The newest container of each name is needed: the pod's worker
	// reads the exit code and the restart count from it. The caller may mark others, too.
	Needed   bool
	Writable Usage // its writable layer
	Logs     Usage
}

// Sandbox is a sandbox that is not ready and has no container.
type Sandbox struct {
	ID      string
	Pod     pod.Key
	Created time.Time
	Needed  bool // as in Container
	Usage        // of writable layers
}

// Pod is a pod that may be evicted, or that is still stopping.
type Pod struct {
	Key      pod.Key
	UID      string
	Priority int32
	// Static says that no API server is its source.
	Static bool
	// Stopping says that it is being stopped, or that its volumes are being removed: it frees
	// its resources without an eviction.
	Stopping bool
	// Grace is its own terminationGracePeriodSeconds.
	Grace int64
	// Measured says that its usage was read. As with the kubelet, pods whose usage was not read are
	// evicted before the others, except for a shortage of process IDs.
	Measured bool
	// DiskUnknown says that its volumes and logs were not measured, or only in part. For a disk
	// the pod then ranks as if Measured were false. Otherwise a pod with too many or too deep files
	// to count would be evicted last.
	DiskUnknown bool
	Memory      int64 // working set
	PIDs        int64
	Volumes     Usage // of its volumes on the node's disk
	Containers  []Running
	// MemoryRequest and DiskRequest are its requests, as the scheduler counts them. Requests are
	// the requests of its pod-level resources; nil for none.
	MemoryRequest, DiskRequest int64
	Requests                   v1.ResourceList
}

// Running is a running container of a pod.
type Running struct {
	Name           string
	Memory         int64
	Writable, Logs Usage // the writable layer, the logs
	Requests       v1.ResourceList
}

// Action is the action of a step.
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
	Name   string   // of the image or container, for messages
	Names  []string // all of an image
	Pod    pod.Key  // zero for an image
	// Bytes is how many bytes the step frees on disks, as far as that is known.
	Bytes int64
	// Grace is an evicted pod's grace period in seconds. Signal is the signal whose threshold
	// evicts it. Message is the message for its status, in the kubelet's words, and Cause is that of
	// its event.
	Grace           int64
	Signal, Message string
	Cause           pod.EvictionCause
	Why             string

	aged bool // the image was unused for longer than ImagePolicy.MaxAge
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

// Size formats bytes as the kubelet does: "1.5 GiB".
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
