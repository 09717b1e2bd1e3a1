//go:build linux

package cmd

import (
	"context"
	"encoding/json"
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

	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/event"
	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/server/access"
	"github.com/nodectl/nodectl/pkg/stats"
)

// runFor is the time limit of a command of /run.
const runFor = 10 * time.Minute

// serverConfig returns the configuration of the server, on the local socket and, if
// configured, on a TLS port. serving has the certificate of the port; it is nil without one.
func (n *node) serverConfig(e *engine.Engine, m *member) (cfg server.Config, serving *certificate.Serving, err error) {
	p, live := n.p, e.Live()
	n.live = live
	measured := stats.New(stats.Config{
		Node: p.cfg.NodeName, RootDir: p.cfg.RootDir, PodLogsDir: p.cfg.PodLogsDir, Runtime: n.runtime, Cgroups: n.groups, Pods: live.Pods, RuntimePID: n.runtimePID, Log: n.log,
	})
	n.metrics.Also(measured.Volumes())
	cfg = p.documents(live, n.log)
	cfg.RunningPods = n.runningPods
	cfg.Node = func(ctx context.Context) (*v1.Node, error) {
		if m == nil {
			return n.observer.Look(ctx), nil
		}
		return n.observer.Node(ctx, m.presence.Node()), nil
	}
	cfg.Events, cfg.Images = n.eventLines, n.imageList
	cfg.Restart, cfg.Delete = restart(e), remove(e)
	cfg.Summary = func(ctx context.Context, only bool) (any, error) { return measured.Summary(ctx, only) }
	cfg.Metrics, cfg.ProbeMetrics = n.metrics.Handler(), n.metrics.Probes()
	cfg.ResourceMetrics, cfg.CadvisorMetrics = measured.Resource(), measured.Cadvisor()
	cfg.Configz, cfg.Counted = p.configz, n.metrics.Request
	cfg.Checks = map[string]func(context.Context) error{"syncloop": e.Beat, "pleg": n.hints.Beat}
	n.streams(&cfg)
	cfg.Audit = filepath.Join(p.cfg.RootDir, "audit.jsonl")
	if p.cfg.HealthzPort > 0 {
		cfg.Health = net.JoinHostPort(p.cfg.HealthzBindAddress, strconv.Itoa(p.cfg.HealthzPort))
	}
	if p.cfg.ServerPort() == 0 {
		return cfg, nil, nil
	}
	var api *rest.Config
	if m != nil {
		api = m.rest(n.metrics)
	}
	cfg.Access, err = access.New(access.Config{
		Node: p.cfg.NodeName, API: api, ClientCAFile: p.cfg.ClientCAFile, Log: n.log,
		TokensFor: p.cfg.TokenCacheTTL, AllowedFor: p.cfg.AuthorizedCacheTTL, DeniedFor: p.cfg.UnauthorizedCacheTTL,
	})
	if err != nil {
		return cfg, nil, failed(exitUsage, fmt.Errorf("--port: %w", err))
	}
	serving, err = certificate.NewServing(certificate.ServingConfig{
		Node: p.cfg.NodeName, Addresses: n.addresses, CertFile: p.cfg.TLSCertFile, KeyFile: p.cfg.TLSPrivateKeyFile,
		Rotate: p.cfg.RotateServerCertificates && api != nil, API: api, Dir: p.cfg.Certificates(), Log: n.log,
	})
	if err != nil {
		return cfg, nil, failed(exitUsage, fmt.Errorf("--tls-cert-file: %w", err))
	}
	n.serving.Store(serving)
	cfg.TLS = &server.TLS{
		Address:     net.JoinHostPort(p.cfg.Address, strconv.Itoa(p.cfg.ServerPort())),
		Certificate: serving.Certificate, MinVersion: p.cfg.MinTLS(), CipherSuites: p.cfg.CipherSuites(),
	}
	return cfg, serving, nil
}

// streams sets the functions for exec, attach, port-forward, run and logs.
func (n *node) streams(cfg *server.Config) {
	cfg.Logs, cfg.Run = n.readLog, n.runCommand
	cfg.ExecURL = func(ctx context.Context, of *v1.Pod, container string, command []string, s server.Streams) (*url.URL, error) {
		return n.runtime.ExecURL(ctx, string(of.UID), container, command, cri.Streams(s))
	}
	cfg.AttachURL = func(ctx context.Context, of *v1.Pod, container string, s server.Streams) (*url.URL, error) {
		return n.runtime.AttachURL(ctx, string(of.UID), container, cri.Streams(s))
	}
	cfg.PortForwardURL = func(ctx context.Context, of *v1.Pod) (*url.URL, error) {
		return n.runtime.PortForwardURL(ctx, string(of.UID))
	}
	cfg.Checkpoint = func(ctx context.Context, of *v1.Pod, container, path string, timeout time.Duration) error {
		return n.runtime.CheckpointContainer(ctx, string(of.UID), container, path, timeout)
	}
	cfg.CheckpointDir = filepath.Join(n.p.cfg.RootDir, "checkpoints")
	cfg.NoDebugging, cfg.StreamIdle = !n.p.cfg.EnableDebuggingHandlers, n.p.cfg.StreamingConnectionIdleTimeout
}

