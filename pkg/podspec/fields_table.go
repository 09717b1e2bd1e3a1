package podspec

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// fieldRows is the table. A field that a later version honours changes here,
// and nowhere else, between "rejects the pod" and "takes effect".
func fieldRows() []Field {
	rows := metadataRows()
	rows = append(rows, Field{Path: "spec", Note: "see its fields"})
	rows = append(rows, volumeRows()...)
	rows = append(rows, Field{Path: "spec.initContainers", Note: "run in order before the containers; an edit replaces the pod, so that the edited container runs. One with restartPolicy Always is a sidecar (C-1.20.1): an edit has the same effect as on a container, a sidecar added to a running pod starts, a removed one stops"})
	rows = append(rows, containerRows("spec.initContainers[].", RestartPod)...)
	rows = append(rows, Field{Path: "spec.containers", Unordered: true, Note: "a container added to a running pod starts, a removed one stops"})
	rows = append(rows, containerRows("spec.containers[].", RestartContainer)...)
	rows = append(rows, specRows()...)
	return append(rows, inert("status", "nodectl writes the status and reads none from a manifest"))
}

func honour(path string, r RestartScope) Field { return Field{Path: path, Restart: r} }

func reject(path, note string) Field {
	return Field{Path: path, Support: Rejected, Restart: RestartPod, Note: note}
}

// refuse is a rejection that no later version lifts for a static pod.
func refuse(path, why, note string) Field {
	return Field{Path: path, Support: Rejected, Restart: RestartPod, Why: why, Note: note}
}

func inert(path, note string) Field { return Field{Path: path, Support: Inert, Note: note} }

// only is a field that is honoured for some values: check returns why a value
// is not.
func only(path string, r RestartScope, note string, check func(any) string) Field {
	return Field{Path: path, Restart: r, Note: note, Check: check}
}

// oneOf is a Check that accepts the values listed, compared as text.
func oneOf(values ...string) func(any) string {
	return func(v any) string {
		got := fmt.Sprint(v)
		for _, ok := range values {
			if got == ok {
				return ""
			}
		}
		return fmt.Sprintf("value %q is %s", got, NotYet)
	}
}

func metadataRows() []Field {
	return []Field{
		{Path: "metadata", Note: "see its fields"},
		{Path: "metadata.name", Note: `gets "-<node name>" appended`},
		refuse("metadata.generateName", "a static pod needs a fixed name", "write metadata.name"),
		{Path: "metadata.namespace", Note: "if empty: default"},
		inert("metadata.selfLink", "an API server's bookkeeping"),
		{Path: "metadata.uid", Restart: RestartPod, Note: "if empty: derived from node, namespace and name"},
		inert("metadata.resourceVersion", "an API server's bookkeeping"),
		inert("metadata.generation", "an API server's bookkeeping"),
		inert("metadata.creationTimestamp", "an API server's bookkeeping"),
		refuse("metadata.deletionTimestamp", "a manifest cannot describe a pod that is being deleted", "remove the field; to delete the pod, remove its manifest"),
		refuse("metadata.deletionGracePeriodSeconds", "a manifest cannot describe a pod that is being deleted", "write spec.terminationGracePeriodSeconds"),
		honour("metadata.labels", RestartNone),
		honour("metadata.annotations", RestartNone),
		inert("metadata.ownerReferences", "no garbage collector runs on a single node"),
		refuse("metadata.finalizers", "no controller on a single node removes a finalizer", "remove the field"),
		inert("metadata.managedFields", "an API server's bookkeeping"),
	}
}

// volumeKinds are the kinds of volumes that no version brings to a node: they need
// a driver, or are withdrawn.
var volumeKinds = []string{
	"gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "iscsi", "glusterfs", "rbd", "flexVolume", "cinder", "cephfs",
	"flocker", "fc", "azureFile", "vsphereVolume", "quobyte", "azureDisk", "photonPersistentDisk", "portworxVolume", "scaleIO",
	"storageos", "csi", "ephemeral",
}

