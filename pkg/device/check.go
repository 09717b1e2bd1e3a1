package device

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kubelet's names below its directory.
const (
	pluginsDir  = "device-plugins"
	registryDir = "plugins_registry"

	resourcesDir = "pod-resources"
	socketName   = "kubelet.sock"
)

// Limits of a plugin's messages. A message is at most maxMessage bytes.
const (
	maxMessage   = 4 << 20 // gRPC's default limit of received messages
	maxDevices   = 1 << 14 // of one resource
	maxID        = 1 << 10 // bytes
	maxResources = 256     // of all plugins
	maxResponse  = 1 << 18 // bytes of an Allocate response for one container: it becomes an annotation
)

// checkRegistration returns an error for a registration that the node must not use. The messages
// are the kubelet's.
func checkRegistration(versions []string, resource string) error {
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported versions are %q", strings.Join(versions, ","), pluginapi.SupportedVersions)
	}
	if !pod.ExtendedResource(v1.ResourceName(resource)) || len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+resource)) > 0 {
		return fmt.Errorf("the ResourceName %q is invalid", resource)
	}
	return nil
}

// checkEndpoint returns an error if an endpoint is not the name of a socket in the directory of the
// plugins.
func checkEndpoint(name string) error {
	if name == "" || name != filepath.Base(name) || name[0] == '.' || name == socketName {
		return fmt.Errorf("the endpoint %q is not the name of a socket in the directory of the plugins", name)
	}
	return nil
}

// devicesOf returns the devices of a plugin's list, by ID. It returns an error for a list that the
// node must not use.
func devicesOf(list []*pluginapi.Device) (map[string]Device, error) {
	if len(list) > maxDevices {
		return nil, fmt.Errorf("%d devices are listed, more than %d", len(list), maxDevices)
	}
	all := make(map[string]Device, len(list))
	for _, d := range list {
		if d.GetID() == "" || len(d.GetID()) > maxID {
			return nil, fmt.Errorf("a device has an ID of %d bytes: 1 to %d are allowed", len(d.GetID()), maxID)
		}
		is := Device{ID: d.GetID(), Healthy: d.GetHealth() == pluginapi.Healthy}
		for _, n := range d.GetTopology().GetNodes() {
			is.NUMA = append(is.NUMA, n.GetID())
		}
		all[is.ID] = is
	}
	return all, nil
}

// allocationOf returns a plugin's additions to a container. It returns an error for additions that
// a container must not get.
func allocationOf(resource string, devices []string, answer *pluginapi.AllocateResponse) (pod.DeviceAllocation, error) {
	a := pod.DeviceAllocation{Resource: resource, Devices: devices}
	if len(answer.GetContainerResponses()) != 1 {
		return a, fmt.Errorf("%d containers return in allocation response", len(answer.GetContainerResponses()))
	}
	r := answer.GetContainerResponses()[0]
	a.Envs, a.Annotations = r.GetEnvs(), r.GetAnnotations()
	for _, name := range slices.Sorted(maps.Keys(a.Envs)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(a.Envs[name], "\x00") {
			return a, fmt.Errorf("%q is not an environment variable", name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a.Annotations)) {
		if strings.HasPrefix(key, "nodectl.dev/") || strings.HasPrefix(key, "io.kubernetes.") {
			return a, fmt.Errorf("annotation %s is the node's own", key)
		}
	}
	for _, m := range r.GetMounts() {
		if err := checkPaths(m.GetHostPath(), m.GetContainerPath()); err != nil {
			return a, fmt.Errorf("mount: %w", err)
		}
		a.Mounts = append(a.Mounts, pod.DeviceMount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range r.GetDevices() {
		if err := checkPaths(d.GetHostPath(), d.GetContainerPath()); err != nil {
			return a, fmt.Errorf("device: %w", err)
		}
		if strings.Trim(d.GetPermissions(), "rwm") != "" {
			return a, fmt.Errorf("device %s: permissions %q are not of r, w and m", d.GetHostPath(), d.GetPermissions())
		}
		a.Nodes = append(a.Nodes, pod.DeviceNode{HostPath: d.GetHostPath(), ContainerPath: d.GetContainerPath(), Permissions: d.GetPermissions()})
	}
	for _, d := range r.GetCdiDevices() {
		if !pod.IsCDIDevice(d.GetName()) {
			return a, fmt.Errorf("%q is not a CDI device, such as vendor.com/class=name", d.GetName())
		}
		a.CDI = append(a.CDI, d.GetName())
	}
	text, err := json.Marshal(a)
	if err != nil {
		return a, err
	}
	if n := len(text); n > maxResponse {
		return a, fmt.Errorf("the answer adds %d bytes to the container, more than %d", n, maxResponse)
	}
	return a, nil
}

// checkPaths returns an error for paths that are not absolute or have "..": the response must show
// the paths that the runtime mounts. A path on the node may be a link: the plugin may choose its
// mounts.
func checkPaths(host, container string) error {
	for _, path := range []string{host, container} {
		if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") || strings.Contains(path, "\x00") {
			return fmt.Errorf("path %q is not absolute, or has \"..\"", path)
		}
	}
	return nil
}