// addresses returns the addresses of the Node object.
func (n *node) addresses() []v1.NodeAddress {
	return n.observer.Addresses(context.Background())
}

// eventLines yields the existing events, and with watch later ones.
func (n *node) eventLines(ctx context.Context, watch bool) iter.Seq2[string, *v1.Event] {
	return func(yield func(string, *v1.Event) bool) {
		if !watch {
			for _, e := range n.events.List(event.Filter{}) {
				if !yield(event.Added, &e) {
					return
				}
			}
			return
		}
		for how, e := range n.events.Watch(ctx, event.Filter{}) {
			if !yield(how, &e) {
				return
			}
		}
	}
}

// runningPods returns the pods that the runtime runs, desired or not: their names, and the
// running containers.
func (n *node) runningPods(ctx context.Context) ([]*v1.Pod, error) {
	have, err := n.runtime.Pods(ctx)
	if have == nil {
		return nil, err
	}
	var all []*v1.Pod
	for _, a := range have {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name, UID: types.UID(a.UID)}}
		for _, name := range slices.Sorted(maps.Keys(a.Containers)) {
			if c := a.Containers[name]; c.State == pod.StateRunning {
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: c.Image})
			}
		}
		if len(p.Spec.Containers) > 0 || a.Sandbox != nil && a.Sandbox.Ready {
			all = append(all, p)
		}
	}
	return all, nil
}

func (n *node) imageList(ctx context.Context) ([]server.Image, error) {
	all, err := n.runtime.Images(ctx)
	out := make([]server.Image, 0, len(all))
	for _, i := range all {
		out = append(out, server.Image(i))
	}
	return out, err
}

// refusal turns an engine's error into a *server.Refusal.
func refusal(err error) error {
	var refused *engine.RefusedError
	switch {
	case errors.Is(err, engine.ErrNoPod):
		return &server.Refusal{Code: http.StatusNotFound, Message: err.Error()}
	case errors.As(err, &refused):
		return &server.Refusal{Code: http.StatusConflict, Message: refused.Error()}
	}
	return err
}

func restart(e *engine.Engine) func(context.Context, string, string, []string, *int64) error {
	return func(ctx context.Context, namespace, name string, containers []string, grace *int64) error {
		return refusal(e.Restart(ctx, pod.Key{Namespace: namespace, Name: name}, containers, grace))
	}
}

func remove(e *engine.Engine) func(context.Context, string, string, string, *int64) error {
	return func(ctx context.Context, namespace, name, uid string, grace *int64) error {
		return refusal(e.Delete(ctx, pod.Key{Namespace: namespace, Name: name}, uid, grace))
	}
}

// readLog writes the log of a container.
func (n *node) readLog(ctx context.Context, w io.Writer, l server.Log) error {
	path, err := n.runtime.LogPath(ctx, l.ContainerID)
	if err != nil {
		return err
	}
	below, err := filepath.Rel(n.p.cfg.PodLogsDir, path)
	if err != nil {
		return err
	}
	return logs.Read(ctx, w, logs.File{Dir: n.p.cfg.PodLogsDir, Path: below}, logs.Options{
		Stdout: l.Stdout, Stderr: l.Stderr, Timestamps: l.Timestamps, Tail: l.Tail, Since: l.Since, Limit: l.Limit, Follow: l.Follow, Ended: l.Ended,
	})
}

// runCommand runs a command in a container to its end.
func (n *node) runCommand(ctx context.Context, of *v1.Pod, container string, command []string) ([]byte, error) {
	id, err := n.runtime.RunningContainer(ctx, string(of.UID), container)
	if err != nil {
		return nil, err
	}
	code, out, err := n.runtime.ExecSync(ctx, id, command, runFor)
	if err == nil && code != 0 {
		err = fmt.Errorf("command exited with %d: %s", code, out)
	}
	return out, err
}

// configz returns the settings as /configz shows them.
func (p *program) configz() ([]byte, error) {
	return json.Marshal(map[string]any{"kubeletconfig": p.cfg.Kubelet(), "nodectl": p.view()})
}

// runtimePID returns the PID of the bundled runtime, 0 for any other.
func (n *node) runtimePID() int {
	if n.bundled == nil {
		return 0
	}
	s, err := n.bundled.Status(context.Background())
	if err != nil {
		return 0
	}
	return s.PID
}
