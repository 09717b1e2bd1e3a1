// Package cri is the client of a container runtime over CRI v1: it turns Specs into sandboxes and
// containers, and the runtime's lists into Actuals.
//
// The engine's workers read and change pods only through it; pleg uses its event stream and
// its cheap relist; probes use ExecSync.
//
// Every call except the event stream has a deadline of its own. Reads, image pulls and the wait
// for a stop end with the caller's context. Any other call continues after its caller has
// returned, for as long as an agent that exits can wait. Otherwise a call that is cut off could
// leave half a sandbox and a reserved name.
//
// Numbers such as C-1.22.9 and F26 are explained in docs/contract.md.
package cri

import (
	"cmp"
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

	"github.com/nodectl/nodectl/pkg/pod"
)

// Config is the configuration of a Runtime.
type Config struct {
	// Endpoint is the runtime's socket: "unix:///run/containerd/containerd.sock"
	// or a plain absolute path.
	Endpoint string
	// ImageEndpoint is the socket of the image service; empty is Endpoint.
	ImageEndpoint string
	// Node is the value of pod.LabelNode: sandboxes and containers with another value, or
	// none, are ignored.
	Node string
	// PodLogsDir is where pods log: "<PodLogsDir>/<ns>_<name>_<uid>/<container>/
	// <attempt>.log" (C-1.22.10). Empty keeps no logs.
	PodLogsDir string
	// ContainerLogsDir is where log collectors look: every container has a link
	// "<pod>_<ns>_<container>-<id>.log" there (C-1.22.10). Empty disables the links.
	ContainerLogsDir string
	// RootDir is the agent's directory for termination messages:
	// "<RootDir>/pods/<uid>/containers/<container>/<attempt>" (C-1.26.11). If it is empty
	// there are none.
	RootDir string
	// CgroupParent is the cgroup that pods are made under: a path ("/pods") for every
	// driver, or a slice for the systemd driver. Empty leaves it to the runtime.
	CgroupParent string
	// RuntimeHandler is the handler for the sandboxes of pods without a class; empty is the
	// runtime's default.
	RuntimeHandler string
	// RuntimeClasses maps classes (spec.runtimeClassName) to handlers. A class that is not
	// in it is itself the name of a handler.
	RuntimeClasses map[string]string
	// RuntimeClass returns the handler of a class that is not in RuntimeClasses, from an
	// API server. ok is false if the server has no such class; an error says that the
	// server did not answer. Nil without an API server.
	RuntimeClass func(ctx context.Context, name string) (handler string, ok bool, err error)
	// SeccompDir is the directory of pods' seccomp profiles. If it is empty, a pod that
	// names a profile cannot be made.
	SeccompDir string
	// PauseProfile returns the path of the seccomp profile for the process of a sandbox. The
	// path "" selects the runtime's default, and so does a nil PauseProfile. It is set only
	// for a runtime whose pause program is known.
	PauseProfile func() (path string, err error)
	// ClusterDomain is the suffix of the full names of pods with a subdomain (C-1.38.6),
	// and a search domain of pods that use the cluster's DNS (C-1.38.7).
	ClusterDomain string
	// ClusterDNS are the addresses of the cluster's DNS servers; empty without a cluster.
	ClusterDNS []string
	// OwnDNS returns the addresses of the node's own DNS server, and its domain, while it runs; nil
	// if the node has none. It is called once for each sandbox, and may wait. ClusterDNS wins.
	OwnDNS func() (servers []string, domain string)
	// ResolvConf is the file that pods' resolver configuration starts from; nil is
	// /etc/resolv.conf. "" means no file: pods then resolve over their own loopback only
	// (C-1.38.7).
	ResolvConf *string
	// NodeMemory is the machine's memory in bytes, for the OOM score of
	// burstable containers (C-1.22.13); 0 reads it from the kernel once.
	NodeMemory int64
	// OneDisk says that Filesystems reports the file system of images for writable layers, too.
	OneDisk bool
	// Enforce is how the kernel enforces the resources of containers.
	Enforce pod.Enforcement
	// EndTask kills the processes of a container that the runtime lists as exited although
	// they run: until they end, it refuses to remove the container (F1). nil if that is
	// impossible.
	EndTask func(ctx context.Context, id string) error
	// OnCall is called with the name of every call before it is made ("ListContainers");
	// may be nil. It is called from many goroutines.
	OnCall func(method string)
	// Observe is called after every call over a connection that Dial made; may be nil. It
	// is called from many goroutines and must not wait.
	Observe func(Call)
	// Log gets messages beside the returned errors; nil discards them.
	Log *slog.Logger
	// Timeouts are the deadlines of calls; zero fields take their defaults.
	Timeouts Timeouts
}

