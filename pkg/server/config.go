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
)

// Config is what a Server answers, and where. A function that is nil has no answer:
// what it is asked for is 501.
type Config struct {
	// Socket is the path of the socket, in a directory that only its owner can
	// enter and that nobody else serves.
	Socket string
	// TLS is the other listener; nil has none, and nothing listens on TCP.
	TLS *TLS
	// Access says who may do what on the TLS listener. Without one, nobody may do
	// anything.
	Access Access
	// Health is an address such as "127.0.0.1:10248" that answers /healthz and
	// nothing else, in plain HTTP and to anybody, as kubeadm asks it; empty has none.
	Health string

	// Updates returns the lines of a stream, each a whole JSON document with its
	// newline; they end when there are no more, or with ctx. Taking one blocks
	// while there is nothing to say. An error in place of the lines is the answer,
	// a *Refusal in its own words; one among the lines breaks the stream off.
	Updates func(ctx context.Context, query url.Values) (iter.Seq2[[]byte, error], error)
	// Sources returns a JSON document.
	Sources func() ([]byte, error)

	// Pods returns every pod the agent knows, with the status it reports, mirrors
	// left out. What they point to is shared and not written to.
	Pods func() []v1.Pod
	// Pod returns one of them; nil is one it does not know.
	Pod func(namespace, name string) *v1.Pod
	// WatchPods yields every pod as ADDED, a BOOKMARK of none, then each change as
	// ADDED, MODIFIED or DELETED, until ctx is done.
	WatchPods func(ctx context.Context) iter.Seq2[string, *v1.Pod]
	// Answering is called once the socket answers, or cannot be made where something else
	// is served; nil: nobody waits for that.
	Answering func()
	// Known is closed once the agent has looked at the pods there are; nil: it has. Until
	// then nobody is told that there is no such pod.
	Known <-chan struct{}
	// RunningPods returns what the runtime runs, whoever wants it.
	RunningPods func(ctx context.Context) ([]*v1.Pod, error)
	// Node returns the node as it is, or would be, registered.
	Node func(ctx context.Context) (*v1.Node, error)
	// Events yields the events there are as ADDED; with watch also those to come, as
	// ADDED or MODIFIED (a repeat), until ctx is done.
	Events func(ctx context.Context, watch bool) iter.Seq2[string, *v1.Event]
	// Images returns what the runtime has.
	Images func(ctx context.Context) ([]Image, error)
	// Restart ends containers of a pod, all when none is named, so that they are
	// started again; Delete ends a pod, of this UID unless that is empty. grace is
	// in seconds; nil is the pod's own. A *Refusal is answered in its own words.
	Restart func(ctx context.Context, namespace, name string, containers []string, grace *int64) error
	Delete  func(ctx context.Context, namespace, name, uid string, grace *int64) error

	// Summary returns what /stats/summary says: a *stats.Summary of
	// k8s.io/kubelet/pkg/apis/stats/v1alpha1.
	Summary func(ctx context.Context, onlyCPUAndMemory bool) (any, error)
	// The texts of /metrics, /metrics/resource, /metrics/cadvisor, /metrics/probes.
	Metrics, ResourceMetrics, CadvisorMetrics, ProbeMetrics http.Handler
	// Configz returns the JSON document of /configz, secrets left out.
	Configz func() ([]byte, error)
	// Checks are what /healthz asks beside ping and log, by name ("syncloop"): nil is
	// healthy.
	Checks map[string]func(ctx context.Context) error

	// Logs writes what a container logged. An error before the first byte is the
	// answer (400, or a *Refusal's own code).
	Logs func(ctx context.Context, w io.Writer, l Log) error
	// ExecURL, AttachURL and PortForwardURL return where the runtime streams, for one
	// connection within a minute. container is one of pod's; that it does not run is
	// an error, in words for the caller.
	ExecURL        func(ctx context.Context, pod *v1.Pod, container string, command []string, s Streams) (*url.URL, error)
	AttachURL      func(ctx context.Context, pod *v1.Pod, container string, s Streams) (*url.URL, error)
	PortForwardURL func(ctx context.Context, pod *v1.Pod) (*url.URL, error)
	// Run runs a command to its end and returns what it wrote, stdout and stderr.
	Run func(ctx context.Context, pod *v1.Pod, container string, command []string) ([]byte, error)
	// Checkpoint writes a running container to a file at path. timeout is for the
	// runtime; 0 is its default. errors.ErrUnsupported is a runtime that cannot.
	Checkpoint func(ctx context.Context, pod *v1.Pod, container, path string, timeout time.Duration) error
	// CheckpointDir is where checkpoints are kept ("<root>/checkpoints"): made when
	// needed, 0700.
	CheckpointDir string
	// MaxCheckpoints is how many are kept there; one more is refused. Default 10.
	MaxCheckpoints int

	// Counted is told of every request that is answered, with the kubelet's word for its
	// path ("containerLogs") and whether it is a stream; what it returns is called at the
	// end. nil: nobody counts.
	Counted func(method, path string, long bool) (end func())

	// NoDebugging answers 405 on the TLS listener to exec, attach, portForward, run,
	// containerLogs and runningpods (enableDebuggingHandlers: false, C-1.40.11).
	NoDebugging bool
	// StreamIdle ends an exec, attach or port-forward in which nothing was sent for
	// so long; default 4 h (--streaming-connection-idle-timeout).
	StreamIdle time.Duration

	// Audit is the file of the audit lines ("<root>/audit.jsonl"); "" writes them to the
	// log.
	Audit string

	Log *slog.Logger

	Streams  int           // on the socket at a time; default 256, or half the connections
	Requests int           // on the socket at a time, streams besides; default 64, or a quarter of them
	Patience time.Duration // how long a reader may take over one line; default 30 s

	// Connections on the socket at a time, whether they ask for anything or not;
	// default 512, or half of what this process may open: readers are hung up before
	// the agent has no file descriptor left for its pods (F10).
	Connections int
}

// TLS is the listener for others. Its limits are those of D2.
type TLS struct {
	// Address is what it listens on ("0.0.0.0:10250").
	Address string
	// Certificate returns the certificate to show, asked at every handshake, so that a
	// rotated one is used at once.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// MinVersion is tls.VersionTLS13 by default; CipherSuites count for TLS 1.2 only,
	// where nil takes Go's.
	MinVersion   uint16
	CipherSuites []uint16

	Connections int // default 256
	PerPeer     int // connections of one address; default 32
	Streams     int // default 64
	Requests    int // default 64

	// Bound is told the address once it listens; may be nil.
	Bound func(address string)
}

// Streams are the streams of an exec or attach.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// Log is what a caller of /containerLogs wants to read (C-1.40.8).
type Log struct {
	Pod       *v1.Pod
	Container string
	// ContainerID is the life whose log it is, as the status has it without its
	// scheme; Attempt is its number as far as the status tells.
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
	// Ended reports whether the container has ended, so that nothing more comes.
	Ended func() bool
}

// Image is an image of the runtime, as /v1/images lists it.
type Image struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
	Size  int64    `json:"size"`
}
