package pod

import (
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Labels and annotations nodectl writes on sandboxes and containers. The io.kubernetes.* names are
// the kubelet's (C-1.22.11), so that crictl, log collectors and monitoring find the expected names.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
	// LabelNode carries the node name. nodectl changes only sandboxes and containers
	// that carry it with this node's name.
	LabelNode = "nodectl.dev/node"

	AnnotationContainerHash   = "io.kubernetes.container.hash"         // Spec.ContainerHash
	AnnotationRestartCount    = "io.kubernetes.container.restartCount" // decimal
	AnnotationTerminationPath = "io.kubernetes.container.terminationMessagePath"
	AnnotationGrace           = "io.kubernetes.pod.terminationGracePeriod" // seconds, decimal

	AnnotationInstance    = "nodectl.dev/instance"     // number of the pod's instance, decimal, from 1
	AnnotationSpecHash    = "nodectl.dev/spec-hash"    // Spec.Hash the sandbox was made from
	AnnotationSandboxHash = "nodectl.dev/sandbox-hash" // Spec.SandboxHash the sandbox was made from
	AnnotationLayer       = "nodectl.dev/layer"        // Origin.Layer() at creation
	AnnotationCrashStreak = "nodectl.dev/crash-streak" // crashes in a row before this container, decimal
	AnnotationResources   = "nodectl.dev/resources"    // Spec.Resources the container was made with
	AnnotationPlacement   = "nodectl.dev/placement"    // JSON of the Placement the container was made with
	AnnotationDevices     = "nodectl.dev/devices"      // JSON of the []DeviceAllocation the container was made with
	AnnotationClaims      = "nodectl.dev/claims"       // JSON of the []ClaimAllocation the container was made with

	AnnotationTerminationPolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStop           = "io.kubernetes.container.preStopHandler" // JSON of a v1.LifecycleHandler

	// Annotations of a Pod object that the kubelet owns (C-1.4).
	AnnotationConfigSource = "kubernetes.io/config.source"
	AnnotationConfigSeen   = "kubernetes.io/config.seen"
	AnnotationConfigHash   = "kubernetes.io/config.hash"
	AnnotationConfigMirror = "kubernetes.io/config.mirror"
)

// Actual ("have") is the state of one key in the runtime, read now. It is used only for the
// decision it was read for.
type Actual struct {
	Key
	UID string
	// Sandbox is the newest sandbox (by attempt, then creation time); nil when
	// there is none.
	Sandbox *Sandbox
	// Containers holds the newest CRI container per container name, of any sandbox
	// (compare Container.SandboxID with Sandbox.ID).
	Containers map[string]Container
	// Dead holds every older CRI container, newest first, in any state; a running one
	// in here is a duplicate that must be stopped.
	Dead []Container
	// Older holds every other sandbox, newest first.
	Older []Sandbox
}

// Empty reports whether the runtime shows nothing at all of this pod.
func (a Actual) Empty() bool {
	return a.Sandbox == nil && len(a.Containers) == 0 && len(a.Dead) == 0 && len(a.Older) == 0
}

// Sandbox is one pod sandbox.
type Sandbox struct {
	ID          string
	Attempt     uint32
	Ready       bool
	HostNetwork bool
	IPs         []string // first is the pod IP; empty on the host network
	CreatedAt   time.Time
	Instance    int    // AnnotationInstance; 0 when unknown
	SpecHash    string // AnnotationSpecHash
	SandboxHash string // AnnotationSandboxHash
	Layer       string // AnnotationLayer
	Grace       int64  // AnnotationGrace, seconds; -1 when unknown
	Labels      map[string]string
	Annotations map[string]string
}

// ContainerState is the state of a container in the runtime.
type ContainerState int

const (
	StateUnknown ContainerState = iota
	StateCreated
	StateRunning
	StateExited
)

func (s ContainerState) String() string {
	return [...]string{"unknown", "created", "running", "exited"}[s]
}

// Container is one CRI container.
type Container struct {
	ID, Name, SandboxID string
	State               ContainerState
	Attempt             uint32 // CRI attempt: equals the restart count
	Restarts            int    // AnnotationRestartCount
	Hash                string // AnnotationContainerHash
	CrashStreak         int    // AnnotationCrashStreak
	Image, ImageID      string
	CreatedAt           time.Time
	StartedAt           time.Time // zero when it never started
	FinishedAt          time.Time // zero unless exited
	ExitCode            int32
	// Reason is the runtime's (Completed, Error, OOMKilled, StartError, …). Message
	// is the termination message (C-1.26.11) where there is one, else the runtime's.
	Reason, Message string
	LogPath         string // on the node, absolute; "" when it has none
	// Resources is AnnotationResources: those it was created with.
	Resources string
	// Placement is AnnotationPlacement, Devices is AnnotationDevices, and Claims is
	// AnnotationClaims: those that it was created with.
	Placement Placement
	Devices   []DeviceAllocation
	Claims    []ClaimAllocation
	// CPUs are those on which it may run now, as "0-3,8"; "" for all, or if the runtime does not
	// report them.
	CPUs string
	// StopSignal is the signal that ends it, as the API writes it; "" is unknown.
	StopSignal string
	// User is the user of its first process; nil where the runtime does not report it.
	User *v1.LinuxContainerUser
	// Recursive are the paths of its recursively read-only mounts.
	Recursive []string
	// PreStop is AnnotationPreStop, for a container whose spec is lost.
	PreStop *v1.LifecycleHandler
}

