package server

import (
	"context"
	"crypto/tls"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
)

// Config has a Server's listeners and limits, and the parts that return its answers.
type Config struct {
	// Socket is the path of the socket, in a directory that only its owner can
	// enter and that no other agent uses.
	Socket string
	// TLS is the TLS listener; nil: there is none.
	TLS *TLS
	// Access authenticates and authorizes callers of the TLS listener. Without one, the
	// server refuses all of them.
	Access Access
	// Health is the address of the health port, such as "127.0.0.1:10248"; "": there is none. The
	// port answers only /healthz, /livez and /readyz, in plain HTTP and without authentication, as
	// kubeadm expects.
	Health string

	// The parts that return the answers. The server answers 501 to a request that needs a nil
	// part.
	Pods       Pods
	Node       Node
	Containers Containers
	Control    Control
	Images     Images
	Stats      Stats
	Explainer  Explainer
	Workloads  Workloads
	// Services lists the Services that this node serves.
	Services func() []Service
	// Devices lists the resources of device plugins.
	Devices func() []DeviceResource
	// Allocations lists the containers that have devices, CPUs or memory for themselves.
	Allocations func(ctx context.Context) ([]Allocation, error)
	// Answering is called once the server has made the socket, or has failed to make it but
	// has other listeners. It may be nil.
	Answering func()
	// PodsRead is closed once the agent has read its pods; nil means that it has. Until then the
	// server answers 503 to a request about a pod that it does not find.
	PodsRead <-chan struct{}
	// The handlers of /metrics, /metrics/resource, /metrics/cadvisor and /metrics/probes. The
	// server answers 501 in place of a nil one.
	Metrics, ResourceMetrics, CadvisorMetrics, ProbeMetrics http.Handler
	// Configz returns the JSON document of /configz, without secrets. If it is nil, the server
	// answers 501.
	Configz func() ([]byte, error)
	// Checks are the checks of /healthz beside ping and log, by name ("syncloop"). A
	// check that returns nil is healthy.
	Checks map[string]func(ctx context.Context) error

	// CheckpointDir is the directory of checkpoints ("<root>/checkpoints"), which the
	// server makes with mode 0700.
	CheckpointDir string
	// MaxCheckpoints limits the checkpoints in the directory. Default 10.
	MaxCheckpoints int

	// Counted is called for every admitted request. path is the route's path up to its first
	// variable ("containerLogs"), as in the kubelet's metrics. stream says that the answer is a
	// stream. end is called when the request ends. Counted may be nil.
	Counted func(method, path string, stream bool) (end func())

	// NoDebugging makes the TLS listener answer 405 to exec, attach, portForward, run,
	// containerLogs, runningpods and the routes below /debug and /logs
	// (enableDebuggingHandlers: false, C-1.40.11).
	NoDebugging bool
	// Profiling and DebugFlags make the TLS listener serve /debug/pprof and /debug/flags/v
	// (C-1.40.13). The socket always serves them.
	Profiling, DebugFlags bool
	// SystemLogs is the directory of /logs/ ("/var/log"); if it is empty, the TLS listener
	// answers 405, the socket 501 (C-1.40.14).
	SystemLogs string
	// LogQuery also answers queries of services on /logs/, from the journal (C-1.40.15).
	LogQuery bool
	// SetVerbosity sets the verbosity of the log, on klog's scale. If it is nil, the server
	// answers 501.
	SetVerbosity func(verbosity int)
	// StreamIdle ends an exec, attach or port-forward that was idle for that long; 0 is the
	// kubelet's 4 h. The agent sets --streaming-connection-idle-timeout, by default 30 min.
	StreamIdle time.Duration

	// Audit is the file of the audit lines ("<root>/audit.jsonl"); "" writes them to the
	// log.
	Audit string

	Log *slog.Logger

	// Streams and Requests limit the streams and the other requests that the socket serves at a
	// time. The defaults are 256, but at most half of Connections, and 64, but at most a quarter.
	Streams, Requests int
	// WriteTimeout is how long a caller may take to read one piece of a stream; default 30 s.
	WriteTimeout time.Duration

	// Connections limits the connections on the socket at a time, including idle ones. The default
	// is 512, but at most half of this process's limit of file descriptors: the agent needs the
	// others for its pods (F10).
	Connections int
}

