package podspec

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// WorkloadFields returns the table of a kind of workloads (pod.WorkloadKinds): one row for every
// field of its metadata and spec, down to the pod template, a Rejected or Inert row or a plain
// value. Field.Restart has no meaning in it. The result is the caller's.
func WorkloadFields(kind string) []Field { return workloadRows(kind) }

// TemplateFields returns the rows by which the pod template of a workload differs from a Pod of a
// manifest. Every other field is as in Fields. The result is the caller's.
func TemplateFields() []Field { return templateRows() }

// UnsupportedWorkload returns a problem for every field of a workload, the fields of its pod
// template included, that this version does not support. object is as its author set it, before
// defaulting: an empty value counts as unset. The problems have a path, a message and a hint,
// and no place.
func UnsupportedWorkload(kind string, object any) []pod.Problem {
	var out []pod.Problem
	workloadTrees[kind]().unsupported(reflect.ValueOf(object).Elem(), nil, &out)
	return out
}

// IgnoredWorkload is Ignored for the spec of a workload.
func IgnoredWorkload(kind string, object any) []pod.Problem {
	var out []pod.Problem
	spec := workloadTrees[kind]().kid("spec")
	spec.ignored(spec.of(reflect.ValueOf(object).Elem()), nil, &out)
	return out
}

// workloadTrees has the tree of each kind of workloads. Each is built once, at first use, and
// never written to afterwards.
var workloadTrees = func() map[string]func() *fieldNode {
	trees := map[string]func() *fieldNode{}
	for _, kind := range pod.WorkloadKinds() {
		trees[kind] = sync.OnceValue(func() *fieldNode {
			return newFieldTree(reflect.TypeOf(pod.NewWorkload(kind)).Elem(), workloadRows(kind), templateTree())
		})
	}
	return trees
}()

// templateTree is fieldTree for the pod templates of workloads.
var templateTree = sync.OnceValue(func() *fieldNode {
	return newFieldTree(reflect.TypeFor[v1.PodTemplateSpec](), append(fieldRows(), templateRows()...), nil)
})

// templateRows are the rows of a pod template that differ from those of a Pod. Of the metadata,
// Kubernetes' controllers use labels, annotations and finalizers.
func templateRows() []Field {
	const (
		metadata  = "the workload gives its pods their names; of the template's metadata only labels and annotations take effect"
		noAccount = "without an API server there are no service accounts"
		bound     = "the pods of a workload are bound to this node"
	)
	var rows []Field
	for _, name := range []string{"name", "generateName", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"} {
		rows = append(rows, inert("metadata."+name, metadata))
	}
	return append(rows,
		refuse("spec.ephemeralContainers", "a pod template has no ephemeral containers", "write it under spec.containers"),
		refuse("spec.serviceAccountName", noAccount, "remove it"),
		refuse("spec.serviceAccount", noAccount, "remove it"),
		only("spec.automountServiceAccountToken", RestartNone, noAccount+": write false or remove the field", oneOf("false")),
		refuse("spec.volumes[].projected.sources[].serviceAccountToken", noAccount, "remove it, or use a secret"),
		Field{Path: "spec.schedulerName", Support: Inert, Note: "the pods are bound to their node without a scheduler", Served: v1.DefaultSchedulerName},
		refuse("spec.schedulingGates", bound, "remove it"),
		refuse("spec.schedulingGroup", bound, "remove it"),
	)
}

func workloadRows(kind string) []Field {
	rows := workloadMetadataRows()
	rows = append(rows, honour("spec", RestartNone))
	switch kind {
	case pod.KindDeployment:
		rows = append(rows, deploymentRows()...)
	case pod.KindReplicaSet:
		rows = append(rows, below("spec.", append(replicaRows(), selectorAndTemplateRows()...))...)
	case pod.KindStatefulSet:
		rows = append(rows, statefulSetRows()...)
	case pod.KindDaemonSet:
		rows = append(rows, daemonSetRows()...)
	case pod.KindJob:
		rows = append(rows, below("spec.", jobRows())...)
	case pod.KindCronJob:
		rows = append(rows, cronJobRows()...)
	}
	return append(rows, inert("status", "nodectl reads no status from a manifest"))
}

