package engine

import (
	"context"
	"iter"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/prober"
)

// Actor changes the runtime. Each method is one CRI call, or two. Every call has its own deadline
// and is safe to repeat. A failure to make something is a *pod.StartError. Stopping or removing an
// object that does not exist is success.
type Actor interface {
	// RunSandbox makes and starts the sandbox of a pod, and returns its ID.
	RunSandbox(ctx context.Context, r pod.SandboxRequest) (string, error)
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
	// PullImage makes the image of want's container present by its pull policy: ImageStatus,
	// then PullImage where needed. It calls progress for every step; progress must not wait.
	// When ctx is done, it returns.
	PullImage(ctx context.Context, want *pod.Spec, container string, progress func(pod.PullProgress)) error
	CreateContainer(ctx context.Context, r pod.CreateRequest) (string, error)
	StartContainer(ctx context.Context, id string) error
	// StopContainer asks the container to exit, and kills it after grace. It returns when it
	// has exited.
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	// RemoveContainer removes a container that does not run, with its log. With keepLog the
	// log stays until the pod is removed (C-1.33.5).
	RemoveContainer(ctx context.Context, id string, keepLog bool) error
	// UpdateContainer gives the running container the resources that want names
	// for it (C-1.34).
	UpdateContainer(ctx context.Context, id string, want *pod.Spec, container string) error
	// UpdateCPUs moves the running container to these CPUs ("0-3,8"), and changes nothing else of
	// it.
	UpdateCPUs(ctx context.Context, id, cpus string) error
	// ReopenLog has the runtime write to a new file in the place of the container's log.
	ReopenLog(ctx context.Context, id string) error
}

// Runtime is the whole container runtime.
type Runtime interface {
	plan.Observer
	Actor
}

// Hints yields keys of pods that may have changed. A hint is not state: the receiver reads
// the pod. The sequence ends with ctx. The zero Key says that any pod may have changed.
type Hints interface {
	Hints(ctx context.Context) iter.Seq[pod.Key]
}

// Volumes sets up the volumes and directories of an instance, and tears them down. Its
// operations are synchronous and safe to repeat.
type Volumes interface {
	// SetUp makes the directories and volumes of one instance. If they exist, it updates those
	// that show config objects, labels or tokens.
	SetUp(ctx context.Context, want *pod.Spec, p pod.Place, instance int) error
	// Ready returns the state of an instance's volumes. done says that SetUp has succeeded for this
	// instance: its containers may start. current says that the volumes show the desired content.
	// until is when they have to be updated although nothing changes, since a token expires; zero
	// is never.
	Ready(want *pod.Spec, instance int) (done, current bool, until time.Time)
	// HasDriverVolumes reports whether CSI drivers have mounted volumes for the pod with uid, or are
	// about to. It reads no disk.
	HasDriverVolumes(uid string) bool
	// File returns a file of a volume of an instance that is in place (C-1.38.4).
	File(want *pod.Spec, instance int, volume, path string) ([]byte, error)
	// Mounts returns the mounts of one container of an instance that is in place;
	// r has its environment.
	Mounts(ctx context.Context, r pod.CreateRequest) ([]pod.Mount, error)
	// Devices returns the block devices of one container of an instance that is in place.
	Devices(r pod.CreateRequest) ([]pod.BlockDevice, error)
	// ExceededLimit measures the disk space of the instance and returns the kubelet's message for the
	// limit that it exceeds, "" for none (C-1.35.9). layers holds the bytes of each container's
	// writable layer, by name; with nil only the limits of volumes count. ctx ends it.
	ExceededLimit(ctx context.Context, want *pod.Spec, instance int, layers map[string]int64) (string, error)
	// TearDown removes the volumes of one instance of the pod with uid. It never follows a link
	// out of the pod's directory nor crosses a mount.
	TearDown(ctx context.Context, uid string, instance int) error
	// Forget removes all that is left of the pod: its directory and its log
	// directory.
	Forget(ctx context.Context, key pod.Key, uid string) error
	// Sweep removes the directories of all pods for whose UIDs keep returns false. It calls
	// keep for each UID right before it removes that UID's directories, and returns the UIDs
	// it removed.
	Sweep(ctx context.Context, keep func(uid string) bool) ([]string, error)
}

// Cgroups keeps one cgroup for each pod (C-1.41). It never touches a cgroup without our mark.
type Cgroups interface {
	// Ensure makes the pod's cgroup, or sets its limits to those that want requests. It returns
	// the name in the form of the runtime's cgroup driver.
	Ensure(want *pod.Spec) (parent string, err error)
	// Raise raises the limits of the pod's cgroup that want raises, and lowers none. A resize
	// calls it before the first container gets more (C-1.34.5). Lower sets all limits to those of
	// want. A resize calls it after the last container. Neither creates a cgroup.
	Raise(want *pod.Spec) error
	Lower(want *pod.Spec) error
	// Parent returns the name of the pod's cgroup, "" if it has no cgroup with our mark. It
	// changes nothing.
	Parent(want *pod.Spec) string
	// Destroy removes the cgroups of the pod with uid, of any QoS class, once no process runs in
	// them.
	Destroy(uid string) error
	// Sweep removes the cgroups of all pods whose UIDs are not in keep, and returns the UIDs
	// it removed.
	Sweep(keep map[string]bool) ([]string, error)
}

