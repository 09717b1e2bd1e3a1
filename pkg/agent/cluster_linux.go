package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/pkg/csi"
	"github.com/nodectl/nodectl/pkg/dra"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/metrics"
	nodeapi "github.com/nodectl/nodectl/pkg/node/apiserver"
	"github.com/nodectl/nodectl/pkg/pod"
	apisink "github.com/nodectl/nodectl/pkg/sink/apiserver"
	"github.com/nodectl/nodectl/pkg/status"
)

// api is the client of the API server of this node's cluster; nil without a cluster.
type api struct {
	client *apiclient.Client
	reader *apiclient.Reader
}

// openAPI prepares the client of the API server, and sends nothing. It returns nil if no API server
// is configured.
func openAPI(cfg Config) (*api, error) {
	if cfg.Kubeconfig == "" {
		return nil, nil
	}
	c := apiclient.Config{File: cfg.Kubeconfig, Awaited: cfg.BootstrapKubeconfig != "", UserAgent: cfg.UserAgent, Log: cfg.Log}
	if cfg.RotateCertificates {
		c.Pair = certificate.Pair(cfg.Certificates())
	}
	client, err := apiclient.Open(c)
	if err != nil {
		return nil, readonly.Fail(readonly.Usage, fmt.Errorf("--kubeconfig: %w", err))
	}
	return &api{client, apiclient.NewReader(apiclient.ReaderConfig{
		Client: client, Shared: true, ServicesOptional: cfg.OfflineStart == pod.SourceAPI, Log: cfg.Log,
	})}, nil
}

// rest returns the API server's client configuration; its requests are counted.
func (a *api) rest(counts *metrics.Metrics) *rest.Config {
	cfg := a.client.REST()
	cfg.Wrap(counts.Transport)
	return cfg
}

// runtimeClass returns the handler of a RuntimeClass of the API server. ok is false without an API
// server.
func (a *api) runtimeClass(ctx context.Context, name string) (handler string, ok bool, err error) {
	if a == nil {
		return "", false, nil
	}
	return a.reader.RuntimeHandler(ctx, name)
}

// services returns a lister of the API server's services; nil without an API server.
func (a *api) services() func(namespace string) ([]*v1.Service, error) {
	if a == nil {
		return nil
	}
	return a.reader.Services
}

// member is this node as a member of a cluster.
type member struct {
	client   *apiclient.Client
	certs    *certificate.Client
	sink     *apisink.Sink
	presence *nodeapi.Heartbeat
}

// join prepares the cluster membership of this node, and sends nothing. It returns nil if no API
// server is configured.
func (a *Agent) join() (*member, error) {
	if a.api == nil {
		return nil, nil
	}
	cfg, m := a.cfg, &member{client: a.api.client}
	var err error
	m.certs, err = certificate.NewClient(certificate.ClientConfig{
		Node: cfg.NodeName, Kubeconfig: cfg.Kubeconfig, Bootstrap: cfg.BootstrapKubeconfig, Dir: cfg.Certificates(),
		Rotate: cfg.RotateCertificates, API: a.api.rest(a.metrics), UserAgent: cfg.UserAgent, Log: a.log,
	})
	if err != nil {
		return nil, readonly.Fail(readonly.Failure, err)
	}
	m.sink, err = apisink.New(apisink.Config{
		REST: a.api.rest(a.metrics), Node: cfg.NodeName, NodeUID: func() types.UID { return m.presence.UID() },
		QPS: float64(cfg.KubeAPIQPS), Burst: cfg.KubeAPIBurst, EventQPS: float64(cfg.EventQPS), EventBurst: cfg.EventBurst,
		Synced: a.metrics.StatusSynced, Log: a.log,
	})
	if err != nil {
		return nil, readonly.Fail(readonly.Failure, err)
	}
	m.presence, err = nodeapi.New(nodeapi.Config{
		REST: a.api.rest(a.metrics), Observer: a.observer, Labels: cfg.Labels(), Register: cfg.RegisterNode,
		UpdateFrequency: cfg.NodeStatusUpdateFrequency, ReportFrequency: cfg.NodeStatusReportFrequency, LeaseDuration: cfg.NodeLeaseDuration,
		Event: a.nodeEvents(m), OnNode: func(n *v1.Node) { a.nodeSeen(m, n) },
		Await: m.client.Await, Epoch: m.client.Epoch, Log: a.log,
	})
	if err != nil {
		return nil, readonly.Fail(readonly.Usage, fmt.Errorf("--node-labels: %w", err))
	}
	if a.csi != nil {
		a.csi.Join(csi.Cluster{API: a.api.reader, Node: m.presence.Node, Report: m.presence.Report})
	}
	if a.claims != nil {
		a.claims.Join(dra.Cluster{API: a.api.reader, Node: m.presence.Node})
	}
	return m, nil
}

