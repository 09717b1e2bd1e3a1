package config

import (
	"maps"
	"slices"
	"strings"
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
)

// refusedGates rejects feature gates that disable a feature which nodectl cannot disable.
func refusedGates(l leaf) string {
	for _, name := range []string{"ContainerCheckpoint", "ProcMountType"} {
		if l.gate(name) == "false" {
			return name + " cannot be disabled"
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

// needsGate rejects a value of a field if its feature gate is off, as the kubelet does.
func needsGate(name string) func(leaf, map[string]leaf) string {
	return func(l leaf, all map[string]leaf) string {
		if all["featureGates"].gate(name) == "false" && len(l.texts) > 0 {
			return "needs the feature gate " + name
		}
		return ""
	}
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
	// The features that nodectl has, and those that it lacks.
	always := []string{
		"CPUManagerPolicyOptions", "ContainerCheckpoint", "DisableCPUQuotaWithExclusiveCPUs", "DRAExtendedResource", "DynamicResourceAllocation",
		"ImageMaximumGCAge", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"KubeletCrashLoopBackOffMax", "KubeletPSI", "KubeletPodResourcesGet", "KubeletPodResourcesListUseActivePods", "KubeletSeparateDiskGC",
		"NodeDeclaredFeatures", "NodeSwap", "PodLevelResources", "ProcMountType", "ResourceHealthStatus", "ResourceHealthStatusMessage",
		"TopologyManagerPolicyOptions",
	}
	never := []string{"KubeletInUserNamespace", "LocalStorageCapacityIsolationFSQuotaMonitoring", "PodAndContainerStatsFromCRI", "PodLevelResourceManagers", "PodsAPI", "QOSReserved"}
	honoured := []string{
		gateMemoryQoS, gateVolumeHealth, gateCFSPeriod, gateAlphaOptions, gateBetaOptions, gateShutdown, gateShutdownPriority, gatePulledImages,
	}
	var ignored []string
	for _, name := range slices.Sorted(maps.Keys(l.pairs)) {
		same := slices.Contains(always, name) && l.gate(name) == "true" || slices.Contains(never, name) && l.gate(name) == "false"
		if !slices.Contains(honoured, name) && !same {
			ignored = append(ignored, name)
		}
	}
	if len(ignored) == 0 {
		return ""
	}
	return "featureGates " + strings.Join(ignored, ", ")
}
