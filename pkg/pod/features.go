package pod

import "slices"

// The features of the kubelet that a node can be without, by the names of their gates.
const (
	// FeaturePodResources admits pods with resources for the pod as a whole.
	FeaturePodResources = "PodLevelResources"
	// FeaturePodResize resizes these resources while the pod runs, and reports them in its status.
	FeaturePodResize = "InPlacePodLevelResourcesVerticalScaling"
	// FeatureInitResize resizes running init containers that are no sidecars.
	FeatureInitResize = "InPlacePodVerticalScalingInitContainers"
	// FeatureRestartAll admits pods with restart rules of the action RestartAllContainers.
	FeatureRestartAll = "RestartAllContainersOnContainerExits"
	// FeatureWebSockets tells the API server that it can pass on WebSockets.
	FeatureWebSockets = "ExtendWebSocketsToKubelet"
	// FeatureDeclared lists features in the status of the Node.
	FeatureDeclared = "NodeDeclaredFeatures"
	// FeatureSeparateDisk distinguishes a file system of writable layers from that of images.
	FeatureSeparateDisk = "KubeletSeparateDiskGC"
	// FeatureNoQuota takes the quota of CPU time from containers with exclusive CPUs.
	FeatureNoQuota = "DisableCPUQuotaWithExclusiveCPUs"
	// FeatureDeviceHealth reports the health of devices in the status of pods.
	FeatureDeviceHealth = "ResourceHealthStatus"
	// FeatureHealthText adds the messages of their drivers.
	FeatureHealthText = "ResourceHealthStatusMessage"
)

// Features returns these features, sorted.
func Features() []string {
	return []string{
		FeatureNoQuota, FeatureWebSockets, FeaturePodResize, FeatureInitResize, FeatureSeparateDisk,
		FeatureDeclared, FeaturePodResources, FeatureDeviceHealth, FeatureHealthText, FeatureRestartAll,
	}
}

// Disabled names the features that are off on a node.
type Disabled []string

// Has reports whether a feature is off.
func (d Disabled) Has(feature string) bool { return slices.Contains(d, feature) }
