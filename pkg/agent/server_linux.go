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

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/certificate"
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

// runTimeout is the time limit of a command run by /run.
const runTimeout = 10 * time.Minute

// serverConfig returns the configuration of the server: for the local socket and, if configured, for
// a TLS port. It sets s.certificate if there is a TLS port.
func (s *serving) serverConfig() (c server.Config, err error) {
	a, cfg := s.Agent, s.cfg
	c = feedConfig(cfg, s.live)
	c.Node, c.Containers, c.Control, c.Stats = nodeAnswers{a, s.member, s.images, s.upkeep}, containerAnswers{a}, control{s.engine, s.halts}, statsAnswers{s.stats}
	c.Explainer = a.newExplainer(s.live)
	c.Images = imageControl{s.images, s.runtime.puller, s.runtime.ImageEndpoint()}
	c.Metrics, c.ProbeMetrics = s.metrics.Handler(), s.metrics.Probes()
	c.ResourceMetrics, c.CadvisorMetrics = s.stats.Resource(), s.stats.Cadvisor()
	c.Devices = func() []server.DeviceResource { return deviceList(s.devices) }
	c.Services = serviceList(s.balancer)
	c.Workloads = workloadAnswers{s.workloads, cfg.NodeName, record.NewWorkloads(cfg.RootDir)}
	c.Allocations = allocations(a.newPodResources(s.live.Pods))
	c.Configz, c.Counted = cfg.Configz, s.metrics.Request
	c.Checks = map[string]func(context.Context) error{"syncloop": s.engine.Healthy, "pleg": s.runtime.hints.Healthy}
	c.CheckpointDir = filepath.Join(cfg.RootDir, "checkpoints")
	c.Profiling, c.DebugFlags, c.SetVerbosity = cfg.EnableProfilingHandler, cfg.EnableDebugFlagsHandler, cfg.SetVerbosity
	if cfg.EnableSystemLogHandler {
		c.SystemLogs, c.LogQuery = "/var/log", cfg.EnableSystemLogQuery
	}
	c.NoDebugging, c.StreamIdle = !cfg.EnableDebuggingHandlers, cfg.StreamingConnectionIdleTimeout
	c.Audit = filepath.Join(cfg.RootDir, "audit.jsonl")
	if cfg.HealthzPort > 0 {
		c.Health = net.JoinHostPort(cfg.HealthzBindAddress, strconv.Itoa(cfg.HealthzPort))
	}
	if cfg.ServerPort() != 0 {
		c.Access, c.TLS, err = s.tlsPort()
	}
	return c, err
}

// tlsPort returns the access control and the configuration of the TLS port, and sets s.certificate.
func (s *serving) tlsPort() (server.Access, *server.TLS, error) {
	cfg := s.cfg
	var client *rest.Config
	if s.member != nil {
		client = s.api.rest(s.metrics)
	}
	callers, err := access.New(access.Config{
		Node: cfg.NodeName, API: client, ClientCAFile: cfg.ClientCAFile, Log: s.log,
		TokensFor: cfg.TokenCacheTTL, AllowedFor: cfg.AuthorizedCacheTTL, DeniedFor: cfg.UnauthorizedCacheTTL,
	})
	if err != nil {
		return nil, nil, readonly.Fail(readonly.Usage, fmt.Errorf("--port: %w", err))
	}
	s.certificate, err = certificate.NewServing(certificate.ServingConfig{
		Node: cfg.NodeName, Addresses: s.addresses, CertFile: cfg.TLSCertFile, KeyFile: cfg.TLSPrivateKeyFile,
		Rotate: cfg.RotateServerCertificates && client != nil, API: client, Dir: cfg.Certificates(), Log: s.log,
	})
	if err != nil {
		return nil, nil, readonly.Fail(readonly.Usage, fmt.Errorf("--tls-cert-file: %w", err))
	}
	return callers, &server.TLS{
		Address:     net.JoinHostPort(cfg.Address, strconv.Itoa(cfg.ServerPort())),
		Certificate: s.certificate.Certificate, MinVersion: cfg.MinTLS(), CipherSuites: cfg.CipherSuites(),
	}, nil
}

// statsAnswers implements server.Stats.
type statsAnswers struct{ *stats.Stats }

// Summary implements server.Stats.
func (s statsAnswers) Summary(ctx context.Context, only bool) (any, error) {
	return s.Stats.Summary(ctx, only)
}

// containerAnswers implements server.Containers.
type containerAnswers struct{ *Agent }

// ExecURL implements server.Containers.
func (a containerAnswers) ExecURL(ctx context.Context, of *v1.Pod, container string, command []string, s server.Streams) (*url.URL, error) {
	return a.runtime.ExecURL(ctx, string(of.UID), container, command, cri.Streams(s))
}

// AttachURL implements server.Containers.
func (a containerAnswers) AttachURL(ctx context.Context, of *v1.Pod, container string, s server.Streams) (*url.URL, error) {
	return a.runtime.AttachURL(ctx, string(of.UID), container, cri.Streams(s))
}

// PortForwardURL implements server.Containers.
func (a containerAnswers) PortForwardURL(ctx context.Context, of *v1.Pod) (*url.URL, error) {
	return a.runtime.PortForwardURL(ctx, string(of.UID))
}

// Checkpoint implements server.Containers.
func (a containerAnswers) Checkpoint(ctx context.Context, of *v1.Pod, container, path string, timeout time.Duration) error {
	return a.runtime.CheckpointContainer(ctx, string(of.UID), container, path, timeout)
}

// addresses returns the addresses of the Node object.
func (a *Agent) addresses() []v1.NodeAddress {
	return a.observer.Addresses(context.Background())
}

// nodeAnswers implements server.Node; m is nil on a node without a cluster.
type nodeAnswers struct {
	*Agent
	m      *member
	images *image.Inventory
	upkeep *upkeep.Upkeep
}

// Node implements server.Node.
func (a nodeAnswers) Node(ctx context.Context) (*v1.Node, error) {
	if a.m == nil {
		return a.observer.PollNode(ctx), nil
	}
	return a.observer.Node(ctx, a.m.presence.Node()), nil
}

// Events implements server.Node: the existing events and, with watch, later ones.
func (a nodeAnswers) Events(ctx context.Context, watch bool) iter.Seq2[string, *v1.Event] {
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
func (a nodeAnswers) RunningPods(ctx context.Context) ([]*v1.Pod, error) {
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
func (a nodeAnswers) Images(ctx context.Context) ([]server.Image, error) {
	return imageList(ctx, a.images)
}

// Reclaim implements server.Node.
func (a nodeAnswers) Reclaim(ctx context.Context, assume []string) (server.Reclaim, error) {
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
	halts *nodeHalt
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
func (a containerAnswers) Logs(ctx context.Context, w io.Writer, l server.LogRequest) error {
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
func (a containerAnswers) Run(ctx context.Context, of *v1.Pod, container string, command []string) ([]byte, error) {
	id, err := a.runtime.RunningContainer(ctx, string(of.UID), container)
	if err != nil {
		return nil, err
	}
	code, out, err := a.runtime.ExecSync(ctx, id, command, runTimeout)
	if err == nil && code != 0 {
		err = fmt.Errorf("command exited with %d: %s", code, out)
	}
	return out, err
}
