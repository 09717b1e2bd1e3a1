package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Settings is the configuration of a node.
type Settings struct {
	Name        string
	Labels      map[string]string // those of every node included (Facts.Labels)
	Taints      []v1.Taint        // at registration only
	ProviderID  string            // at registration only
	Port        int               // where the server listens; 0 is nowhere
	MaxPods     int               // 0 is no limit
	MaxImages   int               // in the status, the largest; -1 is no limit (C-1.25.7)
	Allocatable v1.ResourceList   // Facts.Allocatable, the same list as admission's
	// NoLocalStorage says that ephemeral storage is not accounted for.
	NoLocalStorage bool
	// ExternalCloud says that a cloud controller sets the node's addresses.
	ExternalCloud bool
	NodeIPs       []string // of --node-ip, where it names addresses
	Disabled      pod.Disabled
}

// Inputs is the changing state of a node.
type Inputs struct {
	Settings
	Addresses []string               // in order; none leaves those that the object has
	Runtime   pod.RuntimeFacts       // without a name it is not known
	Images    []pod.Image            // nil is not known
	Problems  []error                // why it is not ready, in the kubelet's order (C-1.25.6)
	Under     []v1.NodeConditionType // the pressures that it is under
	// Devices and HealthyDevices are the extended resources that device plugins serve or served.
	Devices, HealthyDevices v1.ResourceList
	// Drivers are the CSI drivers of the node; nil: none is served.
	Drivers Drivers
}

// Drivers are the CSI drivers of a node: they decide parts of its object.
type Drivers interface {
	// NodeIDs returns the annotation with the drivers' names for the node, "" for none; before is
	// its value now.
	NodeIDs(before string) string
	// Topology returns labels of the Node.
	Topology() map[string]string
	// InUse returns the volumes that must not be detached.
	InUse() []v1.UniqueVolumeName
}

const (
	maxImageNames = 5       // of one image in a Node
	manyPods      = 1 << 20 // the kubelet's value for a node without a limit

	annotationAttach = "volumes.kubernetes.io/controller-managed-attach-detach"
	// annotationNodeIP tells a cloud controller which addresses --node-ip names.
	annotationNodeIP = "alpha.kubernetes.io/provided-node-ip"
)

// declaredFeatures are those that the API server or the scheduler of Kubernetes 1.36 may require of
// a node and that this node has.
func declaredFeatures(off pod.Disabled) []string {
	if off.Has(pod.FeatureDeclared) {
		return nil
	}
	return slices.DeleteFunc([]string{pod.FeatureWebSockets, pod.FeaturePodResize, pod.FeatureInitResize, pod.FeatureRestartAll}, off.Has)
}

// Object returns the Node as it is now: a new one where before is nil, else before with
// its status brought up to date (C-1.25.2, C-1.25.6). Fields of other writers stay:
// their conditions, labels, a cloud controller's addresses, and the whole spec.
func Object(f Facts, in Inputs, before *v1.Node, now time.Time) *v1.Node {
	n := before.DeepCopy()
	if before == nil {
		n = &v1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{
				Name: in.Name, Labels: maps.Clone(in.Labels),
				Annotations: map[string]string{annotationAttach: "true"},
			},
			Spec: v1.NodeSpec{Taints: slices.Clone(in.Taints), ProviderID: in.ProviderID},
		}
	}
	for key, value := range map[string]string{v1.LabelOSStable: f.OS, v1.LabelArchStable: f.Arch} {
		if before != nil && n.Labels[key] != value {
			metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
		}
	}
	s := &n.Status
	setAddresses(in, n)
	s.Capacity, s.Allocatable = resources(f, in.Settings, s.Capacity)
	maps.Copy(s.Capacity, in.Devices)
	maps.Copy(s.Allocatable, in.HealthyDevices)
	s.NodeInfo = v1.NodeSystemInfo{
		MachineID: f.MachineID, SystemUUID: f.SystemUUID, BootID: f.BootID,
		KernelVersion: f.Kernel, OSImage: f.OSImage,
		ContainerRuntimeVersion: runtimeName(in.Runtime, s.NodeInfo.ContainerRuntimeVersion),
		KubeletVersion:          KubernetesVersion(),
		OperatingSystem:         f.OS, Architecture: f.Arch,
	}
	if f.Swap > 0 {
		s.NodeInfo.Swap = &v1.NodeSwapStatus{Capacity: &f.Swap}
	}
	s.DaemonEndpoints.KubeletEndpoint.Port = int32(in.Port)
	if in.Images != nil {
		s.Images = images(in.Images, in.MaxImages)
	}
	if in.Runtime.Name != "" { // it answered
		s.RuntimeHandlers, s.Features = in.Runtime.Handlers, in.Runtime.Features
	}
	s.DeclaredFeatures = declaredFeatures(in.Disabled)
	setDrivers(in.Drivers, n)
	conditions(in, s, metav1.NewTime(now))
	return n
}