// workloadMetadataRows are the rows of a workload's own metadata: those of a Pod, but for its
// name and its UID.
func workloadMetadataRows() []Field {
	return replaced(metadataRows(),
		Field{Path: "metadata.name", Note: "the pods' names begin with it; the node's name is not appended"},
		refuse("metadata.generateName", "a workload in a manifest needs a fixed name", "write metadata.name"),
		inert("metadata.uid", "derived from node, kind, namespace and name"),
		refuse("metadata.deletionTimestamp", "a manifest cannot describe a workload that is being deleted", "remove the field; to delete the workload, remove its manifest"),
		refuse("metadata.deletionGracePeriodSeconds", "a manifest cannot describe a workload that is being deleted", "remove the field"),
	)
}

// replaced returns rows with each of others in place of the row of its path.
func replaced(rows []Field, others ...Field) []Field {
	for _, other := range others {
		i := slices.IndexFunc(rows, func(f Field) bool { return f.Path == other.Path })
		rows[i] = other
	}
	return rows
}

// onlyValue is a field that is honoured for one value; why is the problem of another one.
func onlyValue(path, value, why string) Field {
	return Field{Path: path, Note: "write " + value + " or remove the field", Check: func(v any) string {
		if fmt.Sprint(v) == value {
			return ""
		}
		return why
	}}
}

func replicaRows() []Field {
	return []Field{
		{Path: "replicas", Note: "if it is not set: 1; at most 1000"},
		honour("minReadySeconds", RestartNone),
	}
}

func selectorAndTemplateRows() []Field {
	return []Field{
		{Path: "selector", Note: "has to match the labels of the template; it adopts no other pods"},
		honour("selector.matchLabels", RestartNone),
		honour("selector.matchExpressions", RestartNone),
		honour("selector.matchExpressions[].key", RestartNone),
		honour("selector.matchExpressions[].operator", RestartNone),
		honour("selector.matchExpressions[].values", RestartNone),
		{Path: "template", Note: "see the fields of a pod template"},
	}
}

func deploymentRows() []Field {
	rows := append(replicaRows(), selectorAndTemplateRows()...)
	return below("spec.", append(rows,
		honour("strategy", RestartNone),
		Field{Path: "strategy.type", Note: "RollingUpdate, or Recreate"},
		honour("strategy.rollingUpdate", RestartNone),
		honour("strategy.rollingUpdate.maxUnavailable", RestartNone),
		honour("strategy.rollingUpdate.maxSurge", RestartNone),
		honour("revisionHistoryLimit", RestartNone),
		honour("paused", RestartNone),
		honour("progressDeadlineSeconds", RestartNone),
	))
}

func statefulSetRows() []Field {
	const kept = "the data of a claim stay until a person removes them (nodectl delete volume)"
	rows := append(replicaRows(), selectorAndTemplateRows()...)
	rows = append(rows, below("volumeClaimTemplates", claimTemplateRows())...)
	return below("spec.", append(rows,
		Field{Path: "serviceName", Note: "the subdomain of the pods; an edit applies to the pods that are made after it"},
		Field{Path: "podManagementPolicy", Note: "OrderedReady, or Parallel"},
		honour("updateStrategy", RestartNone),
		Field{Path: "updateStrategy.type", Note: "RollingUpdate, or OnDelete: a pod gets the new version when a person deletes it, or when it starts again because it Failed or was evicted"},
		honour("updateStrategy.rollingUpdate", RestartNone),
		honour("updateStrategy.rollingUpdate.partition", RestartNone),
		honour("updateStrategy.rollingUpdate.maxUnavailable", RestartNone),
		honour("revisionHistoryLimit", RestartNone),
		Field{Path: "persistentVolumeClaimRetentionPolicy", Note: "see its fields"},
		Field{Path: "persistentVolumeClaimRetentionPolicy.whenDeleted", Support: Inert, Note: kept, Served: "Retain"},
		Field{Path: "persistentVolumeClaimRetentionPolicy.whenScaled", Support: Inert, Note: kept, Served: "Retain"},
		honour("ordinals", RestartNone),
		honour("ordinals.start", RestartNone),
	))
}

