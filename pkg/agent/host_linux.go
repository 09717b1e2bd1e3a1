package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/cgroup"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// host describes this machine at the start of the agent.
type host struct {
	facts  node.Facts
	node   plan.Node       // input of admission
	limits v1.ResourceList // of all pods together
	ips    []string
	cpus   *cpuset.Allocator // nil if no policy allocates exclusive CPUs or NUMA memory, or aligns devices
}

// readHost reads this machine. Admission and limits follow from it and the configuration.
func readHost(ctx context.Context, cfg Config) (host, error) {
	f, err := node.Read(cfg.RootDir)
	if err != nil {
		return host{}, readonly.Fail(readonly.Failure, err)
	}
	if !cfg.LocalStorageCapacityIsolation {
		delete(f.Capacity, v1.ResourceEphemeralStorage)
	}
	system, kube := cfg.Reserved()
	reserved := []v1.ResourceList{system, kube}
	if cfg.Kubeconfig != "" { // as the kubelet: schedulers expect that eviction thresholds are not allocatable
		reserved = append(reserved, f.HardEvictionReservation(cfg.Thresholds()))
	}
	allocatable, err := f.Allocatable(reserved...)
	if err != nil {
		return host{}, readonly.Fail(readonly.Usage, err, "--system-reserved and --kube-reserved say what pods do not get")
	}
	ips, err := cfg.HostIPs(ctx)
	if err != nil {
		return host{}, readonly.Fail(readonly.Usage, fmt.Errorf("--node-ip: %w", err))
	}
	cpus, err := readCPUs(cfg, f, os.DirFS("/sys"))
	if err != nil {
		return host{}, err
	}
	limits := f.EnforcedLimits()
	if cfg.EnforcesPods() {
		limits = f.EnforcedLimits(system, kube)
	}
	return host{
		facts: f,
		node: plan.Node{
			Name:        cfg.NodeName,
			Labels:      f.Labels(cfg.NodeName, cfg.Labels()),
			Taints:      cfg.Taints(),
			OS:          f.OS,
			Kernel:      f.Kernel,
			Sysctls:     cfg.Sysctls(),
			Allocatable: allocatable,
			MaxPods:     cfg.PodLimit(f.Capacity.Cpu().Value()),
			NoAppArmor:  f.OS == "linux" && !f.AppArmor,
			InCluster:   cfg.Kubeconfig != "",
			Disabled:    cfg.Disabled(),
		},
		limits: limits,
		ips:    ips,
		cpus:   cpus,
	}, nil
}

// enforcement returns how the kernel enforces the resources of pods.
func (h host) enforcement(cfg Config) pod.Enforcement {
	return cfg.Enforcement(h.node.Allocatable.Memory().Value())
}

// limitReserved limits the cgroups of the system and of Kubernetes' programs that
// --enforce-node-allocatable names. It calls event for each cgroup.
func (a *Agent) limitReserved(event nodeEvent) error {
	system, kube := a.cfg.Reserved()
	for _, c := range a.cfg.ReservedCgroups() {
		list := system
		if c.Of == "kube" {
			list = kube
		}
		if err := a.groups.LimitReserved(c.Name, list, c.Compressible); err != nil {
			return readonly.Fail(readonly.Failure, fmt.Errorf("--enforce-node-allocatable: %w", err),
				fmt.Sprintf("create the cgroup that --%s-reserved-cgroup names, or enforce only pods", c.Of))
		}
		event("NodeAllocatableEnforced", v1.EventTypeNormal, fmt.Sprintf("Updated limits on %s reserved cgroup %s", c.Of, c.Name))
	}
	return nil
}

// newObserver returns the observer of this machine, which computes the Node status.
func (a *Agent) newObserver() *node.Observer {
	cfg, h := a.cfg, a.host
	return node.NewObserver(node.ObserverConfig{
		Settings: node.Settings{
			Name: cfg.NodeName, Labels: h.node.Labels, Taints: h.node.Taints, ProviderID: cfg.ProviderID,
			Port: cfg.ServerPort(), MaxPods: h.node.MaxPods, MaxImages: cfg.NodeStatusMaxImages, Allocatable: h.node.Allocatable,
			NoLocalStorage: !cfg.LocalStorageCapacityIsolation, Disabled: h.node.Disabled,
			ExternalCloud: cfg.ExternalCloud, NodeIPs: cfg.NodeIP,
		},
		NodeIPs: cfg.NodeIP, HostIPs: h.ips, NoLookup: cfg.Kubeconfig == "", Health: a.runtime.health, Facts: h.facts, Under: a.pressures.get,
		Devices: a.devices.Capacity, Drivers: a.nodeDrivers(), Runtime: a.runtime.Runtime, ShuttingDown: a.halts.shuttingDown, Log: cfg.Log,
	})
}

// healthTimeout is the timeout of the PLEG's health check.
const healthTimeout = 100 * time.Millisecond

// health returns an error if the PLEG is not healthy: pods then do not run even on a healthy
// runtime.
func (r *containerRuntime) health() error {
	ctx, cancel := context.WithTimeout(context.Background(), healthTimeout)
	defer cancel()
	if err := r.hints.Healthy(ctx); err != nil {
		return fmt.Errorf("PLEG is not healthy: %w", err)
	}
	return nil
}

// ForeignCgroup returns "" if an agent can use the cgroup of all pods, else the owner of that
// cgroup.
func ForeignCgroup(cfg config.Config, systemd bool) string {
	groups := cgroup.New(cgroup.Config{
		Root: cfg.CgroupRoot, Node: cfg.NodeName, RootDir: cfg.RootDir,
		Driver: func(context.Context) (bool, error) { return systemd, nil },
	})
	if foreign, ok := errors.AsType[*cgroup.ForeignError](groups.Foreign()); ok {
		return foreign.Conflict()
	}
	return ""
}
