package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/nodectl/nodectl/pkg/pod"
)

// pressure rejects a pod while the node is under pressure (C-1.31). Exceptions are critical pods
// and, on a node of a cluster, static pods. If MemoryPressure is the only condition, only BestEffort
// pods that do not tolerate it are rejected.
func (a *admission) pressure(spec *pod.Spec) (reason, detail string) {
	under := a.node.Pressure
	if len(under) == 0 || Priority(spec) >= pod.PriorityClusterCritical || a.node.InCluster && !spec.Origin.FromAPI() {
		return "", ""
	}
	if len(under) == 1 && under[0] == v1.NodeMemoryPressure {
		taint := v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if pod.QOS(&spec.Pod.Spec) != v1.PodQOSBestEffort || slices.ContainsFunc(spec.Pod.Spec.Tolerations, func(t v1.Toleration) bool {
			return t.ToleratesTaint(logr.Discard(), &taint, false)
		}) {
			return "", ""
		}
	}
	return "Evicted", fmt.Sprintf("The node had condition: %v. ", under)
}

// sysctls rejects a pod with a sysctl that is neither safe nor in Node.Sysctls. It also rejects one
// with a sysctl of a network or IPC namespace that the pod shares with the host.
func (a *admission) sysctls(spec *pod.Spec) (reason, detail string) {
	sc := spec.Pod.Spec.SecurityContext
	if sc == nil {
		return "", ""
	}
	for _, s := range sc.Sysctls {
		name := sysctl.NormalizeName(s.Name)
		if !safeSysctl(name, a.node.Kernel) && !slices.ContainsFunc(a.node.Sysctls, func(p string) bool { return matches(p, name) }) {
			return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", name)
		}
		switch namespace, _, _ := sysctl.GetNamespace(name); {
		case namespace == sysctl.NetNamespace && spec.Pod.Spec.HostNetwork:
			return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host %s enabled", name, namespace)
		case namespace == sysctl.IPCNamespace && spec.Pod.Spec.HostIPC:
			return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host %s enabled", name, namespace)
		}
	}
	return "", ""
}

// matches reports whether the pattern allows a name.
func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(sysctl.NormalizeName(pattern), "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return sysctl.NormalizeName(pattern) == name
}

// safeSysctl reports whether a sysctl affects only the pod that sets it (contract, appendix F).
// The kubelet before 1.37 does not know tcp_notsent_lowat and tcp_slow_start_after_idle. Some
// sysctls affect the whole node in older kernels: for an unknown kernel they are not safe.
func safeSysctl(name, kernel string) bool {
	since := func(major, minor uint) bool {
		v, err := version.ParseGeneric(kernel)
		return err == nil && v.AtLeast(version.MajorMinor(major, minor))
	}
	switch name {
	case "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
		"net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start":
		return true
	case "net.ipv4.ip_local_reserved_ports":
		return since(3, 16)
	case "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes":
		return since(4, 5)
	case "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_notsent_lowat":
		return since(4, 6)
	case "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle":
		return since(4, 15)
	}
	return false
}

// system compares the pod's label kubernetes.io/os and its spec.os with this node's operating
// system. It does not read the node selector.
func (a *admission) system(spec *pod.Spec) (reason, detail string) {
	if a.node.OS == "" {
		return "", ""
	}
	if os, ok := spec.Pod.Labels[v1.LabelOSStable]; ok && os != a.node.OS {
		return "PodOSSelectorNodeLabelDoesNotMatch", fmt.Sprintf("the pod's label %s is %q, and this node runs %s", v1.LabelOSStable, os, a.node.OS)
	}
	if os := spec.Pod.Spec.OS; os != nil && string(os.Name) != a.node.OS {
		return "PodOSNotSupported", fmt.Sprintf("spec.os.name is %q, and this node runs %s", os.Name, a.node.OS)
	}
	return "", ""
}