// MayRun reports whether the container is running or in an unknown state.
func (c Container) MayRun() bool { return c.State == StateRunning || c.State == StateUnknown }

// Health is the probe statuses of one pod, by container name. A missing name has no
// probe of that kind, or no status yet. A status is for one container ID: ignore it for
// any other. The maps are shared and never written to.
type Health struct {
	Ready   map[string]ProbeStatus // readiness
	Live    map[string]ProbeStatus // liveness: only a failure matters
	Started map[string]ProbeStatus // startup: OK opens the other probes, a failure ends the container
}

// ProbeKind names the three probes of a container.
type ProbeKind string

// The kinds, as the API's fields are called.
const (
	Readiness ProbeKind = "readiness"
	Liveness  ProbeKind = "liveness"
	Startup   ProbeKind = "startup"
)

// ProbeStatus is a probe's status (C-1.29.8) for one container ID.
type ProbeStatus struct {
	ContainerID string
	OK          bool
	Message     string // the cause of a failure; empty when OK
}

// Failure is a failed operation of a pod: its reason, which becomes a container's
// waiting reason (C-1.22.9), its message, and the time of the next attempt.
type Failure struct {
	Reason, Message string
	Count           int       // failures in a row
	Until           time.Time // not tried before; zero: at once
	Final           bool      // a retry cannot succeed: a person has to act
}

// ErrUnavailable is wrapped by every error of the runtime adapter when the runtime does
// not answer at all: the state is unknown, and the pod is not the cause.
var ErrUnavailable = errors.New("container runtime does not answer")

// ErrTimeout is wrapped when the runtime accepted a call and did not answer in time:
// the call may still take effect.
var ErrTimeout = errors.New("container runtime did not answer in time")

// StartError is the runtime adapter's error when a sandbox or container cannot be
// created; Reason is a waiting reason (C-1.22.9) or FailedCreatePodSandBox.
type StartError struct {
	Reason string
	Err    error
	// Final says that a retry cannot succeed (ErrImageNeverPull, InvalidImageName,
	// CreateContainerConfigError).
	Final bool
}

func (e *StartError) Error() string { return e.Reason + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// RejectError is the error of a step after which the kubelet rejects a pod that it has admitted. The node
// rejects a pod of an API server, whose controller makes another one elsewhere. Other pods wait.
type RejectError struct {
	Reason, Message string // of the rejection, as the kubelet has them
	Err             error  // why other pods wait
}

func (e *RejectError) Error() string { return e.Err.Error() }
func (e *RejectError) Unwrap() error { return e.Err }

// Mount is one mount of a container, ready for the runtime.
type Mount struct {
	HostPath, ContainerPath string
	ReadOnly                bool
	RecursiveReadOnly       bool   // ReadOnly is set too
	Propagation             string // "", None, HostToContainer, Bidirectional
	Relabel                 bool   // give it the container's SELinux label
	Users                   *Users // map the owners of its files; nil: as they are
	// Image is the reference of an image volume, SubPath a directory in it; HostPath
	// is empty then.
	Image, SubPath string
}

// CreateRequest is one container to create.
type CreateRequest struct {
	Want      *Spec
	Container string
	Sandbox   *Sandbox
	Attempt   uint32 // the restart count
	Streak    int    // crashes in a row before this container
	Place     Place
	// SharedCPUs are the CPUs of a container that has none for itself, "" for all.
	SharedCPUs string
	// Env is the whole environment with all values (Environment), Mounts are all mounts
	// except that of the termination message.
	Env    []v1.EnvVar
	Mounts []Mount
	// Devices are those of plugins, Claims those of ResourceClaims, BlockDevices those of volumes.
	Devices      []DeviceAllocation
	Claims       []ClaimAllocation
	BlockDevices []BlockDevice
}

// RuntimeReady is the readiness that the runtime reports.
type RuntimeReady struct {
	Runtime, Network bool
	// RuntimeMessage and NetworkMessage explain a missing readiness.
	RuntimeMessage, NetworkMessage string
}

// ProbeRequest is one probe to run once.
type ProbeRequest struct {
	Probe       *v1.Probe
	Container   *v1.Container // for named ports
	ContainerID string
	PodIP       string // empty on the host network: the probe goes to loopback
}

// HookRequest is one lifecycle hook to run once: exec, httpGet or sleep (C-1.24).
type HookRequest struct {
	Handler     *v1.LifecycleHandler
	Container   *v1.Container // for named ports; nil when its spec is lost
	ContainerID string
	PodIP       string // empty on the host network: the hook goes to loopback
	Warn        Warn
}

// ProbeWarning is the warning of a probe that succeeds.
type ProbeWarning struct{ Message string }

func (e *ProbeWarning) Error() string { return e.Message }

// ProbeFailure means that the container answered the probe with a failure.
type ProbeFailure struct{ Message string }

func (e *ProbeFailure) Error() string { return e.Message }