// DefaultRead is the default timeout of lists and statuses.
const DefaultRead = 10 * time.Second

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
		t.Read = DefaultRead
	}
	if t.Pull <= 0 {
		t.Pull = 30 * time.Minute
	}
	return t
}

// Runtime is a container runtime reached over CRI. It caches nothing about pods: every
// answer is read from the runtime. Its methods may be called from many goroutines.
type Runtime struct {
	cfg   Config
	rt    runtimeapi.RuntimeServiceClient
	img   runtimeapi.ImageServiceClient
	conns []*grpc.ClientConn // none when made by New
	node  *node

	machine machine

	seen sync.Map // pod.Key → uint64, see Seen

	cgroups     atomic.Pointer[cgroupNaming] // nil: not known
	cgroupsRead atomic.Bool                  // cgroups was read from the present runtime

	features atomic.Pointer[features] // of the present runtime; nil: not known
}

const (
	maxMessage   = 64 << 20               // the CRI floor is 16 MiB; lists of thousands of containers need more
	firstBackoff = 100 * time.Millisecond // a restarted runtime is found quickly
	maxBackoff   = time.Second
)

// Dial returns a Runtime for the socket cfg.Endpoint names. It does no I/O: the first call
// connects, and later calls reconnect. While the socket does not answer, calls fail at once
// with ErrUnavailable. Close closes the connection.
func Dial(cfg Config) (*Runtime, error) {
	cfg.ImageEndpoint = cmp.Or(cfg.ImageEndpoint, cfg.Endpoint)
	for _, endpoint := range []*string{&cfg.Endpoint, &cfg.ImageEndpoint} {
		path, err := socketPath(*endpoint)
		if err != nil {
			return nil, err
		}
		*endpoint = "unix://" + path
	}
	conn, err := connect(cfg, cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	conns, images := []*grpc.ClientConn{conn}, conn
	if cfg.ImageEndpoint != cfg.Endpoint {
		if images, err = connect(cfg, cfg.ImageEndpoint); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conns = append(conns, images)
	}
	r := New(cfg, runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(images))
	r.conns = conns
	return r, nil
}

// connect returns the connection to a socket; the first call over it connects.
func connect(cfg Config, endpoint string) (*grpc.ClientConn, error) {
	var options []grpc.DialOption
	if cfg.Observe != nil {
		options = append(options, grpc.WithUnaryInterceptor(observed(cfg.Observe)))
	}
	conn, err := grpc.NewClient(endpoint, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0), // the event stream keeps it in use
	)...)
	if err != nil {
		return nil, fmt.Errorf("container runtime endpoint %q: %w", endpoint, err)
	}
	return conn, nil
}

// New returns a Runtime that uses the given clients, as tests do in process.
func New(cfg Config, rt runtimeapi.RuntimeServiceClient, img runtimeapi.ImageServiceClient) *Runtime {
	cfg.Timeouts = cfg.Timeouts.orDefaults()
	for _, dir := range []*string{&cfg.PodLogsDir, &cfg.ContainerLogsDir, &cfg.RootDir, &cfg.SeccompDir} {
		if *dir != "" {
			*dir = filepath.Clean(*dir) // they are compared with the runtime's paths
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{cfg: cfg, rt: rt, img: img, machine: thisMachine(), node: newNode(cfg.SeccompDir)}
	r.machine.enforce = cfg.Enforce
	if cfg.NodeMemory > 0 {
		r.machine.memory = cfg.NodeMemory
	}
	return r
}

// Close closes the connections; calls in flight fail. Containers keep running.
func (r *Runtime) Close() error {
	var failed []error
	for _, conn := range r.conns {
		failed = append(failed, conn.Close())
	}
	return errors.Join(failed...)
}

// Endpoint returns the socket as messages name it.
func (r *Runtime) Endpoint() string { return r.cfg.Endpoint }

// ImageEndpoint returns the socket of the image service.
func (r *Runtime) ImageEndpoint() string { return r.cfg.ImageEndpoint }

// socketPath returns the absolute path of a unix socket endpoint.
func socketPath(endpoint string) (string, error) {
	path, found := strings.CutPrefix(endpoint, "unix://")
	switch {
	case endpoint == "":
		return "", errors.New("container runtime endpoint is empty")
	case !found && strings.Contains(endpoint, "://"):
		return "", fmt.Errorf("container runtime endpoint %q: only unix sockets are supported", endpoint)
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("container runtime endpoint %q: the socket's path must be absolute", endpoint)
	}
	return filepath.Clean(path), nil
}
