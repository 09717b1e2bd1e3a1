package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/go-logr/logr"
	cadvisor "github.com/google/cadvisor/info/v1"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

// directory is where the device manager has its socket and its checkpoint: a constant of the kubelet.
const directory = "/var/lib/kubelet/device-plugins"

// Device is a device of a plugin.
type Device struct {
	ID      string
	Healthy bool
	NUMA    []int64
}

// plugin is a device plugin in this process. It prefers the devices with the lowest IDs.
type plugin struct {
	pluginapi.DevicePluginClient
	resource string
}

func (p plugin) API() pluginapi.DevicePluginClient { return p }
func (p plugin) Resource() string                  { return p.resource }
func (p plugin) SocketPath() string                { return "" }

func (plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty, ...grpc.CallOption) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (plugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest, _ ...grpc.CallOption) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, of := range r.ContainerRequests {
		ids := slices.Clone(of.MustIncludeDeviceIDs)
		for _, id := range slices.Sorted(slices.Values(of.AvailableDeviceIDs)) {
			if len(ids) < int(of.AllocationSize) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return out, nil
}

func (plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest, _ ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return out, nil
}

// mounted mounts a file system of this process's own over /var/lib, once.
var mounted = sync.OnceValue(func() error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if caller, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())); err != nil || caller == own {
		return errors.Join(errors.New("devices need a mount namespace of this process's own"), err)
	}
	return syscall.Mount("tmpfs", "/var/lib", "tmpfs", 0, "size=64m")
})

// ownDirectory empties the directory of the device manager. It is never the machine's.
func ownDirectory() {
	if err := mounted(); err != nil {
		fail(err)
	}
	if err := os.RemoveAll(directory); err != nil {
		fail(err)
	}
}

// startDevices makes the device manager from its checkpoint, and registers the plugins.
func (n *node) startDevices(ctx context.Context, machine *cadvisor.MachineInfo) (err error) {
	n.stop()
	if n.devices, err = devicemanager.NewManagerImpl(machine.Topology, n.topology); err != nil {
		return err
	}
	if err := n.devices.Start(logr.Discard(), n.pods, n, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return err
	}
	for resource, list := range n.Devices {
		if err := n.devices.PluginConnected(ctx, resource, plugin{resource: resource}); err != nil {
			return err
		}
		r := &pluginapi.ListAndWatchResponse{}
		for _, d := range list {
			is := &pluginapi.Device{ID: d.ID, Health: pluginapi.Unhealthy}
			if d.Healthy {
				is.Health = pluginapi.Healthy
			}
			if len(d.NUMA) > 0 {
				is.Topology = &pluginapi.TopologyInfo{}
				for _, id := range d.NUMA {
					is.Topology.Nodes = append(is.Topology.Nodes, &pluginapi.NUMANode{ID: id})
				}
			}
			r.Devices = append(r.Devices, is)
		}
		n.devices.PluginListAndWatchReceiver(logr.Discard(), resource, r)
	}
	return nil
}

// stop stops the device manager.
func (n *node) stop() {
	if n.devices != nil {
		if err := n.devices.Stop(logr.Discard()); err != nil {
			fail(err)
		}
	}
}

// devicesOf returns the devices of a pod's containers.
func (n *node) devicesOf(p *v1.Pod) map[string]map[string][]string {
	if n.devices == nil {
		return nil
	}
	all := map[string]map[string][]string{}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for resource, list := range n.devices.GetDevices(string(p.UID), c.Name) {
			if all[c.Name] == nil {
				all[c.Name] = map[string][]string{}
			}
			all[c.Name][resource] = slices.Sorted(maps.Keys(list))
		}
	}
	return all
}