// fit compares the pod's requests and overhead with the free part of Node.Allocatable. As in the
// scheduler, the requests of containers that run at the same time, such as sidecars, add up. Init
// containers run one after another: of their requests the highest counts.
func (a *admission) fit(spec *pod.Spec) (reason, detail string) {
	if n := len(a.keys); a.node.MaxPods > 0 && n >= a.node.MaxPods {
		return "OutOf" + string(v1.ResourcePods), insufficient(v1.ResourcePods, 1, int64(n), int64(a.node.MaxPods))
	}
	requests := a.requests(spec.Pod)
	for _, name := range slices.SortedFunc(maps.Keys(requests), fitOrder) {
		if pod.DeviceResource(name) {
			continue // see devices
		}
		asked, used, capacity := requests[name], a.used[name], a.node.Allocatable[name]
		sum := used.DeepCopy()
		sum.Add(asked)
		if asked.Sign() > 0 && sum.Cmp(capacity) > 0 {
			return "OutOf" + string(name), insufficient(name, units(name, asked), units(name, used), units(name, capacity))
		}
	}
	return "", ""
}

// devices compares the extended resources that the pod requests with the supply of device plugins.
// A pod waits while a plugin is disconnected or has no healthy device: a replacement of the pod
// would wait, too. In other cases, the reason and the message are the kubelet's. A resource that the
// Node only advertises is compared as any other is.
func (a *admission) devices(spec *pod.Spec) (reason, detail string) {
	if a.node.Devices == nil || !pod.RequestsDevices(spec.Pod) {
		return "", ""
	}
	requests := Requests(spec.Pod)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		asked, used, offered := requests[name], a.used[name], a.node.Devices[name]
		if !pod.DeviceResource(name) || asked.Sign() <= 0 {
			continue
		}
		free := max(int64(offered.Usable)-used.Value(), 0)
		switch {
		case offered.Advertised && asked.Value() > free:
			return "OutOf" + string(name), insufficient(name, asked.Value(), used.Value(), int64(offered.Usable))
		case !offered.Registered:
			return pod.ReasonWaitsForDevices, fmt.Sprintf("waiting for a device plugin: cannot allocate unregistered device %s", name)
		case offered.Healthy == 0:
			return pod.ReasonWaitsForDevices, fmt.Sprintf("waiting for a device plugin: no healthy devices present; cannot allocate unhealthy devices %s", name)
		case asked.Value() > free:
			return pod.ReasonUnexpectedAdmission, fmt.Sprintf("Allocate failed due to requested number of devices unavailable for %s. Requested: %d, Available: %d, which is unexpected", name, asked.Value(), free)
		}
	}
	return "", ""
}

// insufficient is the kubelet's message for a resource that does not fit.
func insufficient(name v1.ResourceName, requested, used, capacity int64) string {
	return fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity)
}

// units converts a quantity as the kubelet's messages do: CPU in thousandths.
func units(name v1.ResourceName, q quantity.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// fitOrder sorts resources as the kubelet checks them: CPU, memory, ephemeral storage, then
// the others by name.
func fitOrder(x, y v1.ResourceName) int {
	rank := func(name v1.ResourceName) int {
		first := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
		if i := slices.Index(first, name); i >= 0 {
			return i
		}
		return len(first)
	}
	return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x, y))
}

// Requests returns the total requests of a pod, without resources that a ResourceClaim provides.
func Requests(p *v1.Pod) v1.ResourceList {
	return resource.PodRequests(pod.WithoutClaimed(p), resource.PodResourcesOptions{})
}

// requests returns a pod's requests for the resources that this node limits.
func (a *admission) requests(p *v1.Pod) v1.ResourceList {
	devices := a.node.Devices != nil && pod.RequestsDevices(p)
	if len(a.node.Allocatable) == 0 && !devices {
		return nil
	}
	list := Requests(p)
	maps.DeleteFunc(list, func(name v1.ResourceName, _ quantity.Quantity) bool {
		if pod.DeviceResource(name) {
			return !devices
		}
		if len(a.node.Allocatable) == 0 {
			return true
		}
		_, listed := a.node.Allocatable[name]
		return !listed && !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
	})
	return list
}

