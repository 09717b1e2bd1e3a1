package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	gateMemoryQoS    = "MemoryQoS"
	gateVolumeHealth = "CSIVolumeHealth"
	gateCFSPeriod    = "CustomCPUCFSQuotaPeriod"
	// The gates of options of the CPU policy.
	gateAlphaOptions = "CPUManagerPolicyAlphaOptions"
	gateBetaOptions  = "CPUManagerPolicyBetaOptions"

	gateShutdown         = "GracefulNodeShutdown"
	gateShutdownPriority = "GracefulNodeShutdownBasedOnPodPriority"
	gatePulledImages     = "KubeletEnsureSecretPulledImages"
	gateRestartPeriod    = "KubeletCrashLoopBackOffMax"
	gateQOSReserved      = "QOSReserved"
)

// gateRow describes how nodectl treats one feature gate of the kubelet.
type gateRow struct {
	name string
	// outcome is honoured if each value of the gate has its effect. Else nodectl has the feature if on
	// is set, and lacks it if not; the outcome is that of the other value.
	outcome disposition
	on      bool
	note    string // for the list of gates
}

func honoursGate(name, note string) gateRow {
	return gateRow{name: name, outcome: honoured, note: note}
}

// alwaysOn returns the row of a feature that nodectl cannot be without.
func alwaysOn(name, note string) gateRow {
	return gateRow{name: name, outcome: warned, on: true, note: note}
}

// alwaysOff returns the row of a feature that nodectl lacks.
func alwaysOff(name, note string) gateRow { return gateRow{name: name, outcome: warned, note: note} }

// cannotDisable returns the row of a feature whose absence a user would rely on.
func cannotDisable(name, note string) gateRow {
	return gateRow{name: name, outcome: refused, on: true, note: note}
}

// gateTable returns the feature gates that nodectl knows, by name.
func gateTable() []gateRow {
	const locked = "the kubelet refuses false, too: it has locked the gate"
	return []gateRow{
		honoursGate(gateAlphaOptions, "an alpha option of `cpuManagerPolicyOptions` is refused unless it is true"),
		honoursGate(gateBetaOptions, "false: a beta option of `cpuManagerPolicyOptions` is refused"),
		alwaysOn("CPUManagerPolicyOptions", locked),
		honoursGate(gateVolumeHealth, "sets `volume-health`"),
		cannotDisable("ContainerCheckpoint", "callers with the right to it can always checkpoint containers"),
		honoursGate(gateCFSPeriod, "false: a `cpuCFSQuotaPeriod` other than 100ms is refused"),
		alwaysOn("DRAExtendedResource", "the scheduler decides whether an extended resource is a device of a DRA driver; without the feature such a pod would start without its device"),
		honoursGate(pod.FeatureNoQuota, "false: CPU limits are enforced for containers with exclusive CPUs, too"),
		alwaysOn("DynamicResourceAllocation", locked),
		honoursGate(pod.FeatureWebSockets, "false: the Node does not declare the feature; the server accepts WebSockets all the same"),
		honoursGate(gateShutdown, "false: `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods` are refused"),
		honoursGate(gateShutdownPriority, "false: `shutdownGracePeriodByPodPriority` is refused"),
		alwaysOn("ImageMaximumGCAge", locked),
		honoursGate(pod.FeaturePodResize, "false: a resize of the pod as a whole is Infeasible, the status of pods has no resources of the pod as a whole, and the Node does not declare the feature"),
		alwaysOn("InPlacePodVerticalScaling", locked),
		alwaysOff("InPlacePodVerticalScalingExclusiveCPUs", "alpha: a resize of exclusive CPUs is Infeasible, as without the gate"),
		alwaysOff("InPlacePodVerticalScalingExclusiveMemory", "alpha: a resize of memory with the memory policy Static is Infeasible, as without the gate"),
		honoursGate(pod.FeatureInitResize, "false: a running init container that is no sidecar keeps its resources, and the Node does not declare the feature"),
		honoursGate(gateRestartPeriod, "false: `crashLoopBackOff.maxContainerRestartPeriod` is refused"),
		honoursGate(gatePulledImages, "false sets `image-pull-credentials-verification-policy: NeverVerify`"),
		alwaysOff("KubeletInUserNamespace", "alpha: nodectl needs the rights of root on the machine"),
		alwaysOn("KubeletPSI", locked),
		alwaysOn("KubeletPodResourcesGet", locked),
		alwaysOn("KubeletPodResourcesListUseActivePods", "deprecated: with false, the service `podresources` of a kubelet also lists pods that have terminated"),
		honoursGate(pod.FeatureSeparateDisk, "false: a separate file system of writable layers counts as that of images, in evictions and in statistics; with such file systems the kubelet evicts nothing at all"),
		alwaysOff("LocalStorageCapacityIsolationFSQuotaMonitoring", "nodectl measures directories; it sets no quotas of file systems"),
		honoursGate(gateMemoryQoS, "sets `memory-qos`"),
		honoursGate(pod.FeatureDeclared, "false: the Node declares no features"),
		alwaysOn("NodeSwap", locked),
		alwaysOff("PodAndContainerStatsFromCRI", "alpha: nodectl reads the statistics of pods from their cgroups, as the kubelet does without the gate"),
		alwaysOff("PodLevelResourceManagers", "alpha: only containers get exclusive CPUs and NUMA memory, as without the gate"),
		honoursGate(pod.FeaturePodResources, "false: a pod with resources for the pod as a whole is rejected"),
		alwaysOff("PodsAPI", "alpha: nodectl does not serve this API"),
		cannotDisable("ProcMountType", locked),
		honoursGate(gateQOSReserved, "`qosReserved` is refused with true, and has no effect with false"),
		honoursGate(pod.FeatureDeviceHealth, "false: the status of pods does not show the health of devices"),
		honoursGate(pod.FeatureHealthText, "false: it does not show the messages of their drivers"),
		honoursGate(pod.FeatureRestartAll, "false: a pod with a restart rule of the action RestartAllContainers is rejected, and the Node does not declare the feature"),
		honoursGate("TopologyManagerPolicyAlphaOptions", "no option is alpha"),
		honoursGate("TopologyManagerPolicyBetaOptions", "no option is beta"),
		alwaysOn("TopologyManagerPolicyOptions", locked),
	}
}

