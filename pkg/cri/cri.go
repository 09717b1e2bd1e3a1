// Package cri speaks to a container runtime over CRI v1: it turns Specs into
// sandboxes and containers, and what the runtime lists into Actuals.
//
// The engine's workers use it as their one way to look and to act; pleg uses
// its event stream and its cheap relist; probes use ExecSync.
//
// The one rule: every call has a deadline of its own. A call that changes
// something goes on when its caller leaves, for as long as a leaving agent may
// take (else: half a sandbox and a reserved name); only reads, image pulls and
// the wait for a stop end with the caller's context.
package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Config is what a Runtime has to know.
type Config struct {
	// Endpoint is the runtime's socket: "unix:///run/containerd/containerd.sock"
	// or a plain absolute path.
	Endpoint string
	// Node is the value of pod.LabelNode: what carries another value, or none,
	// is never seen.
	Node string
	// PodLogsDir is where pods log: "<PodLogsDir>/<ns>_<name>_<uid>/<container>/
	// <attempt>.log" (C-1.22.10). Empty keeps no logs.
	PodLogsDir string
	// ContainerLogsDir is where log collectors look: every container has a link
	// "<pod>_<ns>_<container>-<id>.log" there (C-1.22.10). Empty makes none.
	ContainerLogsDir string
	// RootDir is the agent's directory, in which termination messages are kept:
	// "<RootDir>/pods/<uid>/containers/<container>/<attempt>" (C-1.26.11). Empty
	// keeps and reads none.
	RootDir string
	// CgroupParent is the cgroup that pods are made under, as a path ("/pods"),
	// whatever the runtime's driver, or as a slice where that is systemd; empty
	// leaves it to the runtime.
	CgroupParent string
	// RuntimeHandler names the runtime's handler for the sandboxes of pods without a
	// class; empty is its default.
	RuntimeHandler string
	// RuntimeClasses are the handlers of classes (spec.runtimeClassName). A class
	// that is not in it names a handler itself.
	RuntimeClasses map[string]string
	// RuntimeClass returns the handler of a class that RuntimeClasses has not, as an
	// API server knows it; ok is false where it has no such class, and an error says
	// that it could not be asked. Nil where there is no API server.
	RuntimeClass func(ctx context.Context, name string) (handler string, ok bool, err error)
	// SeccompDir is the directory in which pods' seccomp profiles lie; empty has
	// none, and a pod that names one cannot be made.
	SeccompDir string
	// PauseProfile returns the path of the seccomp profile for the process of a sandbox;
	// "" and nil have the runtime's default. Only a runtime whose pause program is known
	// can have one.
	PauseProfile func() (path string, err error)
	// ClusterDomain is the end of the full names of pods with a subdomain (C-1.38.6),
	// and of what pods on the cluster's DNS find by a short name (C-1.38.7).
	ClusterDomain string
	// ClusterDNS are the addresses of the cluster's DNS servers; none where there is
	// no cluster.
	ClusterDNS []string
	// ResolvConf is the file that pods' resolver configuration starts from; nil is
	// /etc/resolv.conf, and "" says that there is none: pods ask nobody but their own
	// loopback (C-1.38.7).
	ResolvConf *string
	// NodeMemory is the machine's memory in bytes, for the OOM score of
	// burstable containers (C-1.22.13); 0 reads it from the kernel once.
	NodeMemory int64
	// EndTask ends what the runtime still runs of a container that it shows as ended
	// and therefore refuses to remove (F1); nil where there is no way to.
	EndTask func(ctx context.Context, id string) error
	// OnCall is told the name of every call before it is made ("ListContainers");
	// may be nil. It is called from many goroutines.
	OnCall func(method string)
	// Observe is told of every call over a connection that Dial made, when it has
	// ended; may be nil. It is called from many goroutines and must not wait.
	Observe func(Call)
	// Log gets what is worth saying beside errors; nil is silent.
	Log *slog.Logger
	// Timeouts are the deadlines of calls; zero fields take their defaults.
	Timeouts Timeouts
}