// Adopt sets the node's own metadata on an existing object: its default labels and its
// annotation (C-1.25.2).
func Adopt(in Inputs, n *v1.Node) {
	for _, key := range ownLabels() {
		if value := in.Labels[key]; value != "" {
			metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
		}
	}
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, annotationAttach, "true")
}

// WithoutExtended returns a Node without extended resources. On a Node of an earlier agent or kubelet,
// some are those of device plugins, which are not connected yet: a pod must not start without its
// devices. Those of other writers go, too, as they do when a kubelet starts.
func WithoutExtended(n *v1.Node) *v1.Node {
	n = n.DeepCopy()
	for _, list := range []v1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		maps.DeleteFunc(list, func(name v1.ResourceName, _ resource.Quantity) bool { return pod.ExtendedResource(name) })
	}
	return n
}

// Changed reports whether a Node is worth sending: the times of heartbeats alone
// are not (C-1.25.3).
func Changed(before, after *v1.Node) bool {
	a, b := before.Status.DeepCopy(), after.Status.DeepCopy()
	for _, s := range []*v1.NodeStatus{a, b} {
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return !equality.Semantic.DeepEqual(a, b) ||
		!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations)
}

// annotationNodeIDs has the CSI drivers' names for the node.
const annotationNodeIDs = "csi.volume.kubernetes.io/nodeid"

// setDrivers writes the parts of the Node that CSI drivers decide. It changes no label that exists, as the
// kubelet does not: a driver that reports another value does not register.
func setDrivers(d Drivers, n *v1.Node) {
	n.Status.VolumesInUse = nil
	if d == nil {
		return
	}
	n.Status.VolumesInUse = d.InUse()
	if ids := d.NodeIDs(n.Annotations[annotationNodeIDs]); ids != "" {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, annotationNodeIDs, ids)
	} else {
		delete(n.Annotations, annotationNodeIDs)
	}
	for key, value := range d.Topology() {
		if _, has := n.Labels[key]; !has {
			metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
		}
	}
}

// setAddresses writes the node's addresses, as the kubelet does. Those of a cloud
// controller win; until it wrote some, there are those of --node-ip, or only the name.
func setAddresses(in Inputs, n *v1.Node) {
	given := slices.DeleteFunc(slices.Clone(in.NodeIPs), func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err != nil || ip.IsUnspecified() // it asks for a family
	})
	if in.ExternalCloud && len(given) > 0 {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, annotationNodeIP, strings.Join(given, ","))
	} else {
		delete(n.Annotations, annotationNodeIP)
	}
	switch {
	case in.ExternalCloud && len(n.Status.Addresses) > 0:
	case in.ExternalCloud && len(in.NodeIPs) == 0:
		n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeHostName, Address: in.Name}}
	case len(in.Addresses) > 0:
		n.Status.Addresses = addresses(in)
	}
}

func addresses(in Inputs) []v1.NodeAddress {
	var all []v1.NodeAddress
	for _, ip := range in.Addresses {
		all = append(all, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(all, v1.NodeAddress{Type: v1.NodeHostName, Address: in.Name})
}

// resources returns the capacity and the allocatable part of it. Resources of other writers stay,
// also extended ones, which anyone with the right may advertise. It drops sizes of huge pages that
// the kernel no longer has.
func resources(f Facts, in Settings, before v1.ResourceList) (capacity, allocatable v1.ResourceList) {
	capacity = f.Capacity.DeepCopy()
	for name, q := range before {
		if _, ours := capacity[name]; !ours && !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			capacity[name] = q
		}
	}
	if in.NoLocalStorage {
		delete(capacity, v1.ResourceEphemeralStorage)
	}
	most := int64(in.MaxPods)
	if most == 0 {
		most = manyPods
	}
	capacity[v1.ResourcePods] = *resource.NewQuantity(most, resource.DecimalSI)
	allocatable = capacity.DeepCopy()
	maps.Copy(allocatable, in.Allocatable.DeepCopy())
	return capacity, allocatable
}

// runtimeName is containerRuntimeVersion. If the runtime does not answer, the earlier version
// stays.
func runtimeName(r pod.RuntimeFacts, before string) string {
	switch {
	case r.Version != "":
		return r.Name + "://" + runtimeVersion(r.Version)
	case before != "":
		return before
	}
	return "remote://Unknown"
}

// images are the largest ones, with the first of their names (C-1.25.7).
func images(all []pod.Image, most int) []v1.ContainerImage {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b pod.Image) int {
		if a.Size != b.Size {
			return int(max(min(b.Size-a.Size, 1), -1))
		}
		return strings.Compare(b.ID, a.ID)
	})
	var some []v1.ContainerImage
	if most < 0 {
		most = len(all)
	}
	for _, i := range all[:min(len(all), most)] {
		some = append(some, v1.ContainerImage{Names: slices.Clone(i.Names[:min(len(i.Names), maxImageNames)]), SizeBytes: i.Size})
	}
	return some
}