func volumeRows() []Field {
	rows := []Field{
		{Path: "spec.volumes", Unordered: true},
		honour("spec.volumes[].name", RestartPod),
		honour("spec.volumes[].hostPath", RestartPod),
		honour("spec.volumes[].hostPath.path", RestartPod),
		{Path: "spec.volumes[].hostPath.type", Restart: RestartPod, Default: ""},
		honour("spec.volumes[].emptyDir", RestartPod),
		only("spec.volumes[].emptyDir.medium", RestartPod, `"", Memory, HugePages or HugePages-<size>`, medium),
		{Path: "spec.volumes[].emptyDir.sizeLimit", Restart: RestartPod, Note: "the size of a tmpfs; a pod that writes more to the node's disk is evicted (C-1.35.9)"},
		{Path: "spec.volumes[].image", Restart: RestartPod, Note: "if the runtime supports image volumes"},
		honour("spec.volumes[].image.reference", RestartPod),
		honour("spec.volumes[].image.pullPolicy", RestartNone),
		{Path: "spec.volumes[].persistentVolumeClaim", Restart: RestartPod, Note: "a claim in the manifests: a directory of this node, kept when the pod is removed"},
		honour("spec.volumes[].persistentVolumeClaim.claimName", RestartPod),
		honour("spec.volumes[].persistentVolumeClaim.readOnly", RestartPod),
	}
	rows = append(rows, below("spec.volumes[].configMap", append(fileRows(".name"), honour(".optional", RestartPod)))...)
	rows = append(rows, below("spec.volumes[].secret", append(fileRows(".secretName"), honour(".optional", RestartPod)))...)
	rows = append(rows, below("spec.volumes[].downwardAPI", append(downwardRows(), Field{Path: ".defaultMode", Restart: RestartPod, Default: int32(0o644)}))...)
	const sources = "spec.volumes[].projected.sources[]"
	rows = append(rows,
		honour("spec.volumes[].projected", RestartPod),
		honour("spec.volumes[].projected.sources", RestartPod),
		Field{Path: "spec.volumes[].projected.defaultMode", Restart: RestartPod, Default: int32(0o644)},
		refuse(sources+".serviceAccountToken", "a static pod has no service account", "remove it, or use a secret"),
		refuse(sources+".clusterTrustBundle", "trust bundles need an API server", "use a configMap"),
		refuse(sources+".podCertificate", "certificates for pods need an API server", "use a secret"),
	)
	for _, kind := range []string{".configMap", ".secret"} {
		rows = append(rows, below(sources+kind, append(itemRows(".name"), honour(".optional", RestartPod)))...)
	}
	rows = append(rows, below(sources+".downwardAPI", downwardRows())...)
	for _, kind := range volumeKinds {
		rows = append(rows, refuse("spec.volumes[]."+kind, "this kind of volume needs a driver that nodectl does not have", "use emptyDir, hostPath, configMap, secret, downwardAPI, projected, image or persistentVolumeClaim"))
	}
	return rows
}

// fileRows are the rows of a volume whose files are an object's keys.
func fileRows(name string) []Field {
	return append(itemRows(name), Field{Path: ".defaultMode", Restart: RestartPod, Default: int32(0o644)})
}

func itemRows(name string) []Field {
	return []Field{
		honour("", RestartPod),
		honour(name, RestartPod),
		honour(".items", RestartPod),
		honour(".items[].key", RestartPod),
		honour(".items[].path", RestartPod),
		honour(".items[].mode", RestartPod),
	}
}

func downwardRows() []Field {
	rows := []Field{
		honour("", RestartPod),
		honour(".items", RestartPod),
		honour(".items[].path", RestartPod),
		honour(".items[].mode", RestartPod),
	}
	return append(rows, below(".items[]", selectorRows(RestartPod))...)
}

// selectorRows are the rows of references to a field of the pod or of a container.
func selectorRows(restart RestartScope) []Field {
	return []Field{
		honour(".fieldRef", restart),
		{Path: ".fieldRef.apiVersion", Restart: restart, Default: "v1"},
		honour(".fieldRef.fieldPath", restart),
		honour(".resourceFieldRef", restart),
		honour(".resourceFieldRef.containerName", restart),
		honour(".resourceFieldRef.resource", restart),
		honour(".resourceFieldRef.divisor", restart),
	}
}

func medium(v any) string {
	m := fmt.Sprint(v)
	if m == "" || m == "Memory" || m == "HugePages" || strings.HasPrefix(m, "HugePages-") {
		return ""
	}
	return fmt.Sprintf("medium %q is unknown", m)
}