// claimTemplateRows are the rows of the claim templates of a StatefulSet. A claim is a directory
// of this node.
func claimTemplateRows() []Field {
	const another = "a claim is a directory on this node; this field asks for another kind of volume"
	rows := []Field{{Note: "an edit, which Kubernetes rejects, applies to the claims of pods that are made after it; older pods keep their claims"}}
	metadata := replaced(metadataRows(),
		Field{Path: "metadata.name", Note: "the claims are NAME-POD"},
		inert("metadata.namespace", "the claims are in the namespace of their StatefulSet"),
		inert("metadata.uid", "an API server's bookkeeping"),
	)
	for _, f := range metadata {
		if f.Support == Rejected {
			f = inert(f.Path, "of the template's metadata only name, labels and annotations take effect")
		}
		f.Restart = RestartNone
		rows = append(rows, f)
	}
	rows = append(rows,
		honour("spec", RestartNone),
		honour("spec.accessModes", RestartNone),
		honour("spec.resources", RestartNone),
		Field{Path: "spec.resources.limits", Note: "accepted; the size of a claim is not enforced"},
		Field{Path: "spec.resources.requests", Note: "required; the size of a claim is not enforced"},
		inert("spec.storageClassName", "a claim is a directory on this node, of any class"),
		onlyValue("spec.volumeMode", "Filesystem", another),
	)
	for _, name := range []string{"selector", "volumeName", "dataSource", "dataSourceRef", "volumeAttributesClassName"} {
		rows = append(rows, refuse("spec."+name, another, "remove the field"))
	}
	rows = append(rows, inert("status", "nodectl reads no status from a manifest"))
	for i := range rows[1:] {
		rows[i+1].Path = "[]." + rows[i+1].Path
	}
	return rows
}

func daemonSetRows() []Field {
	return below("spec.", append(selectorAndTemplateRows(),
		honour("updateStrategy", RestartNone),
		Field{Path: "updateStrategy.type", Note: "RollingUpdate, or OnDelete: the new pod follows when a person deletes the old one, or when the node evicts it"},
		honour("updateStrategy.rollingUpdate", RestartNone),
		honour("updateStrategy.rollingUpdate.maxUnavailable", RestartNone),
		honour("updateStrategy.rollingUpdate.maxSurge", RestartNone),
		honour("minReadySeconds", RestartNone),
		honour("revisionHistoryLimit", RestartNone),
	))
}

func jobRows() []Field {
	const begun = "an edit takes effect only before the Job begins"
	rows := []Field{
		{Path: "parallelism", Note: "if it is not set: 1; at most 1000"},
		{Path: "completions", Note: begun + ", or together with an equal parallelism (Indexed)"},
		honour("activeDeadlineSeconds", RestartNone),
		{Path: "podFailurePolicy", Note: begun},
		honour("podFailurePolicy.rules", RestartNone),
		honour("podFailurePolicy.rules[].action", RestartNone),
		honour("podFailurePolicy.rules[].onExitCodes", RestartNone),
		honour("podFailurePolicy.rules[].onExitCodes.containerName", RestartNone),
		honour("podFailurePolicy.rules[].onExitCodes.operator", RestartNone),
		honour("podFailurePolicy.rules[].onExitCodes.values", RestartNone),
		honour("podFailurePolicy.rules[].onPodConditions", RestartNone),
		honour("podFailurePolicy.rules[].onPodConditions[].type", RestartNone),
		honour("podFailurePolicy.rules[].onPodConditions[].status", RestartNone),
		{Path: "successPolicy", Note: begun},
		honour("successPolicy.rules", RestartNone),
		honour("successPolicy.rules[].succeededIndexes", RestartNone),
		honour("successPolicy.rules[].succeededCount", RestartNone),
		honour("backoffLimit", RestartNone),
		{Path: "backoffLimitPerIndex", Note: begun},
		honour("maxFailedIndexes", RestartNone),
		{Path: "manualSelector", Note: "checked with the selector"},
		honour("ttlSecondsAfterFinished", RestartNone),
		{Path: "completionMode", Note: "NonIndexed, or Indexed; " + begun},
		honour("suspend", RestartNone),
		{Path: "podReplacementPolicy", Note: "TerminatingOrFailed, or Failed"},
		onlyValue("managedBy", "kubernetes.io/job-controller", "no other controller runs on this node"),
	}
	return append(rows, replaced(selectorAndTemplateRows(), Field{Path: "template", Note: "see the fields of a pod template; " + begun})...)
}

func cronJobRows() []Field {
	rows := []Field{
		{Path: "schedule", Note: "one Job a minute at most"},
		{Path: "timeZone", Note: "if it is not set: that of the agent"},
		honour("startingDeadlineSeconds", RestartNone),
		{Path: "concurrencyPolicy", Note: "Allow, Forbid or Replace"},
		honour("suspend", RestartNone),
		honour("jobTemplate", RestartNone),
		inert("jobTemplate.metadata", "without an API server nothing shows the metadata of a CronJob's Job"),
		honour("jobTemplate.spec", RestartNone),
		{Path: "successfulJobsHistoryLimit", Note: "at most 100"},
		{Path: "failedJobsHistoryLimit", Note: "at most 100"},
	}
	return below("spec.", append(rows, below("jobTemplate.spec.", jobRows())...))
}
