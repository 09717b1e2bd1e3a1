package pod

// APIFields returns the rows that differ for pods from an API server: what the
// server, its admission or the scheduler has dealt with before the pod was
// bound to this node asks nothing of it any more, and what only a static pod
// cannot have is no mistake there. Every other field is as in Fields. The result
// is the caller's.
func APIFields() []Field { return apiRows() }

func apiRows() []Field {
	const scheduled = "the scheduler has chosen this node by it"
	rows := []Field{
		inert("metadata.generateName", "the server has made the name from it"),
		honour("metadata.deletionTimestamp", RestartNone),
		honour("metadata.deletionGracePeriodSeconds", RestartNone),
		inert("metadata.finalizers", "the server keeps its object until they are lifted; the pod here may stop"),
		inert("metadata.ownerReferences", "the controllers' and the server's to act on"),
		reject("spec.volumes[].projected", "this version has emptyDir and hostPath volumes; automountServiceAccountToken: false leaves out the one that admission adds for a token"),
		{Path: "spec.ephemeralContainers", Note: "one that is added starts, and never again (C-1.19.4)"},
		honour("spec.ephemeralContainers[].targetContainerName", RestartNone),
		inert("spec.topologySpreadConstraints", scheduled),
		inert("spec.schedulingGates", "a pod that is bound to a node has passed them"),
		inert("spec.schedulingGroup", scheduled),
		inert("spec.serviceAccountName", "a token's volume, where admission has added one, speaks for itself"),
		inert("spec.serviceAccount", "a token's volume, where admission has added one, speaks for itself"),
		inert("spec.automountServiceAccountToken", "admission has turned it into a volume, which speaks for itself"),
		inert("spec.priorityClassName", "admission has turned it into spec.priority"),
		{Path: "spec.readinessGates", Note: "the conditions are the server's"},
	}
	return append(rows, containerRows("spec.ephemeralContainers[].", RestartNone)...)
}
