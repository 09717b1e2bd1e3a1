//go:build linux

package cmd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/certificate"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/event"
	"github.com/nodectl/nodectl/pkg/metrics"
	machine "github.com/nodectl/nodectl/pkg/node"
	nodeapi "github.com/nodectl/nodectl/pkg/node/apiserver"
	"github.com/nodectl/nodectl/pkg/pod"
	apisink "github.com/nodectl/nodectl/pkg/sink/apiserver"
	"github.com/nodectl/nodectl/pkg/status"
)

// member is this node as a member of a cluster.
type member struct {
	client   *apiclient.Client
	certs    *certificate.Client
	sink     *apisink.Sink
	presence *nodeapi.Presence
}

// join prepares the cluster membership of this node and sends nothing yet. It returns nil if
// no API server is configured.
func (n *node) join() (*member, error) {
	p := n.p
	if p.cfg.Kubeconfig == "" {
		return nil, nil
	}
	m := &member{}
	agent := "nodectl/" + readVersion().Version
	cfg := apiclient.Config{File: p.cfg.Kubeconfig, Awaited: p.cfg.BootstrapKubeconfig != "", UserAgent: agent, Log: n.log}
	if p.cfg.RotateCertificates {
		cfg.Pair = certificate.Pair(p.cfg.Certificates())
	}
	var err error
	m.client, err = apiclient.Open(cfg)
	if err != nil {
		return nil, failed(exitUsage, fmt.Errorf("--kubeconfig: %w", err))
	}
	m.certs, err = certificate.NewClient(certificate.ClientConfig{
		Node: p.cfg.NodeName, Kubeconfig: p.cfg.Kubeconfig, Bootstrap: p.cfg.BootstrapKubeconfig, Dir: p.cfg.Certificates(),
		Rotate: p.cfg.RotateCertificates, API: m.rest(n.metrics), UserAgent: agent, Log: n.log,
	})
	if err != nil {
		return nil, failed(exitFailure, err)
	}
	n.certs.Store(m.certs)
	m.sink, err = apisink.New(apisink.Config{
		REST: m.rest(n.metrics), Node: p.cfg.NodeName, NodeUID: func() types.UID { return m.presence.UID() },
		QPS: float64(p.cfg.KubeAPIQPS), Burst: p.cfg.KubeAPIBurst, EventQPS: float64(p.cfg.EventQPS), EventBurst: p.cfg.EventBurst,
		Synced: n.metrics.StatusSynced, Log: n.log,
	})
	if err != nil {
		return nil, failed(exitFailure, err)
	}
	m.presence, err = nodeapi.New(nodeapi.Config{
		REST: m.rest(n.metrics), Observer: n.observer, Labels: p.cfg.Labels(), Register: p.cfg.RegisterNode,
		UpdateFrequency: p.cfg.NodeStatusUpdateFrequency, ReportFrequency: p.cfg.NodeStatusReportFrequency, LeaseDuration: p.cfg.NodeLeaseDuration,
		Event: func(reason, kind, message string) {
			n.events.NodeEvent(reason, kind, message)
			m.sink.NodeEvent(kind, reason, message)
		},
		Await: m.client.Await, Epoch: m.client.Epoch, Log: n.log,
	})
	if err != nil {
		return nil, failed(exitUsage, fmt.Errorf("--node-labels: %w", err))
	}
	p.apiClient, p.seen = m.client, m.sink.Seen
	p.rejected = func(o *v1.Pod, problems []pod.Problem) {
		if n.live != nil {
			if is, ok := n.live.Pod(pod.KeyOf(o)); ok && is.UID != o.UID {
				return // a pod of another source has this name; that one is reported
			}
		}
		m.rejected(o, problems, n.hostIPs)
	}
	return m, nil
}

// rest returns the API server's client configuration; its requests are counted.
func (m *member) rest(counts *metrics.Metrics) *rest.Config {
	cfg := m.client.REST()
	cfg.Wrap(counts.Transport)
	return cfg
}

// run keeps the node in its cluster until ctx ends.
func (m *member) run(ctx context.Context, log *slog.Logger) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.client.Close()
	wg.Go(func() {
		if err := m.certs.Run(ctx); err != nil {
			log.Error("Client certificate not kept", "error", err)
		}
	})
	wg.Go(func() {
		if m.client.Await(ctx) != nil { // a machine that joins has no credentials yet
			return
		}
		if err := m.sink.Run(ctx); err != nil {
			log.Error("Statuses not sent", "error", err)
		}
	})
	m.presence.Run(ctx)
}

// rejected reports a pod that cannot run here to the API server, with the field that is the
// reason. The pod is Pending if the node lacks what it requests.
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

