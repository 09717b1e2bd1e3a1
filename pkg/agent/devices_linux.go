package agent

import (
	"context"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/device"
	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/volume"
)

// newDevices returns the device plugins of this node; serveDevices serves them. handlers register
// plugins of other types.
func newDevices(cfg Config, m *metrics.Metrics, handlers map[string]device.Handler) *device.Plugins {
	c := device.Config{Dir: cfg.Plugins(), Handlers: handlers, Log: cfg.Log, Registered: m.PluginRegistered, Allocated: m.DevicesAllocated}
	if volume.SELinuxEnabled() {
		c.Label = func(dir string) error {
			return unix.Lsetxattr(dir, "security.selinux", []byte("system_u:object_r:container_file_t:s0"), 0) // the kubelet's
		}
	}
	return device.New(c)
}

// newPodResources returns the kubelet's service podresources.
func (a *Agent) newPodResources(pods func() []v1.Pod) *device.PodResources {
	c := device.ResourcesConfig{
		Dir: a.cfg.Plugins(), Pods: pods, Allocations: a.runtime.Allocations, Devices: a.devices.Resources, OnRequest: a.metrics.PodResourcesRequested,
	}
	if a.host.cpus != nil {
		c.CPUs, c.Memory = a.host.cpus.Allocatable()
	}
	return device.NewPodResources(c)
}

// allocations lists the containers with devices, exclusive CPUs or NUMA memory, for the server.
func allocations(r *device.PodResources) func(context.Context) ([]server.Allocation, error) {
	return func(ctx context.Context) ([]server.Allocation, error) {
		pods, err := r.Allocations(ctx)
		return allocationList(pods), err
	}
}

// allocationList leaves out containers without an allocation.
func allocationList(pods []device.PodAllocation) []server.Allocation {
	all := []server.Allocation{}
	for _, p := range pods {
		for _, c := range p.Containers {
			one := server.Allocation{Namespace: p.Namespace, Pod: p.Name, Container: c.Name, CPUs: c.CPUs}
			for _, b := range c.Memory {
				one.Memory = append(one.Memory, server.AllocatedMemory{Type: string(b.Type), Bytes: int64(min(b.Size, math.MaxInt64)), NUMANodes: b.NUMAAffinity})
			}
			for _, d := range c.Devices {
				one.Devices = append(one.Devices, server.AllocatedDevices{Resource: d.Resource, IDs: d.Devices})
			}
			for _, claim := range c.Claims {
				is := server.AllocatedClaim{Name: claim.Name, Devices: []server.ClaimDevice{}}
				for _, d := range claim.Devices {
					is.Devices = append(is.Devices, server.ClaimDevice{Driver: d.Driver, Pool: d.Pool, Device: d.Device})
				}
				one.Claims = append(one.Claims, is)
			}
			if one.CPUs != "" || one.Memory != nil || one.Devices != nil || one.Claims != nil {
				all = append(all, one)
			}
		}
	}
	return all
}

// serveDevices serves device plugins, CSI and DRA drivers and pod resources until ctx ends. If it
// cannot serve them, only pods that request devices or volumes of drivers wait.
func (a *Agent) serveDevices(ctx context.Context, pods func() []v1.Pod) {
	if os.Geteuid() != 0 {
		a.log.Info("Device plugins and CSI drivers not served: only root may give devices to containers, and mount")
		return
	}
	var resources sync.WaitGroup
	defer resources.Wait()
	resources.Go(func() {
		if err := a.newPodResources(pods).Run(ctx); err != nil {
			a.log.Warn("Pod resources not served", "directory", a.cfg.Plugins(), "error", err)
		}
	})
	resources.Go(func() { a.serveCSI(ctx) })
	resources.Go(func() { a.serveClaims(ctx) })
	if err := a.devices.Run(ctx); err != nil {
		a.log.Warn("Device plugins not served; pods that request their devices wait", "directory", a.cfg.Plugins(), "error", err,
			"hint", "--kubelet-dir names the directory of their sockets")
	}
}

// deviceList lists the resources of device plugins for the server.
func deviceList(plugins *device.Plugins) []server.DeviceResource {
	all := []server.DeviceResource{}
	for _, r := range plugins.Resources() {
		one := server.DeviceResource{Name: r.Name, Connected: r.Connected, Socket: r.Socket, Devices: []server.Device{}}
		for _, d := range r.Devices {
			health := "Unlisted"
			switch {
			case d.Listed && d.Healthy:
				health = "Healthy"
			case d.Listed:
				health = "Unhealthy"
			}
			is := server.Device{ID: d.ID, Health: health, NUMANodes: d.NUMA}
			for _, u := range d.Users {
				is.UsedBy = append(is.UsedBy, server.DeviceUser(u))
			}
			one.Devices = append(one.Devices, is)
		}
		all = append(all, one)
	}
	return all
}