// nodeSeen passes the allocatable resources of the Node to the device plugins, once the Node has a
// status of this agent. An older status may contain resources of plugins that are not connected. The
// Node is nil if it was deleted.
func (a *Agent) nodeSeen(m *member, n *v1.Node) {
	if n != nil && m.presence.Settled() {
		a.devices.Advertise(n.Status.Allocatable)
	}
}

// nodeEvent adds an event of the node.
type nodeEvent func(reason, kind, message string)

// nodeEvents returns the function that adds an event of the node. In a cluster, it also sends the
// event to the API server; m is nil on a node without a cluster.
func (a *Agent) nodeEvents(m *member) nodeEvent {
	return func(reason, kind, message string) {
		a.events.NodeEvent(reason, kind, message)
		if m != nil {
			m.sink.NodeEvent(kind, reason, message)
		}
	}
}

// source returns the agent's callbacks for the API server's source; nil without an API server. live
// returns the feed. It is called only after the sources have read pods.
func (m *member) source(a *Agent, live func() *feed.Live) *readonly.API {
	if m == nil {
		return nil
	}
	return &readonly.API{
		Reader: a.api.reader, OnPod: m.sink.ObservePod,
		Rejected: func(o *v1.Pod, problems []pod.Problem) {
			if is, ok := live().Pod(pod.KeyOf(o)); ok && is.UID != o.UID {
				return // a pod of another source has this name, and its status is reported
			}
			m.rejected(o, problems, a.host.ips)
		},
	}
}

// run keeps the node in its cluster until ctx ends.
func (m *member) run(ctx context.Context, log *slog.Logger) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.client.Close()
	wg.Go(func() {
		if err := m.certs.Run(ctx); err != nil {
			log.Error("Failed to maintain client certificate", "error", err)
		}
	})
	wg.Go(func() {
		if m.client.Await(ctx) != nil { // a joining machine has no credentials yet
			return
		}
		if err := m.sink.Run(ctx); err != nil {
			log.Error("Failed to send statuses to the API server", "error", err)
		}
	})
	m.presence.Run(ctx)
}

// rejected reports to the API server that a pod cannot run on this node, with the field that is the
// reason. If the node only lacks resources that the pod requests, the pod is Pending.
func (m *member) rejected(p *v1.Pod, problems []pod.Problem, hostIPs []string) {
	now := time.Now()
	u, ok := status.OfUnsupported(p, problems, hostIPs, now)
	if !ok {
		return
	}
	out := *p
	out.Status = u.Status
	_ = m.sink.Report(pod.StatusReport{Pod: &out, Origin: pod.Origin{Source: pod.SourceAPI}, Finished: true, At: now})
	if !u.Known {
		m.sink.Event(pod.Event{Key: pod.KeyOf(p), UID: string(p.UID), Type: pod.EventWarning, Reason: u.Reason, Message: u.Message, At: now})
	}
}

// nodeLabels returns the labels and taints of the Node object.
func (m *member) nodeLabels() (map[string]string, []v1.Taint, bool) {
	n := m.presence.Node()
	if n == nil {
		return nil, nil, false
	}
	return n.Labels, n.Spec.Taints, true
}

// receivers returns the receivers of a serving agent's engine; m is nil on a node without a
// cluster.
func (a *Agent) receivers(m *member) receivers {
	if m == nil {
		return receivers{listeners: []engine.Sink{a.metrics}, events: eachEvent{a.events, a.metrics}}
	}
	return receivers{
		listeners: []engine.Sink{a.metrics, m.sink}, events: eachEvent{a.events, a.metrics, m.sink},
		node: m.nodeLabels, synced: m.sink.Synced,
	}
}

// eachEvent passes each event to all its elements.
type eachEvent []engine.Events

// Event implements engine.Events.
func (all eachEvent) Event(e pod.Event) {
	for _, to := range all {
		to.Event(e)
	}
}