// Pods provides the sources and pods of a running agent.
type Pods interface {
	// Pods returns every pod of the agent with the status it reports, without mirror pods. The
	// caller must not change the objects.
	Pods() []v1.Pod
	// Pod returns one of them, or nil.
	Pod(namespace, name string) *v1.Pod
	// WatchPods yields every pod as ADDED, a BOOKMARK without a pod, then each change
	// as ADDED, MODIFIED or DELETED, until ctx is done.
	WatchPods(ctx context.Context) iter.Seq2[string, *v1.Pod]
	// Sources returns a JSON document.
	Sources() ([]byte, error)
	// Updates returns the lines of a stream, each a whole JSON document with its
	// newline. The iterator blocks until the next line, and ends after the last one or when
	// ctx is done. If Updates returns an error, the server answers with this error. If the
	// iterator yields an error, the server aborts the stream.
	Updates(ctx context.Context, query url.Values) (iter.Seq2[[]byte, error], error)
}

// Node is the node of the agent.
type Node interface {
	// Node returns the Node object as it is registered with the API server, or as it would be.
	Node(ctx context.Context) (*v1.Node, error)
	// RunningPods returns the pods that the runtime runs, desired or not.
	RunningPods(ctx context.Context) ([]*v1.Pod, error)
	// Images returns the runtime's images.
	Images(ctx context.Context) ([]Image, error)
	// Reclaim returns the steps by which the node would reclaim resources now. Each item of assume
	// replaces how much of a signal is available ("memory.available=50Mi"). It changes nothing.
	Reclaim(ctx context.Context, assume []string) (Reclaim, error)
	// Events yields the existing events as ADDED. With watch it also yields later ones until ctx
	// is done: a new event as ADDED, a repeated one as MODIFIED.
	Events(ctx context.Context, watch bool) iter.Seq2[string, *v1.Event]
}

// Containers reads logs of containers, connects to them, and runs commands in them.
type Containers interface {
	// Logs writes the log of a container to w. If it returns an error before it has written
	// anything, the server answers with the *StatusError, or with 400 and the error's text.
	Logs(ctx context.Context, w io.Writer, l LogRequest) error
	// ExecURL, AttachURL and PortForwardURL return a URL of the runtime's streaming
	// server, which is valid for one connection within a minute. container may be a name that the
	// pod does not have. The server sends the text of the error to its caller, for example that the
	// container is not running.
	ExecURL(ctx context.Context, pod *v1.Pod, container string, command []string, s Streams) (*url.URL, error)
	AttachURL(ctx context.Context, pod *v1.Pod, container string, s Streams) (*url.URL, error)
	PortForwardURL(ctx context.Context, pod *v1.Pod) (*url.URL, error)
	// Run runs a command to its end and returns its stdout and stderr.
	Run(ctx context.Context, pod *v1.Pod, container string, command []string) ([]byte, error)
	// Checkpoint writes a running container to a file at path. timeout is the time limit of the
	// runtime; 0 is the runtime's default. It returns errors.ErrUnsupported if the runtime has
	// no checkpoints.
	Checkpoint(ctx context.Context, pod *v1.Pod, container, path string, timeout time.Duration) error
}

// Control changes pods. An error may be a *StatusError.
type Control interface {
	// Restart stops the named containers of a pod (the running ones if none is named), so that the
	// agent starts them again. grace is in seconds; nil is the pod's own.
	Restart(ctx context.Context, namespace, name string, containers []string, grace *int64) error
	// Delete stops and removes a pod. If uid is not empty, it must be the pod's.
	Delete(ctx context.Context, namespace, name, uid string, grace *int64) error
	// Drain stops all pods, and keeps them stopped over restarts of the agent until Undrain or
	// the next boot. grace limits the grace period of each pod, in seconds; nil is no limit.
	Drain(ctx context.Context, grace *int64) error
	// Undrain lets pods start again.
	Undrain(ctx context.Context) error
}

