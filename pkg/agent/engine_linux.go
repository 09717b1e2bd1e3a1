package agent

import (
	"context"
	"math"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/cgroup"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/probe"
	"github.com/nodectl/nodectl/pkg/userns"
	"github.com/nodectl/nodectl/pkg/volume"
)

// receivers has the parts around an engine: receivers of its statuses and events beside the journal,
// and parts that it calls. A nil part is left out.
type receivers struct {
	sinks     []engine.Sink // may block
	listeners []engine.Sink // do not block
	events    engine.Events
	devices   engine.Devices
	claims    engine.Claims
	drivers   volume.Drivers                                                // of CSI volumes
	node      func() (labels map[string]string, taints []v1.Taint, ok bool) // of the Node object
	synced    func()                                                        // engine.Config.Synced
	workloads engine.Workloads                                              // for runonce
	// desired and services are engine.Config.Desired and Services, on a node that serves Services.
	desired  func(*podconfig.Merged)
	services func(namespace string) ([]*v1.Service, error)
}

// newEngine makes an engine. config is nil for a set that was already read.
func (a *Agent) newEngine(config *podconfig.PodConfig, rules readonly.Rules, to receivers) *engine.Engine {
	cfg, services := a.cfg, to.services
	if services == nil {
		services = a.api.services()
	}
	return engine.New(engine.Config{
		PodConfig:          config,
		Runtime:            pulling{a.runtime.Runtime, a.runtime.puller, a.metrics.Pulled},
		Hints:              a.runtime.hints,
		Volumes:            a.newVolumes(rules, to),
		Cgroups:            a.podCgroups(),
		Users:              userns.New(userns.Config{Root: cfg.RootDir, MaxPods: a.host.node.MaxPods, Length: uint32(cfg.UserNamespaceIDs)}),
		Devices:            to.devices,
		Claims:             to.claims,
		Records:            a.state.records,
		Sets:               a.state.sets,
		Forbids:            rules.Forbids,
		RequireSourceReady: cfg.RequireSourceReady(),
		Visible:            rules.Visible(),
		Prober:             a.metrics.Prober(probe.New(probe.Config{Exec: a.runtime, Version: cfg.Build.Version})),
		Sinks:              append([]engine.Sink{a.state.journal}, to.sinks...),
		Listeners:          to.listeners,
		Events:             to.events,
		Activity:           a.board,
		NodeSeen:           to.node,
		Synced:             to.synced,
		Workloads:          to.workloads,
		PodWorkerDuration:  a.metrics.PodWorkerDuration,
		WorkerStarted:      a.metrics.WorkerStarted,
		NoClusterDNS:       cfg.Kubeconfig != "" && len(cfg.ClusterDNS) == 0,
		Log:                a.log,
		Before:             a.state.before,
		Node:               a.host.node,
		CPUs:               a.host.cpus,
		SaveCPUs:           saveCPUs(cfg.RootDir),
		Halted:             a.halts.forEngine(),
		HostIPs:            a.host.ips,
		Services:           services,
		ServicesForAll:     to.services != nil,
		Desired:            to.desired,
		LogCheck:           cfg.ContainerLogInterval,
		LogWorkers:         cfg.ContainerLogMaxWorkers,
		Layers:             a.runtime.layers,
		NoStorageLimits:    !cfg.LocalStorageCapacityIsolation,
		Logs:               logs.New(logs.Config{Dir: cfg.PodLogsDir, MaxSize: cfg.LogMaxBytes(), MaxFiles: cfg.ContainerLogMaxFiles}),
		MaxBackoff:         cfg.MaxContainerRestartPeriod,
		SyncFrequency:      cfg.SyncFrequency,
	})
}

// newVolumes makes the manager of pods' volumes.
func (a *Agent) newVolumes(rules readonly.Rules, to receivers) *volume.Volumes {
	cfg := volume.Config{
		RootDir: a.cfg.RootDir, PodLogsDir: a.cfg.PodLogsDir, ContainerLogsDir: a.cfg.LogLinks(), Log: a.log,
		ClusterDomain: a.cfg.PodDomain(), Allocatable: a.host.node.Allocatable, SELinux: volume.SELinuxEnabled(), FileLabel: volume.FileLabel(os.DirFS("/")),
		RecursiveReadOnly: a.runtime.recursiveReadOnly, Allow: rules.Allows, Drivers: to.drivers,
	}
	if to.events != nil {
		cfg.Event = to.events.Event
	}
	if a.api != nil {
		cfg.Token, cfg.TrustBundle, cfg.Claim = a.api.reader.Token, a.api.reader.TrustBundle, a.api.reader.Claim
	}
	return volume.New(cfg)
}

// recursiveReadOnly reports whether the runtime supports recursive read-only mounts for pods
// of a RuntimeClass. If the class cannot be found, its name is used as the handler, as for the
// sandbox of a static pod.
func (r *containerRuntime) recursiveReadOnly(class *string) bool {
	ctx, stop := context.WithTimeout(context.Background(), time.Second) // the caller has no context
	defer stop()
	handler, _, err := r.Handler(ctx, class)
	if err != nil {
		handler = *class
	}
	return r.RecursiveReadOnly(handler)
}

// layers returns the bytes of the containers' writable layers, by pod UID and container name.
func (r *containerRuntime) layers(ctx context.Context) (map[string]map[string]int64, error) {
	usage, err := r.ContainerUsage(ctx)
	all := make(map[string]map[string]int64)
	for _, u := range usage {
		if all[u.UID] == nil {
			all[u.UID] = make(map[string]int64)
		}
		if used := u.Writable.Used; used != nil {
			all[u.UID][u.Container] += int64(min(*used, math.MaxInt64)) // a sum, as of exited containers of this name
		}
	}
	return all, err
}

// podCgroups returns the manager of pods' cgroups; nil if the agent is not root. The runtime then
// chooses the cgroups of pods.
func (a *Agent) podCgroups() engine.Cgroups {
	if os.Geteuid() != 0 {
		a.log.Info("Pods have no cgroups of their own: only root may make them")
		return nil
	}
	return timedCgroups{a.groups, a.metrics}
}

// timedCgroups measures the duration of operations on pods' cgroups.
type timedCgroups struct {
	*cgroup.Cgroups
	metrics *metrics.Metrics
}

// Ensure implements engine.Cgroups.
func (t timedCgroups) Ensure(want *pod.Spec) (parent string, err error) {
	defer t.ended("create", time.Now())
	return t.Cgroups.Ensure(want)
}

// Raise implements engine.Cgroups.
func (t timedCgroups) Raise(want *pod.Spec) error {
	defer t.ended("update", time.Now())
	return t.Cgroups.Raise(want)
}

// Lower implements engine.Cgroups.
func (t timedCgroups) Lower(want *pod.Spec) error {
	defer t.ended("update", time.Now())
	return t.Cgroups.Lower(want)
}

// Destroy implements engine.Cgroups.
func (t timedCgroups) Destroy(uid string) error {
	defer t.ended("destroy", time.Now())
	return t.Cgroups.Destroy(uid)
}

func (t timedCgroups) ended(operation string, began time.Time) {
	t.metrics.Cgroup(operation, time.Since(began))
}