// Devices gives containers the devices of plugins.
type Devices interface {
	// Changed is readable after a change of the results of Supply and Healthy.
	Changed() <-chan struct{}
	// Supply returns the supply of each extended resource that a plugin serves or served.
	Supply() map[v1.ResourceName]pod.DeviceSupply
	// Adopt adds pods that have devices already. complete says that holders has all such pods.
	Adopt(holders []pod.DeviceHolder, complete bool)
	// Allocate returns the devices of a container that is about to be created: those that it
	// had, else new ones. It may take as long as a plugin needs.
	Allocate(ctx context.Context, r pod.DeviceRequest) ([]pod.DeviceAllocation, error)
	// Reserve replaces the devices that admission reserves for containers which are not created yet.
	Reserve(all []pod.DeviceReservation)
	// Healthy reports whether a device is healthy.
	Healthy(resource, id string) bool
	// Keep frees the devices of all containers of a pod but these; with none, all devices of the
	// pod.
	Keep(uid string, containers map[string]bool)
}

// Claims has drivers prepare the ResourceClaims of pods.
type Claims interface {
	// Changed is readable after a driver has registered.
	Changed() <-chan struct{}
	// HealthChanged is readable after results of Health have changed.
	HealthChanged() <-chan struct{}
	// Adopt adds pods whose containers have devices of claims already.
	Adopt(holders []pod.ClaimHolder)
	// Prepare prepares all claims of a pod that is about to start. It may take as long as its
	// drivers need, and may be repeated.
	Prepare(ctx context.Context, want *pod.Spec) error
	// Of returns the devices that a container gets, after Prepare.
	Of(want *pod.Spec, container string) ([]pod.ClaimAllocation, error)
	// Health returns the known health of the devices of a pod's prepared claims, by UID of the claim.
	Health(uid string) map[string]map[pod.DeviceName]pod.DeviceHealth
	// Uses reports whether the pod may have claims to release.
	Uses(uid string) bool
	// Release unprepares the claims of a pod of which nothing runs, except those that other pods
	// use. It may take as long as the drivers need, and may be repeated.
	Release(ctx context.Context, uid string) error
	// Leave unprepares later the claims of a pod of which nothing runs.
	Leave(uid string)
	// Sweep unprepares later the claims of all pods for whose UIDs keep returns false.
	Sweep(keep func(uid string) bool)
}

// Users allocates blocks of user IDs to pods with hostUsers: false (C-1.42).
type Users interface {
	// Allocate returns the pod's block: the one it has, or a new one.
	Allocate(uid string) (*pod.Users, error)
	// Release releases the pod's block.
	Release(uid string) error
}

// Records stores the facts that the runtime cannot show, in one small file for each pod. Callers
// continue after an error. If a record is lost, some status fields are lost and some hooks run again
// or not at all, but no container stops.
type Records interface {
	// Load returns the record of key; ok is false if there is none, or if it is damaged. Load
	// moves a damaged record aside, and returns an error. If the record of uid belongs to another
	// pod, err is a *pod.OwnerError, and r is the record of key's former UID.
	Load(key pod.Key, uid string) (r pod.Record, ok bool, err error)
	// Owner returns the pod whose record is that of uid; known is false when there is none.
	Owner(uid string) (key pod.Key, known bool, err error)
	// All returns every readable record.
	All() ([]pod.Record, error)
	// Save replaces the record, atomically, unless it is another pod's.
	Save(r pod.Record) error
}

// Sets keeps the last good set of every layer, so that an agent that starts before a source
// has answered knows its last desired pods.
type Sets interface {
	// Save writes the sets of the changed files of a layer; at is when the layer was last read
	// without an error. An empty set removes its file's set; other files' sets stay.
	Save(layer string, at time.Time, changed []pod.LastGoodSet) error
	// Forget removes the sets of all layers for which keep returns false.
	Forget(keep func(layer string) bool) error
}

// Prober runs one probe, or one lifecycle hook, once.
type Prober interface {
	prober.Runner
	// Hook runs one lifecycle hook and waits for its end. An error never contains the hook's
	// output or response (C-1.24.1).
	Hook(ctx context.Context, r pod.HookRequest) error
}

// Events receives the events of pods.
type Events interface {
	// Event takes one event. It never blocks; it drops events beyond its limit.
	Event(e pod.Event)
}

// Logs limits the logs of running containers.
type Logs interface {
	// Rotate rotates one container's log if it is too large; reopen asks the runtime to write
	// to a new file (C-1.43.1). A missing log is no error (F84).
	Rotate(ctx context.Context, path string, reopen func(context.Context) error) error
}