// Images changes the runtime's images. An error may be a *StatusError.
type Images interface {
	// PullImage pulls an image and returns its ID.
	PullImage(ctx context.Context, name string) (id string, err error)
	// RemoveImage removes an image, by a name or an ID, and returns its names.
	RemoveImage(ctx context.Context, name string) (names []string, err error)
	// PruneImages removes every image that nothing uses. With dryRun it removes none, and
	// returns those that it would remove.
	PruneImages(ctx context.Context, dryRun bool) (ImageRemovals, error)
	// Pulls returns the pulls that run or wait, the oldest first.
	Pulls(ctx context.Context) []ImagePull
}

// Stats measures the node.
type Stats interface {
	// Summary returns the answer to /stats/summary: a *stats.Summary of
	// k8s.io/kubelet/pkg/apis/stats/v1alpha1.
	Summary(ctx context.Context, onlyCPUAndMemory bool) (any, error)
}

// Explainer explains why pods wait.
type Explainer interface {
	// Why returns the report about a pod that waits; ok is false if the agent does not know the
	// pod. It waits at most a few seconds for mounts and calls that hang.
	Why(ctx context.Context, namespace, name string) (r activity.Report, ok bool)
}

// TLS configures the TLS listener and its limits (D2).
type TLS struct {
	// Address is the address to listen on ("0.0.0.0:10250").
	Address string
	// Certificate returns the serving certificate. It is called at every handshake, so
	// that a rotated certificate is used at once.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// MinVersion is tls.VersionTLS13 by default. CipherSuites apply to TLS 1.2 only;
	// nil means Go's.
	MinVersion   uint16
	CipherSuites []uint16

	Connections int // at a time; default 256
	PerPeer     int // connections of one peer (see Peer) at a time; default 32
	Streams     int // at a time; default 64
	Requests    int // at a time, without streams; default 64

	// Bound is called with the address once the server listens; may be nil.
	Bound func(address string)
}

// Streams are the streams of an exec or attach.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// LogRequest is a request for a container's log by /containerLogs (C-1.40.8).
type LogRequest struct {
	Pod       *v1.Pod
	Container string
	// ContainerID is the container's ID in the status of the pod, without the scheme. Attempt is
	// its attempt number, computed from the restart count.
	ContainerID string
	Attempt     int
	Previous    bool

	Follow     bool
	Timestamps bool
	Tail       int64     // lines from the end; negative is all
	Since      time.Time // zero is from the beginning
	Limit      int64     // bytes; negative is all
	Stdout     bool
	Stderr     bool
	// Ended reports whether the container has exited and logs no more.
	Ended func() bool
}

// Image is an image of the runtime, as /v1/images lists it.
type Image struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
	Size  int64    `json:"size"`
	// FirstSeen is when the agent first saw the image, LastUsed when it was last in use (zero:
	// never). UsedBy names the containers and desired pods that use it now.
	FirstSeen time.Time `json:"firstSeen,omitzero"`
	LastUsed  time.Time `json:"lastUsed,omitzero"`
	UsedBy    []string  `json:"usedBy,omitempty"`
	Pinned    bool      `json:"pinned,omitempty"`
	Archive   bool      `json:"archive,omitempty"` // it was imported from a file
}

// Service is a Service that this node serves, as /v1/services lists it. Problems say why it is not
// served as its source has it.
type Service struct {
	Service   v1.Service        `json:"service"`
	Endpoints []ServiceEndpoint `json:"endpoints"`
	Problems  []string          `json:"problems,omitempty"`
}

// ServiceEndpoint is an endpoint of a port of a Service.
type ServiceEndpoint struct {
	Port    string `json:"port"`
	Address string `json:"address"`
	Target  int32  `json:"target"`
	Pod     string `json:"pod"`
	Ready   bool   `json:"ready"`
}

// DeviceResource is an extended resource that a device plugin serves or served, as /v1/devices
// lists it.
type DeviceResource struct {
	Name      string   `json:"name"`
	Connected bool     `json:"connected"` // its plugin is connected
	Socket    string   `json:"socket,omitempty"`
	Devices   []Device `json:"devices"`
}