// affinity compares the node selector and the required node affinity with this node's labels
// and name. If the node has no labels, affinity rejects every pod that has a node selector.
func (a *admission) affinity(spec *pod.Spec) (reason, detail string) {
	p := spec.Pod
	if p.Spec.NodeSelector == nil && p.Spec.Affinity == nil {
		return "", ""
	}
	for _, label := range slices.Sorted(maps.Keys(p.Spec.NodeSelector)) {
		asked := p.Spec.NodeSelector[label]
		switch has, ok := a.node.Labels[label]; {
		case !ok:
			return "NodeAffinity", fmt.Sprintf("the node selector asks for %s=%s, and this node has no such label", label, asked)
		case has != asked:
			return "NodeAffinity", fmt.Sprintf("the node selector asks for %s=%s, and this node has %s=%s", label, asked, label, has)
		}
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node.Name, Labels: a.node.Labels}}
	// A term that cannot be parsed matches nothing.
	if match, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node); err != nil || !match {
		return "NodeAffinity", "the labels of this node do not match the pod's node affinity"
	}
	return "", ""
}

func (a *admission) nodeName(spec *pod.Spec) (reason, detail string) {
	if name := spec.Pod.Spec.NodeName; name != "" && a.node.Name != "" && name != a.node.Name {
		return "NodeName", fmt.Sprintf("pod is for node %s, this is %s", name, a.node.Name)
	}
	return "", ""
}

// taints rejects a pod that does not tolerate a NoExecute taint. Static pods tolerate all taints.
func (a *admission) taints(spec *pod.Spec) (reason, detail string) {
	if !spec.Origin.FromAPI() {
		return "", ""
	}
	for i := range a.node.Taints {
		taint := &a.node.Taints[i]
		tolerated := slices.ContainsFunc(spec.Pod.Spec.Tolerations, func(t v1.Toleration) bool {
			return t.ToleratesTaint(logr.Discard(), taint, false)
		})
		if taint.Effect == v1.TaintEffectNoExecute && !tolerated {
			return "TaintToleration", fmt.Sprintf("the pod does not tolerate this node's taint %s", taint.ToString())
		}
	}
	return "", ""
}

// appArmor rejects a pod with an AppArmor profile if the kernel does not enforce profiles (C-1.31,
// row 5): the pod would run unconfined.
func (a *admission) appArmor(spec *pod.Spec) (reason, detail string) {
	if a.node.NoAppArmor && needsAppArmor(spec.Pod) {
		return "AppArmor", "the pod asks for an AppArmor profile, and AppArmor is not enabled on this node"
	}
	return "", ""
}

// features rejects a pod that needs a feature which is off on this node, with the kubelet's texts
// (C-1.31).
func (a *admission) features(spec *pod.Spec) (reason, detail string) {
	switch off := a.node.Disabled; {
	case off.Has(pod.FeaturePodResources) && resource.IsPodLevelResourcesSet(spec.Pod):
		return "PodLevelResourcesNotSupported", "PodLevelResources feature gate is disabled"
	case off.Has(pod.FeatureRestartAll) && pod.RulesRestartAll(&spec.Pod.Spec):
		return "PodFeatureUnsupported", "Pod requires node features that are not available: " + pod.FeatureRestartAll
	}
	return "", ""
}

// needsAppArmor reports whether the pod, or a container of it, has a profile other than
// Unconfined: in its fields, or in the older annotations.
func needsAppArmor(p *v1.Pod) bool {
	confined := func(profile *v1.AppArmorProfile) bool {
		return profile != nil && profile.Type != v1.AppArmorProfileTypeUnconfined
	}
	of := func(sc *v1.SecurityContext) bool { return sc != nil && confined(sc.AppArmorProfile) }
	if sc := p.Spec.SecurityContext; sc != nil && confined(sc.AppArmorProfile) {
		return true
	}
	for key, profile := range p.Annotations {
		if strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && profile != v1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return of(c.SecurityContext) }) ||
		slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool { return of(c.SecurityContext) }) ||
		slices.ContainsFunc(p.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return of(c.SecurityContext) })
}
