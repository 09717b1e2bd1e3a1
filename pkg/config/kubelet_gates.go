package config

import (
	"maps"
	"slices"
	"strings"
)

const (
	gateMemoryQoS = "MemoryQoS"
	gateCFSPeriod = "CustomCPUCFSQuotaPeriod"
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

// memoryQoSGate returns the setting of the gate MemoryQoS.
func memoryQoSGate(l leaf, _ map[string]leaf) any {
	if v := l.gate(gateMemoryQoS); v != "" {
		return v
	}
	return nil
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
	always := []string{
		"CPUManagerPolicyOptions", "DisableCPUQuotaWithExclusiveCPUs", "TopologyManagerPolicyOptions",
		"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"KubeletPodResourcesGet", "KubeletPodResourcesListUseActivePods", "NodeDeclaredFeatures", "NodeSwap", "PodLevelResources", "ResourceHealthStatus",
	}
	honoured := []string{gateMemoryQoS, gateCFSPeriod, gateAlphaOptions, gateBetaOptions}
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
