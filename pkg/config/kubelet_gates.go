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

// periodGate rejects a period other than 100ms if its feature gate is off.
func periodGate(l leaf, all map[string]leaf) string {
	if all["featureGates"].gate(gateCFSPeriod) == "false" && l.text() != cfsPeriod.String() {
		return "needs the feature gate " + gateCFSPeriod
	}
	return ""
}

// ignoredGates names the feature gates whose values differ from nodectl's behaviour.
func ignoredGates(l leaf) string {
	always := []string{
		"CPUManagerPolicyOptions", "DisableCPUQuotaWithExclusiveCPUs", "TopologyManagerPolicyOptions", "DynamicResourceAllocation",
		"DRAExtendedResource",
		"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"KubeletPodResourcesGet", "KubeletPodResourcesListUseActivePods", "NodeDeclaredFeatures", "NodeSwap", "PodLevelResources", "ResourceHealthStatus",
		"ResourceHealthStatusMessage",
	}
	honoured := []string{gateMemoryQoS, gateVolumeHealth, gateCFSPeriod, gateAlphaOptions, gateBetaOptions}
	var ignored []string
	for _, name := range slices.Sorted(maps.Keys(l.pairs)) {
		if !slices.Contains(honoured, name) && (l.gate(name) != "true" || !slices.Contains(always, name)) {
			ignored = append(ignored, name)
		}
	}
	if len(ignored) == 0 {
		return ""
	}
	return "featureGates " + strings.Join(ignored, ", ")
}
