package pod

import (
	"slices"
	"strings"
)

// APIFields returns the rows that differ for pods from an API server: fields that the
// server, its admission or the scheduler handled before the binding require nothing of
// this node, and fields that only a static pod cannot have are permitted. Every other
// field is as in Fields. The result is the caller's.
func APIFields() []Field { return apiRows() }

func apiRows() []Field {
	const scheduled = "the scheduler has chosen this node by it"
	rows := []Field{
		inert("metadata.generateName", "the server has made the name from it"),
		honour("metadata.deletionTimestamp", RestartNone),
		honour("metadata.deletionGracePeriodSeconds", RestartNone),
		inert("metadata.finalizers", "the server keeps its object until they are lifted; the pod here may stop"),
		inert("metadata.ownerReferences", "the controllers' and the server's to act on"),
		{Path: "spec.volumes[].persistentVolumeClaim", Restart: RestartPod, Note: "a claim that is bound to a hostPath or local volume of this node"},
		{Path: "spec.volumes[].projected.sources[].serviceAccountToken", Restart: RestartPod, Note: "a token of the pod's service account, renewed before it ends (C-1.38.11)"},
		honour("spec.volumes[].projected.sources[].serviceAccountToken.audience", RestartPod),
		honour("spec.volumes[].projected.sources[].serviceAccountToken.expirationSeconds", RestartPod),
		honour("spec.volumes[].projected.sources[].serviceAccountToken.path", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.name", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.signerName", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchLabels", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions[].key", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions[].operator", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.labelSelector.matchExpressions[].values", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.optional", RestartPod),
		honour("spec.volumes[].projected.sources[].clusterTrustBundle.path", RestartPod),
		{Path: "spec.enableServiceLinks", Note: "addresses of services in the environment (C-1.38.1)"},
		{Path: "spec.ephemeralContainers", Note: "one that is added starts, and never again (C-1.19.4)"},
		honour("spec.ephemeralContainers[].targetContainerName", RestartNone),
		inert("spec.topologySpreadConstraints", scheduled),
		inert("spec.schedulingGates", "a pod that is bound to a node has passed them"),
		inert("spec.schedulingGroup", scheduled),
		{Path: "spec.serviceAccountName", Note: "whose tokens the pod's volumes get"},
		inert("spec.serviceAccount", "a token's volume, where admission has added one, speaks for itself"),
		inert("spec.automountServiceAccountToken", "admission has turned it into a volume, which speaks for itself"),
		inert("spec.priorityClassName", "admission has turned it into spec.priority"),
		{Path: "spec.readinessGates", Note: "the conditions are the server's"},
	}
	return append(rows, ephemeralRows()...)
}

// notEphemeral are the fields that no API server lets an ephemeral container have.
var notEphemeral = []string{
	"ports", "resources", "resizePolicy", "restartPolicy", "restartPolicyRules", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle",
	"volumeMounts[].subPath", "volumeMounts[].subPathExpr",
}

// ephemeralRows are the rows of an ephemeral container: those of a container, but
// for what it cannot have.
func ephemeralRows() []Field {
	const at = "spec.ephemeralContainers[]."
	rows := slices.DeleteFunc(containerRows(at, RestartNone), func(f Field) bool {
		path := strings.TrimPrefix(f.Path, at)
		return slices.ContainsFunc(notEphemeral, func(not string) bool {
			return path == not || strings.HasPrefix(path, not+".") || strings.HasPrefix(path, not+"[]")
		})
	})
	for _, name := range notEphemeral {
		rows = append(rows, inert(at+name, "no API server lets an ephemeral container have it"))
	}
	return rows
}
