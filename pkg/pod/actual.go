package pod

import (
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Labels and annotations nodectl writes on sandboxes and containers. The
// io.kubernetes.* names are the kubelet's (C-1.22.11), so that crictl, log
// collectors and monitoring find what they expect.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
	// LabelNode carries the node name. Only what carries it with our node's
	// name is ever touched.
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

	AnnotationTerminationPolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStop           = "io.kubernetes.container.preStopHandler" // JSON of a v1.LifecycleHandler

	// Annotations of a Pod object that the kubelet owns (C-1.4).
	AnnotationConfigSource = "kubernetes.io/config.source"
	AnnotationConfigSeen   = "kubernetes.io/config.seen"
	AnnotationConfigHash   = "kubernetes.io/config.hash"
	AnnotationConfigMirror = "kubernetes.io/config.mirror"
)

// Actual ("have") is what the runtime shows for one key, read now. It is never
// kept as truth beyond the decision it was read for.
type Actual struct {
	Key
	UID string
	// Sandbox is the newest sandbox (by attempt, then creation time); nil when
	// there is none.
	Sandbox *Sandbox
	// Containers holds the newest record per container name, whatever sandbox
	// it belongs to (compare Container.SandboxID with Sandbox.ID).
	Containers map[string]Container
	// Dead holds every older record of a container, newest first, whatever its
	// state; a running one in here is a second life that must be stopped.
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

// ContainerState is the runtime's word for a container.
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

// Container is one record of one container.
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
	// Resources is AnnotationResources: what it was made with.
	Resources string
	// StopSignal is the signal that ends it, as the API writes it; "" is unknown.
	StopSignal string
	// User is who its first process is; nil where the runtime does not say.
	User *v1.LinuxContainerUser
	// Recursive are the paths of its mounts that are read-only with all that is
	// mounted beneath.
	Recursive []string
	// PreStop is AnnotationPreStop: the hook of a container whose spec is lost.
	PreStop *v1.LifecycleHandler
}

// MayRun reports whether the container runs, as far as the runtime knows.
func (c Container) MayRun() bool { return c.State == StateRunning || c.State == StateUnknown }

// Health is the probe statuses of one pod, by container name. A missing name has no
// probe of that kind, or no status yet. A status is for one container ID: ignore it for
// any other. The maps are shared and never written to.
type Health struct {
	Ready   map[string]Verdict // readiness
	Live    map[string]Verdict // liveness: only a failure matters
	Started map[string]Verdict // startup: OK opens the other probes, a failure ends the container
}

// ProbeKind names the three probes of a container.
type ProbeKind string

// The kinds, as the API's fields are called.
const (
	Readiness ProbeKind = "readiness"
	Liveness  ProbeKind = "liveness"
	Startup   ProbeKind = "startup"
)

// Verdict is a probe's published result (C-1.29.8) for one container's life.
type Verdict struct {
	ContainerID string
	OK          bool
	Message     string // why not; empty when OK
}

// Trouble is why something of a pod could not be done: the word that becomes a
// container's waiting reason (C-1.22.9), the text, and when it is tried again.
type Trouble struct {
	Reason, Message string
	Count           int       // failures in a row
	Until           time.Time // not tried before; zero: at once
	Final           bool      // waiting cannot mend it: a person has to
}

// ErrUnavailable is what every verb and look of the runtime adapter wraps when
// the runtime does not answer at all: nothing is known, and nothing is the
// pod's fault.
var ErrUnavailable = errors.New("container runtime does not answer")

// ErrTimeout is what they wrap when the runtime took a call and did not answer it within
// its time: what was asked for may be done all the same.
var ErrTimeout = errors.New("container runtime did not answer in time")

// StartError is what the runtime adapter returns when a pod or container
// cannot be made; Reason is one of C-1.22.9's words or FailedCreatePodSandBox.
type StartError struct {
	Reason string
	Err    error
	// Final says that waiting cannot mend it (ErrImageNeverPull,
	// InvalidImageName, CreateContainerConfigError).
	Final bool
}

func (e *StartError) Error() string { return e.Reason + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Mount is one mount of a container, ready to hand to the runtime.
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

// CreateRequest is one container to make.
type CreateRequest struct {
	Want      *Spec
	Container string
	Sandbox   *Sandbox
	Attempt   uint32 // the restart count
	Streak    int    // crashes in a row before this life
	Place     Place
	// Env is the whole environment with values in place (Environment), Mounts are
	// all mounts but that of the termination message.
	Env    []v1.EnvVar
	Mounts []Mount
}

// RuntimeReady is the runtime's word about itself.
type RuntimeReady struct {
	Runtime, Network bool
	// RuntimeMessage and NetworkMessage say why not.
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

// ProbeWarning is what a probe that succeeds has to tell all the same.
type ProbeWarning struct{ Message string }

func (e *ProbeWarning) Error() string { return e.Message }

// ProbeFailure is the container's own answer to a probe: not well.
type ProbeFailure struct{ Message string }

func (e *ProbeFailure) Error() string { return e.Message }