// refusedGates rejects feature gates that disable a feature which nodectl cannot disable.
func refusedGates(l leaf) string {
	for _, row := range gateTable() {
		if row.outcome == refused && l.gate(row.name) == "false" {
			return row.name + " cannot be disabled"
		}
	}
	return ""
}

// gate returns the value of a feature gate, "" if it is not set.
func (l leaf) gate(name string) string {
	if v := l.pairs[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// gateSettings are the settings that feature gates set, by gate.
var gateSettings = map[string]string{gateMemoryQoS: "memory-qos", gateVolumeHealth: "volume-health"}

// offSetting is a setting with its value.
type offSetting struct{ setting, value string }

// gateOff is the setting that a feature gate sets when it is off, by gate.
var gateOff = map[string]offSetting{
	gatePulledImages: {"image-pull-credentials-verification-policy", "NeverVerify"},
}

// gatesOff returns the features whose gates are off, nil if there is none.
func gatesOff(l leaf, _ map[string]leaf) any {
	all := slices.DeleteFunc(pod.Features(), func(name string) bool { return l.gate(name) != "false" })
	if len(all) == 0 {
		return nil
	}
	return all
}

// needsGate rejects a value of a field if its feature gate is off, as the kubelet does.
func needsGate(name string) func(leaf, map[string]leaf) string {
	return func(l leaf, all map[string]leaf) string {
		if all["featureGates"].gate(name) == "false" && len(l.texts) > 0 {
			return "needs the feature gate " + name
		}
		return ""
	}
}

// qosReserved rejects reservations of QoS classes. Without its gate the field has no effect, as in the
// kubelet.
func qosReserved(l leaf, all map[string]leaf) string {
	if all["featureGates"].gate(gateQOSReserved) == "true" && len(l.pairs) > 0 {
		return "nodectl cannot reserve memory for a QoS class"
	}
	return ""
}

// shutdownPriorities returns nothing if the node does not delay its shutdown.
func shutdownPriorities(l leaf, all map[string]leaf) any {
	if all["featureGates"].gate(gateShutdown) == "false" {
		return nil
	}
	return slices.Clone(l.texts)
}

// periodGate rejects a period other than 100ms if its feature gate is off.
func periodGate(l leaf, all map[string]leaf) string {
	if all["featureGates"].gate(gateCFSPeriod) == "false" && l.text() != cfsPeriod.String() {
		return "needs the feature gate " + gateCFSPeriod
	}
	return ""
}

// ignoredGates names the feature gates whose values differ from nodectl's behaviour.
func ignoredGates(l leaf) string {
	fine := map[string]bool{}
	for _, row := range gateTable() {
		fine[row.name] = row.outcome == honoured || (l.gate(row.name) == "true") == row.on
	}
	ignored := slices.DeleteFunc(slices.Sorted(maps.Keys(l.pairs)), func(name string) bool { return fine[name] })
	if len(ignored) == 0 {
		return ""
	}
	return "featureGates " + strings.Join(ignored, ", ")
}
