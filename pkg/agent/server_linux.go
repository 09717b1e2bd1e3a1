package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/agent/look"
	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/event"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/server/access"
	"github.com/nodectl/nodectl/pkg/stats"
	"github.com/nodectl/nodectl/pkg/upkeep"
)

// runFor is the time limit of a command run by /run.
const runFor = 10 * time.Minute

// serverConfig returns the configuration of the server, on the local socket and, if configured, on
// a TLS port. serving has the certificate of the port; it is nil without a port.
func (a *Agent) serverConfig(e *engine.Engine, m *member, images *image.Inventory, measured *stats.Stats, up *upkeep.Upkeep, workloads *controller.Controller) (s server.Config, serving *certificate.Serving, err error) {
	cfg := a.cfg
	s = documents(cfg, e.Live())
	s.Node, s.Containers, s.Control, s.Stats = ofNode{a, m, images, up}, inContainers{a}, control{e, a.halts}, statistics{measured}
	s.Explainer = a.newExplainer(e.Live())
	s.Images = imageControl{images, a.runtime.puller, a.runtime.ImageEndpoint()}
	s.Metrics, s.ProbeMetrics = a.metrics.Handler(), a.metrics.Probes()
	s.ResourceMetrics, s.CadvisorMetrics = measured.Resource(), measured.Cadvisor()
	s.Devices = func() []server.DeviceResource { return deviceList(a.devices) }
	s.Workloads = workloadAnswers{workloads, cfg.NodeName, record.NewWorkloads(cfg.RootDir)}
	s.Allocations = allocations(a.newPodResources(e.Live().Pods))
	s.Configz, s.Counted = cfg.Configz, a.metrics.Request
	s.Checks = map[string]func(context.Context) error{"syncloop": e.Beat, "pleg": a.runtime.hints.Beat}
	s.CheckpointDir = filepath.Join(cfg.RootDir, "checkpoints")
	s.Profiling, s.DebugFlags, s.SetVerbosity = cfg.EnableProfilingHandler, cfg.EnableDebugFlagsHandler, cfg.SetVerbosity
	if cfg.EnableSystemLogHandler {
		s.SystemLogs, s.LogQuery = "/var/log", cfg.EnableSystemLogQuery
	}
	s.NoDebugging, s.StreamIdle = !cfg.EnableDebuggingHandlers, cfg.StreamingConnectionIdleTimeout
	s.Audit = filepath.Join(cfg.RootDir, "audit.jsonl")
	if cfg.HealthzPort > 0 {
		s.Health = net.JoinHostPort(cfg.HealthzBindAddress, strconv.Itoa(cfg.HealthzPort))
	}
	if cfg.ServerPort() == 0 {
		return s, nil, nil
	}
	var api *rest.Config
	if m != nil {
		api = a.api.rest(a.metrics)
	}
	s.Access, err = access.New(access.Config{
		Node: cfg.NodeName, API: api, ClientCAFile: cfg.ClientCAFile, Log: a.log,
		TokensFor: cfg.TokenCacheTTL, AllowedFor: cfg.AuthorizedCacheTTL, DeniedFor: cfg.UnauthorizedCacheTTL,
	})
	if err != nil {
		return s, nil, look.Fail(look.Usage, fmt.Errorf("--port: %w", err))
	}
	serving, err = certificate.NewServing(certificate.ServingConfig{
		Node: cfg.NodeName, Addresses: a.addresses, CertFile: cfg.TLSCertFile, KeyFile: cfg.TLSPrivateKeyFile,
		Rotate: cfg.RotateServerCertificates && api != nil, API: api, Dir: cfg.Certificates(), Log: a.log,
	})
	if err != nil {
		return s, nil, look.Fail(look.Usage, fmt.Errorf("--tls-cert-file: %w", err))
	}
	s.TLS = &server.TLS{
		Address:     net.JoinHostPort(cfg.Address, strconv.Itoa(cfg.ServerPort())),
		Certificate: serving.Certificate, MinVersion: cfg.MinTLS(), CipherSuites: cfg.CipherSuites(),
	}
	return s, serving, nil
}

// statistics implements server.Stats.
type statistics struct{ *stats.Stats }

// Summary implements server.Stats.
func (s statistics) Summary(ctx context.Context, only bool) (any, error) {
	return s.Stats.Summary(ctx, only)
}

// inContainers implements server.Containers.
type inContainers struct{ *Agent }

// ExecURL implements server.Containers.
func (a inContainers) ExecURL(ctx context.Context, of *v1.Pod, container string, command []string, s server.Streams) (*url.URL, error) {
	return a.runtime.ExecURL(ctx, string(of.UID), container, command, cri.Streams(s))
}

// AttachURL implements server.Containers.
func (a inContainers) AttachURL(ctx context.Context, of *v1.Pod, container string, s server.Streams) (*url.URL, error) {
	return a.runtime.AttachURL(ctx, string(of.UID), container, cri.Streams(s))
}