// Device is a device of a plugin.
type Device struct {
	ID        string       `json:"id"`
	Health    string       `json:"health"` // Healthy, Unhealthy; Unlisted: the plugin does not list it
	NUMANodes []int64      `json:"numaNodes,omitempty"`
	UsedBy    []DeviceUser `json:"usedBy,omitempty"`
}

// DeviceUser is a container that has a device.
type DeviceUser struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

// Allocation has the exclusive CPUs, the NUMA memory and the devices of a container, as
// /v1/allocations lists them. The devices are those of plugins and of ResourceClaims.
type Allocation struct {
	Namespace string             `json:"namespace"`
	Pod       string             `json:"pod"`
	Container string             `json:"container"`
	CPUs      string             `json:"cpus,omitempty"` // such as 2-3,8
	Memory    []AllocatedMemory  `json:"memory,omitempty"`
	Devices   []AllocatedDevices `json:"devices,omitempty"`
	Claims    []AllocatedClaim   `json:"claims,omitempty"`
}

// AllocatedMemory is memory of certain NUMA nodes.
type AllocatedMemory struct {
	Type      string `json:"type"` // memory, hugepages-2Mi
	Bytes     int64  `json:"bytes"`
	NUMANodes []int  `json:"numaNodes"`
}

// AllocatedDevices are devices of a plugin.
type AllocatedDevices struct {
	Resource string   `json:"resource"`
	IDs      []string `json:"ids"`
}

// AllocatedClaim is devices of a ResourceClaim.
type AllocatedClaim struct {
	Name    string        `json:"name"`
	Devices []ClaimDevice `json:"devices"`
}

// ClaimDevice is one device of a driver.
type ClaimDevice struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

// ImagePull is a pull that has not ended, as /v1/pulls lists it.
type ImagePull struct {
	Image   string    `json:"image"` // as pods name it, with a tag or a digest
	Since   time.Time `json:"since"`
	Waiting bool      `json:"waiting,omitempty"` // for other pulls
	// Bytes of Total are downloaded; both are 0 if the runtime does not report them.
	Bytes int64 `json:"bytes,omitempty"`
	Total int64 `json:"total,omitempty"`
}

// ImageRemovals is the answer of /v1/images/prune.
type ImageRemovals struct {
	Removed []ImageRemoval `json:"removed"` // in the order of their removal
	Kept    []ImageRemoval `json:"kept"`
}

// ImageRemoval is an image that PruneImages removed or kept, and why.
type ImageRemoval struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"` // freed by its removal
	Why   string `json:"why"`
}

// Reclaim is the answer of /v1/reclaim: the objects that the node would remove, in rounds.
type Reclaim struct {
	Levels []ReclaimLevel `json:"levels"`
	Rounds []ReclaimRound `json:"rounds"`
}

// ReclaimLevel is the level of one eviction signal.
type ReclaimLevel struct {
	Signal     string             `json:"signal"` // memory.available
	Available  int64              `json:"available"`
	Capacity   int64              `json:"capacity"`
	Assumed    bool               `json:"assumed,omitempty"`
	Thresholds []ReclaimThreshold `json:"thresholds,omitempty"`
}

// ReclaimThreshold is a threshold of a signal.
type ReclaimThreshold struct {
	Limit string `json:"limit"` // "100Mi", "10%"
	Least int64  `json:"least"` // the limit in the unit of the signal
	Grace string `json:"gracePeriod,omitempty"`
	Met   bool   `json:"met"`
}

// ReclaimRound is one round of removals.
type ReclaimRound struct {
	In         string        `json:"in"` // the time from now, such as "1m30s"
	Conditions []string      `json:"conditions,omitempty"`
	Steps      []ReclaimStep `json:"steps"` // in the order of their execution
	// Stuck says why a round without steps can do nothing, although a threshold is met.
	Stuck string `json:"stuck,omitempty"`
}

// ReclaimStep is a removal, and why.
type ReclaimStep struct {
	Action string `json:"action"` // remove-container, remove-sandbox, remove-image, evict-pod
	ID     string `json:"id"`     // of the container, sandbox or image; the UID of the pod
	Name   string `json:"name,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Bytes  int64  `json:"bytes"` // freed on disks
	Grace  int64  `json:"gracePeriodSeconds,omitempty"`
	Why    string `json:"why"`
}