// securityRows are the rows that the security contexts of pods and containers
// share.
func securityRows(restart RestartScope) []Field {
	rows := []Field{
		honour("", restart),
		{Path: ".seLinuxOptions", Restart: restart, Note: "if the kernel has SELinux"},
		honour(".seLinuxOptions.user", restart),
		honour(".seLinuxOptions.role", restart),
		honour(".seLinuxOptions.type", restart),
		honour(".seLinuxOptions.level", restart),
		refuse(".windowsOptions", "this node runs Linux", "remove it"),
		honour(".runAsUser", restart),
		honour(".runAsGroup", restart),
		honour(".runAsNonRoot", restart),
	}
	return append(rows,
		Field{Path: ".seccompProfile", Restart: restart, Note: "if it is not set: RuntimeDefault, the runtime's profile"},
		honour(".seccompProfile.type", restart),
		Field{Path: ".seccompProfile.localhostProfile", Restart: restart, Note: "a file below <root-dir>/seccomp"},
		Field{Path: ".appArmorProfile", Restart: restart, Note: "if the kernel has no AppArmor, a pod with a profile other than Unconfined is not admitted (C-1.31)"},
		honour(".appArmorProfile.type", restart),
		Field{Path: ".appArmorProfile.localhostProfile", Restart: restart, Note: "a profile that is loaded in the kernel"},
	)
}