// PortForwardURL implements server.Containers.
func (a inContainers) PortForwardURL(ctx context.Context, of *v1.Pod) (*url.URL, error) {
	return a.runtime.PortForwardURL(ctx, string(of.UID))
}

// Checkpoint implements server.Containers.
func (a inContainers) Checkpoint(ctx context.Context, of *v1.Pod, container, path string, timeout time.Duration) error {
	return a.runtime.CheckpointContainer(ctx, string(of.UID), container, path, timeout)
}

// addresses returns the addresses of the Node object.
func (a *Agent) addresses() []v1.NodeAddress {
	return a.observer.Addresses(context.Background())
}

// ofNode implements server.Node; m is nil on a node without a cluster.
type ofNode struct {
	*Agent
	m      *member
	images *image.Inventory
	upkeep *upkeep.Upkeep
}

// Node implements server.Node.
func (a ofNode) Node(ctx context.Context) (*v1.Node, error) {
	if a.m == nil {
		return a.observer.Look(ctx), nil
	}
	return a.observer.Node(ctx, a.m.presence.Node()), nil
}

// Events implements server.Node: the existing events and, with watch, later ones.
func (a ofNode) Events(ctx context.Context, watch bool) iter.Seq2[string, *v1.Event] {
	return func(yield func(string, *v1.Event) bool) {
		if !watch {
			for _, e := range a.events.List(event.Filter{}) {
				if !yield(event.Added, &e) {
					return
				}
			}
			return
		}
		for how, e := range a.events.Watch(ctx, event.Filter{}) {
			if !yield(how, &e) {
				return
			}
		}
	}
}

// RunningPods implements server.Node: the pods in the runtime, desired or not, with their running
// containers.
func (a ofNode) RunningPods(ctx context.Context) ([]*v1.Pod, error) {
	have, err := a.runtime.Pods(ctx)
	if have == nil {
		return nil, err
	}
	var all []*v1.Pod
	for _, found := range have {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: found.Namespace, Name: found.Name, UID: types.UID(found.UID)}}
		for _, name := range slices.Sorted(maps.Keys(found.Containers)) {
			if c := found.Containers[name]; c.State == pod.StateRunning {
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: c.Image})
			}
		}
		if len(p.Spec.Containers) > 0 || found.Sandbox != nil && found.Sandbox.Ready {
			all = append(all, p)
		}
	}
	return all, nil
}

// Images implements server.Node.
func (a ofNode) Images(ctx context.Context) ([]server.Image, error) { return imageList(ctx, a.images) }

// Reclaim implements server.Node.
func (a ofNode) Reclaim(ctx context.Context, assume []string) (server.Reclaim, error) {
	return reclaimForecast(ctx, a.upkeep, evictPolicy(a.cfg), assume)
}

// statusError turns an engine's error into a *server.StatusError.
func statusError(err error) error {
	var refused *engine.RefusedError
	switch {
	case errors.Is(err, engine.ErrNoPod):
		return &server.StatusError{Code: http.StatusNotFound, Message: err.Error()}
	case errors.As(err, &refused):
		return &server.StatusError{Code: http.StatusConflict, Message: refused.Error()}
	}
	return err
}

// control implements server.Control.
type control struct {
	*engine.Engine
	halts *halter
}

// Restart implements server.Control.
func (c control) Restart(ctx context.Context, namespace, name string, containers []string, grace *int64) error {
	return statusError(c.Engine.Restart(ctx, pod.Key{Namespace: namespace, Name: name}, containers, grace))
}

// Delete implements server.Control.
func (c control) Delete(ctx context.Context, namespace, name, uid string, grace *int64) error {
	return statusError(c.Engine.Delete(ctx, pod.Key{Namespace: namespace, Name: name}, uid, grace))
}

// Logs implements server.Containers.
func (a inContainers) Logs(ctx context.Context, w io.Writer, l server.LogRequest) error {
	path, err := a.runtime.LogPath(ctx, l.ContainerID)
	if err != nil {
		return err
	}
	below, err := filepath.Rel(a.cfg.PodLogsDir, path)
	if err != nil {
		return err
	}
	return logs.Read(ctx, w, logs.File{Dir: a.cfg.PodLogsDir, Path: below}, logs.Options{
		Stdout: l.Stdout, Stderr: l.Stderr, Timestamps: l.Timestamps, Tail: l.Tail, Since: l.Since, Limit: l.Limit, Follow: l.Follow, Ended: l.Ended,
	})
}

// Run implements server.Containers.
func (a inContainers) Run(ctx context.Context, of *v1.Pod, container string, command []string) ([]byte, error) {
	id, err := a.runtime.RunningContainer(ctx, string(of.UID), container)
	if err != nil {
		return nil, err
	}
	code, out, err := a.runtime.ExecSync(ctx, id, command, runFor)
	if err == nil && code != 0 {
		err = fmt.Errorf("command exited with %d: %s", code, out)
	}
	return out, err
}