// Timeouts are the deadlines of calls to the runtime.
type Timeouts struct {
	Call time.Duration // calls that change something; 2 min. StopContainer has its grace on top
	Read time.Duration // lists and statuses; 10 s
	Pull time.Duration // image pulls; 30 min
}

func (t Timeouts) orDefaults() Timeouts {
	if t.Call <= 0 {
		t.Call = 2 * time.Minute
	}
	if t.Read <= 0 {
		t.Read = 10 * time.Second
	}
	if t.Pull <= 0 {
		t.Pull = 30 * time.Minute
	}
	return t
}

// Runtime is a container runtime reached over CRI. It holds no truth about
// pods: every answer is read from the runtime when asked. Its methods may be
// called from many goroutines.
type Runtime struct {
	cfg  Config
	rt   runtimeapi.RuntimeServiceClient
	img  runtimeapi.ImageServiceClient
	conn *grpc.ClientConn // nil when made by New
	node *node

	machine machine

	seen sync.Map // pod.Key → uint64, see Seen

	where  atomic.Pointer[place] // how the runtime names cgroups; nil: not known
	placed atomic.Bool           // the runtime that answers now was asked for that

	features atomic.Pointer[features] // of the runtime that answers now; nil: not known
}

const (
	maxMessage   = 64 << 20               // the CRI floor is 16 MiB; lists of thousands of containers need more
	firstBackoff = 100 * time.Millisecond // a restarted runtime is found quickly
	maxBackoff   = time.Second
)

// Dial returns a Runtime for the socket cfg.Endpoint names. It does no I/O: the
// connection is made by the first call, and made again after it broke. While
// the socket does not answer, calls fail at once with ErrUnavailable. Close
// ends it.
func Dial(cfg Config) (*Runtime, error) {
	path, err := socketPath(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	cfg.Endpoint = "unix://" + path
	var options []grpc.DialOption
	if cfg.Observe != nil {
		options = append(options, grpc.WithUnaryInterceptor(observed(cfg.Observe)))
	}
	conn, err := grpc.NewClient(cfg.Endpoint, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0), // the event stream keeps it in use; a reconnect after idleness would only cost
	)...)
	if err != nil {
		return nil, fmt.Errorf("container runtime endpoint %q: %w", cfg.Endpoint, err)
	}
	r := New(cfg, runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn))
	r.conn = conn
	return r, nil
}

// New returns a Runtime that speaks through the given clients, as tests do in
// process.
func New(cfg Config, rt runtimeapi.RuntimeServiceClient, img runtimeapi.ImageServiceClient) *Runtime {
	cfg.Timeouts = cfg.Timeouts.orDefaults()
	for _, dir := range []*string{&cfg.PodLogsDir, &cfg.ContainerLogsDir, &cfg.RootDir, &cfg.SeccompDir} {
		if *dir != "" {
			*dir = filepath.Clean(*dir) // paths are compared with what the runtime says
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{cfg: cfg, rt: rt, img: img, machine: thisMachine(), node: newNode(cfg.SeccompDir)}
	if cfg.NodeMemory > 0 {
		r.machine.memory = cfg.NodeMemory
	}
	return r
}

// Close drops the connection; calls in flight fail. Containers go on.
func (r *Runtime) Close() error {
	if r.conn == nil {
		return nil
	}
	return r.conn.Close()
}

// Endpoint returns the socket as messages name it.
func (r *Runtime) Endpoint() string { return r.cfg.Endpoint }

// socketPath returns the absolute path of a unix socket endpoint.
func socketPath(endpoint string) (string, error) {
	path, found := strings.CutPrefix(endpoint, "unix://")
	switch {
	case endpoint == "":
		return "", errors.New("container runtime endpoint is empty")
	case !found && strings.Contains(endpoint, "://"):
		return "", fmt.Errorf("container runtime endpoint %q: only unix sockets are spoken to", endpoint)
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("container runtime endpoint %q: the socket's path must be absolute", endpoint)
	}
	return filepath.Clean(path), nil
}