// labelled returns the labels and taints that the Node object has.
func (m *member) labelled() (map[string]string, []v1.Taint, bool) {
	n := m.presence.Node()
	if n == nil {
		return nil, nil, false
	}
	return n.Labels, n.Spec.Taints, true
}

// measures returns the agent's own metrics.
func (n *node) measures() *metrics.Metrics {
	v := readVersion()
	return metrics.New(metrics.Config{
		Node:    n.p.cfg.NodeName,
		Build:   metrics.Build{Version: machine.KubernetesVersion(), Commit: v.Commit, TreeState: treeState(v), Date: v.Date},
		Mirrors: n.mirrors, CgroupVersion: cgroupVersion(),
		ClientExpires: func() time.Time {
			if c := n.certs.Load(); c != nil {
				return c.Facts().Expires
			}
			return time.Time{}
		},
		ServerExpires: func() time.Time {
			if s := n.serving.Load(); s != nil {
				return s.Facts().Expires
			}
			return time.Time{}
		},
		ClientFailures: func() int64 {
			if c := n.certs.Load(); c != nil {
				return c.Facts().Failures
			}
			return 0
		},
		ServerFailures: func() int64 {
			if s := n.serving.Load(); s != nil {
				return s.Facts().Failures
			}
			return 0
		},
	})
}

// treeState returns whether a program was built from an unmodified commit.
func treeState(v version) string {
	if v.Dirty {
		return "dirty"
	}
	return "clean"
}

// mirrors returns the desired number of mirror pods.
func (n *node) mirrors() (count int) {
	if n.p.cfg.Kubeconfig == "" || n.live == nil {
		return 0
	}
	for _, p := range n.live.Pods() {
		if pod.SourceOf(&p) != pod.SourceAPI {
			count++
		}
	}
	return count
}

// called counts a call to the runtime.
func (n *node) called(c cri.Call) {
	n.metrics.Call(c.Method, c.Handler, c.UserNamespace, c.Took, c.Err)
}

// observe returns the Observer of this machine, which makes its node status.
func (n *node) observe() *machine.Observer {
	p := n.p
	place := ""
	if os.Geteuid() == 0 {
		if at, ok := n.groups.PlaceOfAll(); ok {
			place = cmp.Or(at.Dirs["memory"], at.Dirs[""])
		}
	}
	return machine.NewObserver(machine.ObserverConfig{
		Settings: machine.Settings{
			Name: p.cfg.NodeName, Labels: n.facts.Labels, Taints: n.facts.Taints, ProviderID: p.cfg.ProviderID,
			Port: p.cfg.ServerPort(), MaxPods: p.cfg.MaxPods, Allocatable: n.facts.Allocatable,
			ExternalCloud: p.externalCloud(), NodeIPs: p.cfg.NodeIP,
		},
		NodeIPs: p.cfg.NodeIP, Found: n.hostIPs, NoLookup: p.cfg.Kubeconfig == "", Health: n.health, Facts: n.machine, RootDir: p.cfg.RootDir, PodsCgroup: place,
		Thresholds: p.cfg.Thresholds(), Transition: p.cfg.PressureTransitionPeriod, Runtime: n.runtime, Log: n.log,
	})
}

// told returns the observers of a serving agent's engine; m is nil if this node is in no
// cluster.
func (n *node) told(m *member) told {
	if m == nil {
		return told{hear: []engine.Sink{n.metrics}, events: tellers{n.events, n.metrics}}
	}
	return told{
		hear: []engine.Sink{n.metrics, m.sink}, events: tellers{n.events, n.metrics, m.sink},
		node: m.labelled, synced: m.sink.Synced,
	}
}

// healthFor is the timeout of the PLEG's health check.
const healthFor = 100 * time.Millisecond

// health returns why pods would not run although the runtime is healthy.
func (n *node) health() error {
	ctx, cancel := context.WithTimeout(context.Background(), healthFor)
	defer cancel()
	if err := n.hints.Beat(ctx); err != nil {
		return fmt.Errorf("PLEG is not healthy: %w", err)
	}
	return nil
}

// tellers are receivers of events; each of them gets every event.
type tellers []engine.Events

// Event implements engine.Events.
func (t tellers) Event(e pod.Event) {
	for _, to := range t {
		to.Event(e)
	}
}

// eventsPath returns the file of the newest events.
func (p *program) eventsPath() string { return filepath.Join(p.cfg.RootDir, "events.jsonl") }

// store opens the store of events.
func (n *node) store() *event.Store {
	return event.Open(event.Config{Path: n.p.eventsPath(), Node: n.p.cfg.NodeName, Log: n.log})
}
