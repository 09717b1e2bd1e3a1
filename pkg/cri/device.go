package cri

import (
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// devices are the additions of devices to the configuration of their container.
type devices struct {
	vars   map[string]string // envs, by name
	envs   []*runtimeapi.KeyValue
	mounts []*runtimeapi.Mount
	nodes  []*runtimeapi.Device
	cdi    []*runtimeapi.CDIDevice
}

// devicesOf returns the additions of the plugins of the container's devices, its block volumes, and
// the CDI devices of its claims and of the pod's annotations. Of two plugins that set the same variable, path or device, the first
// resource by name wins (as in the kubelet, where the order varies).
func devicesOf(q pod.CreateRequest) (devices, error) {
	d := devices{vars: make(map[string]string)}
	paths, nodes, known := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, a := range q.Devices {
		for _, name := range slices.Sorted(maps.Keys(a.Envs)) {
			if _, ok := d.vars[name]; !ok {
				d.vars[name] = a.Envs[name]
				d.envs = append(d.envs, &runtimeapi.KeyValue{Key: name, Value: []byte(a.Envs[name])})
			}
		}
		for _, m := range a.Mounts {
			if !paths[m.ContainerPath] {
				paths[m.ContainerPath] = true
				d.mounts = append(d.mounts, &runtimeapi.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Readonly: m.ReadOnly})
			}
		}
		for _, n := range a.Nodes {
			if !nodes[n.ContainerPath] {
				nodes[n.ContainerPath] = true
				d.nodes = append(d.nodes, &runtimeapi.Device{HostPath: n.HostPath, ContainerPath: n.ContainerPath, Permissions: n.Permissions})
			}
		}
	}
	for _, b := range q.BlockDevices {
		n := &runtimeapi.Device{HostPath: b.HostPath, ContainerPath: b.ContainerPath, Permissions: "mrw"}
		if b.ReadOnly {
			n.Permissions = "r"
		}
		d.nodes = append(d.nodes, n)
	}
	add := func(names []string) {
		for _, name := range names {
			if !known[name] {
				known[name] = true
				d.cdi = append(d.cdi, &runtimeapi.CDIDevice{Name: name})
			}
		}
	}
	for _, a := range q.Devices {
		add(a.CDI)
	}
	for _, claim := range q.Claims {
		for _, device := range claim.Devices {
			add(device.CDI)
		}
	}
	named, err := pod.CDIDevices(q.Want)
	add(named)
	return d, err
}
