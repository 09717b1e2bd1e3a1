package pod

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// annotationCDI is the prefix of the annotations of a Pod that name CDI devices.
const annotationCDI = "cdi.k8s.io/"

const (
	// ReasonWaitsForDevices is the reason of a pod whose device plugin is away, or has no healthy
	// device: it waits.
	ReasonWaitsForDevices = "WaitsForDevicePlugin"
	// ReasonUnexpectedAdmission is the kubelet's reason of a pod that cannot get its devices.
	ReasonUnexpectedAdmission = "UnexpectedAdmissionError"
)

// DeviceAllocation is the devices of one resource that a container has, and the additions of their
// plugin to the container.
type DeviceAllocation struct {
	Resource    string            `json:"resource"`
	Devices     []string          `json:"devices"` // their IDs, sorted
	Envs        map[string]string `json:"envs,omitempty"`
	Mounts      []DeviceMount     `json:"mounts,omitempty"`
	Nodes       []DeviceNode      `json:"nodes,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	CDI         []string          `json:"cdi,omitempty"` // qualified names
}

// DeviceMount is a file or directory of the node that a plugin mounts.
type DeviceMount struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
}

// DeviceNode is a device file of the node that a plugin gives to a container.
type DeviceNode struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	Permissions   string `json:"permissions"` // of r, w, m
}

// DeviceRequest asks for the devices of a container that is about to be created.
type DeviceRequest struct {
	Want      *Spec
	Container string
	// Have holds the devices of the pod's containers, by name, as the runtime and the record show
	// them. The newest container of a name counts, also after it has exited.
	Have map[string][]DeviceAllocation
	// Replaces says that the container replaces one of the same spec.
	Replaces bool
	// Near are the NUMA nodes that admission chose for the container (Placement.NUMA): it gets devices of
	// these nodes first. It is empty if the topology policy aligns nothing. With Only, the container
	// gets no other devices.
	Near []int
	Only bool
}

// DeviceHolder is a pod whose containers have devices.
type DeviceHolder struct {
	Key
	UID        string
	Containers map[string][]DeviceAllocation // by name
	// Others are the devices of other containers of the pod that may still run.
	Others []DeviceAllocation
}

// DeviceSupply is the supply of one resource.
type DeviceSupply struct {
	// Advertised says that no plugin serves the resource: another writer has put it on the Node. It is
	// counted, and has no devices.
	Advertised bool
	Registered bool // a plugin is connected
	Healthy    int  // devices
	Usable     int  // healthy devices, and others that containers have
	// Layout has the devices by NUMA node; nil: the plugin lists no device with a NUMA node.
	Layout *DeviceLayout
}

// DeviceLayout has the devices of one resource, and the containers that have them.
type DeviceLayout struct {
	Devices map[string]DevicePlace // all devices that the plugin lists, by ID
	// Users has the devices of containers, by the UID of the pod and the name of the container. The name ""
	// stands for DeviceHolder.Others.
	Users map[string]map[string][]string
}

// DevicePlace is a device of a DeviceLayout.
type DevicePlace struct {
	Healthy bool
	NUMA    []int64 // its NUMA nodes; empty: unknown
}

// DeviceReservation has the devices of one resource that admission reserves for a container. The
// container is not created yet.
type DeviceReservation struct {
	UID, Container string
	Resource       string
	Devices        []string
}

// ExtendedResource reports whether a resource has a domain of its own, not Kubernetes': device
// plugins serve such resources.
func ExtendedResource(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix)
}

// DeviceResource reports whether a container gets devices for a resource, from a device plugin or a
// ResourceClaim: an extended resource, or one that has the name of a DeviceClass. A plugin cannot serve the
// latter.
func DeviceResource(name v1.ResourceName) bool {
	return ExtendedResource(name) || strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix)
}

// DeviceRequests returns how many devices of each resource a container of a pod requests of device plugins. A request of such a resource equals its limit.
func DeviceRequests(p *v1.Pod, c *v1.Container) map[string]int {
	var all map[string]int
	for name, q := range c.Resources.Limits {
		if DeviceResource(name) && q.Sign() > 0 && !isClaimed(p, c.Name, name) {
			if all == nil {
				all = make(map[string]int)
			}
			all[string(name)] = int(q.Value())
		}
	}
	return all
}

// RequestsDevices reports whether a container of the pod requests devices of device plugins.
func RequestsDevices(p *v1.Pod) bool {
	requests := func(c v1.Container) bool { return len(DeviceRequests(p, &c)) > 0 }
	return slices.ContainsFunc(p.Spec.InitContainers, requests) || slices.ContainsFunc(p.Spec.Containers, requests)
}

// cdiName is the form of a CDI device's qualified name.
var cdiName = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$`)

// IsCDIDevice reports whether a text is a CDI device's qualified name, such as
// vendor.com/gpu=gpu0.
func IsCDIDevice(name string) bool { return len(name) <= 1024 && cdiName.MatchString(name) }

// CDIDevices returns the CDI devices that the annotations of a pod name, sorted, for each of its
// containers. Annotations of an API server's pod name none: there, users without rights on the
// node write them.
func CDIDevices(s *Spec) ([]string, error) {
	if s.Origin.FromAPI() {
		return nil, nil
	}
	all := make(map[string]bool)
	for _, key := range slices.Sorted(maps.Keys(s.Pod.Annotations)) {
		if !strings.HasPrefix(key, annotationCDI) {
			continue
		}
		for name := range strings.SplitSeq(s.Pod.Annotations[key], ",") {
			if !IsCDIDevice(name) {
				return nil, fmt.Errorf("annotation %s: %q is not a CDI device, such as vendor.com/class=name", key, name)
			}
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// NamesCDIDevices reports whether annotations name CDI devices.
func NamesCDIDevices(annotations map[string]string) bool {
	for key := range annotations {
		if strings.HasPrefix(key, annotationCDI) {
			return true
		}
	}
	return false
}