// conditions sets the four that are the node's own, Ready last.
func conditions(in Inputs, s *v1.NodeStatus, now metav1.Time) {
	for _, c := range []struct {
		is            v1.NodeConditionType
		yes, no       string
		yesSay, noSay string
	}{
		{v1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory", "kubelet has insufficient memory available", "kubelet has sufficient memory available"},
		{v1.NodeDiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure", "kubelet has disk pressure", "kubelet has no disk pressure"},
		{v1.NodePIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID", "kubelet has insufficient PID available", "kubelet has sufficient PID available"},
	} {
		if slices.Contains(in.Under, c.is) {
			setCondition(s, v1.NodeCondition{Type: c.is, Status: v1.ConditionTrue, Reason: c.yes, Message: c.yesSay}, now)
		} else {
			setCondition(s, v1.NodeCondition{Type: c.is, Status: v1.ConditionFalse, Reason: c.no, Message: c.noSay}, now)
		}
	}
	problems := slices.Clone(in.Problems)
	if missing := missingCapacity(s.Capacity, in.NoLocalStorage); missing != "" {
		problems = append(problems, errors.New("missing node capacity for resources: "+missing))
	}
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	if err := utilerrors.NewAggregate(problems); err != nil {
		ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "KubeletNotReady", err.Error()
	}
	setCondition(s, ready, now)
}

func missingCapacity(capacity v1.ResourceList, noLocalStorage bool) string {
	var missing []string
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage} {
		if _, ok := capacity[name]; !ok && (name != v1.ResourceEphemeralStorage || !noLocalStorage) {
			missing = append(missing, string(name))
		}
	}
	return strings.Join(missing, ", ")
}

// setCondition puts a condition in its place, or last. Its transition is when its
// status became another.
func setCondition(s *v1.NodeStatus, c v1.NodeCondition, now metav1.Time) {
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	i := slices.IndexFunc(s.Conditions, func(o v1.NodeCondition) bool { return o.Type == c.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[i].Status == c.Status {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}

// Condition returns a condition of a Node; its status is "" where there is none.
func Condition(n *v1.Node, of v1.NodeConditionType) v1.NodeCondition {
	if n != nil {
		for _, c := range n.Status.Conditions {
			if c.Type == of {
				return c
			}
		}
	}
	return v1.NodeCondition{}
}

// Event is an event of the node, as the API's.
type Event struct{ Reason, Type, Message string }

// Events returns the events when before becomes after: of conditions that changed, and
// of a reboot (C-1.25.6, C-1.25.7). before may be nil.
func Events(before, after *v1.Node) []Event {
	var all []Event
	say := func(reason string) {
		all = append(all, Event{reason, v1.EventTypeNormal, fmt.Sprintf("Node %s status is now: %s", after.Name, reason)})
	}
	if before != nil {
		was, is := before.Status.NodeInfo.BootID, after.Status.NodeInfo.BootID
		if was != "" && is != was {
			all = append(all, Event{"Rebooted", v1.EventTypeWarning, fmt.Sprintf("Node %s has been rebooted, boot id: %s", after.Name, is)})
		}
	}
	for _, c := range []struct {
		is      v1.NodeConditionType
		yes, no string
	}{
		{v1.NodeMemoryPressure, "NodeHasInsufficientMemory", "NodeHasSufficientMemory"},
		{v1.NodeDiskPressure, "NodeHasDiskPressure", "NodeHasNoDiskPressure"},
		{v1.NodePIDPressure, "NodeHasInsufficientPID", "NodeHasSufficientPID"},
		{v1.NodeReady, "NodeReady", "NodeNotReady"},
	} {
		was, is := Condition(before, c.is).Status, Condition(after, c.is).Status
		switch {
		case was == is || c.is == v1.NodeReady && was == "": // a node that was never ready did not become so
		case is == v1.ConditionTrue:
			say(c.yes)
		default:
			say(c.no)
		}
	}
	return all
}