func specRows() []Field {
	const (
		required = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	)
	rows := []Field{
		refuse("spec.ephemeralContainers", "a static pod has no ephemeral containers", "write it under spec.containers"),
		honour("spec.restartPolicy", RestartNone),
		honour("spec.terminationGracePeriodSeconds", RestartNone),
		honour("spec.activeDeadlineSeconds", RestartNone),
		{Path: "spec.dnsPolicy", Restart: RestartPod, Default: "ClusterFirst", Note: "without a cluster, ClusterFirst and ClusterFirstWithHostNet mean the node's own DNS server, once there is a Service; without both, they mean Default, as for the kubelet"},
		{Path: "spec.nodeSelector", Note: "compared with this node's labels when the pod is admitted (C-1.31)"},
		refuse("spec.serviceAccountName", "a static pod cannot have a service account", "remove it"),
		refuse("spec.serviceAccount", "a static pod cannot have a service account", "remove it"),
		only("spec.automountServiceAccountToken", RestartNone, "a static pod has no service account: write false or remove the field", oneOf("false")),
		{Path: "spec.nodeName", Note: "empty or this node"},
		honour("spec.hostNetwork", RestartPod),
		honour("spec.hostPID", RestartPod),
		honour("spec.hostIPC", RestartPod),
		{Path: "spec.shareProcessNamespace", Restart: RestartPod, Default: false},
	}
	rows = append(rows, below("spec.securityContext", securityRows(RestartPod))...)
	rows = append(rows,
		honour("spec.securityContext.supplementalGroups", RestartPod),
		Field{Path: "spec.securityContext.supplementalGroupsPolicy", Restart: RestartPod, Default: "Merge", Note: "Strict if the runtime supports it"},
		honour("spec.securityContext.fsGroup", RestartPod),
		Field{Path: "spec.securityContext.fsGroupChangePolicy", Restart: RestartPod, Default: "Always"},
		Field{Path: "spec.securityContext.seLinuxChangePolicy", Support: Inert, Note: "the runtime relabels volumes with either value"},
		Field{Path: "spec.securityContext.sysctls", Unordered: true, Note: "namespaced sysctls that are safe or allowed (C-1.31)"},
		honour("spec.securityContext.sysctls[].name", RestartPod),
		honour("spec.securityContext.sysctls[].value", RestartPod),
	)
	rows = append(rows,
		Field{Path: "spec.imagePullSecrets", Note: "of type kubernetes.io/dockerconfigjson or dockercfg; a missing secret is skipped"},
		honour("spec.imagePullSecrets[].name", RestartNone),
		honour("spec.hostname", RestartPod),
		honour("spec.subdomain", RestartPod),
		honour("spec.affinity", RestartNone),
		honour("spec.affinity.nodeAffinity", RestartNone),
		Field{Path: required, Note: "compared with this node's labels when the pod is admitted (C-1.31)"},
		honour(required+".nodeSelectorTerms", RestartNone),
	)
	for _, list := range []string{"matchExpressions", "matchFields"} {
		at := required + ".nodeSelectorTerms[]." + list
		rows = append(rows, honour(at, RestartNone), honour(at+"[].key", RestartNone), honour(at+"[].operator", RestartNone), honour(at+"[].values", RestartNone))
	}
	rows = append(rows,
		inert("spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", "there is only one node to choose"),
		inert("spec.affinity.podAffinity", "only a scheduler uses it; a kubelet ignores it too"),
		inert("spec.affinity.podAntiAffinity", "only a scheduler uses it; a kubelet ignores it too"),
		Field{Path: "spec.schedulerName", Support: Inert, Note: "a static pod is bound to its node without a scheduler", Served: v1.DefaultSchedulerName},
		Field{Path: "spec.tolerations", Note: "used for NoExecute taints when the pod is admitted (C-1.31); static pods tolerate all of them"},
		honour("spec.tolerations[].key", RestartNone),
		honour("spec.tolerations[].operator", RestartNone),
		honour("spec.tolerations[].value", RestartNone),
		honour("spec.tolerations[].effect", RestartNone),
		inert("spec.tolerations[].tolerationSeconds", "only a cluster's controllers evict pods from a tainted node"),
		honour("spec.hostAliases", RestartPod),
		honour("spec.hostAliases[].ip", RestartPod),
		honour("spec.hostAliases[].hostnames", RestartPod),
		only("spec.priorityClassName", RestartNone, "PriorityClass objects need an API server: write spec.priority", priorityClass),
		honour("spec.priority", RestartNone),
		honour("spec.dnsConfig", RestartPod),
		honour("spec.dnsConfig.nameservers", RestartPod),
		honour("spec.dnsConfig.searches", RestartPod),
		honour("spec.dnsConfig.options", RestartPod),
		honour("spec.dnsConfig.options[].name", RestartPod),
		honour("spec.dnsConfig.options[].value", RestartPod),
		Field{Path: "spec.readinessGates", Note: "without an API server nothing sets the condition, and the pod is never Ready"},
		honour("spec.readinessGates[].conditionType", RestartNone),
		Field{Path: "spec.runtimeClassName", Restart: RestartPod, Note: "the name of a handler of the runtime, or of a class that --runtime-class maps to one"},
		Field{Path: "spec.enableServiceLinks", Note: "adds the addresses of the node's Services to the environment; an edit takes effect in containers that start later"},
		Field{Path: "spec.preemptionPolicy", Support: Inert, Note: "nodectl stops no pod to make room for another", Served: string(v1.PreemptLowerPriority)},
		only("spec.overhead", RestartPod, "cpu and memory", oneOf("cpu", "memory")),
		inert("spec.topologySpreadConstraints", "there is only one node to place pods on"),
		Field{Path: "spec.setHostnameAsFQDN", Restart: RestartPod, Default: false},
		honour("spec.os", RestartNone),
		Field{Path: "spec.os.name", Note: "a pod for another system than this node's is not admitted (C-1.31)"},
		Field{Path: "spec.hostUsers", Restart: RestartPod, Default: true, Note: "false if the runtime supports user namespaces"},
		refuse("spec.schedulingGates", "a static pod is already bound to its node", "remove it"),
		reject("spec.resourceClaims", ""),
		Field{Path: "spec.resources", Restart: RestartPod, Note: "for the pod as a whole; an edit replaces a static pod, and resizes a pod of an API server in place (C-1.34.7)"},
		only("spec.resources.limits", RestartPod, "cpu, memory and huge pages", podResource),
		only("spec.resources.requests", RestartPod, "cpu, memory and huge pages", podResource),
		reject("spec.resources.claims", ""),
		honour("spec.hostnameOverride", RestartPod),
		refuse("spec.schedulingGroup", "a static pod is already bound to its node", "remove it"),
	)
	return rows
}

func priorityClass(v any) string {
	if _, ok := pod.PriorityOf(v.(string)); ok {
		return ""
	}
	return fmt.Sprintf("priority class %q is unknown: without an API server there are only system-node-critical and system-cluster-critical", v)
}

// podResource accepts the resources that a pod as a whole can be given.
func podResource(v any) string {
	if name := fmt.Sprint(v); name != "cpu" && name != "memory" && !strings.HasPrefix(name, "hugepages-") {
		return fmt.Sprintf("resource %q is %s", name, NotYet)
	}
	return ""
}

// containerResource accepts the resources that a container can be given.
func containerResource(v any) string {
	if name := fmt.Sprint(v); name == "ephemeral-storage" || pod.DeviceResource(v1.ResourceName(name)) {
		return ""
	}
	return podResource(v)
}
