package pod

import "fmt"

// fieldRows is the table. A field that a later version honours changes here,
// and nowhere else, between "rejects the pod" and "takes effect".
func fieldRows() []Field {
	rows := metadataRows()
	rows = append(rows, Field{Path: "spec", Note: "see its fields"})
	rows = append(rows, volumeRows()...)
	rows = append(rows, Field{Path: "spec.initContainers", Note: "run in order before the containers; an edit replaces the pod, so that what the author asks for has run. One with restartPolicy Always is a sidecar (C-1.20.1): an edit restarts of it what it restarts of a container, one added to a running pod starts, one taken away stops"})
	rows = append(rows, containerRows("spec.initContainers[].", RestartPod)...)
	rows = append(rows, Field{Path: "spec.containers", Unordered: true, Note: "one added to a running pod starts, one taken away stops"})
	rows = append(rows, containerRows("spec.containers[].", RestartContainer)...)
	rows = append(rows, specRows()...)
	return append(rows, inert("status", "what happened is nodectl's to say; a status in a manifest is not read"))
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
		refuse("metadata.generateName", "a static pod needs a name of its own", "write metadata.name"),
		{Path: "metadata.namespace", Note: "default: default"},
		inert("metadata.selfLink", "an API server's own note"),
		{Path: "metadata.uid", Restart: RestartPod, Note: "default: made from node, namespace and name"},
		inert("metadata.resourceVersion", "an API server's own note"),
		inert("metadata.generation", "an API server's own note"),
		inert("metadata.creationTimestamp", "an API server's own note"),
		refuse("metadata.deletionTimestamp", "a pod that is being deleted cannot be wanted", "remove the field; to delete the pod, remove its manifest"),
		refuse("metadata.deletionGracePeriodSeconds", "a pod that is being deleted cannot be wanted", "write spec.terminationGracePeriodSeconds"),
		honour("metadata.labels", RestartNone),
		honour("metadata.annotations", RestartNone),
		inert("metadata.ownerReferences", "nothing on a single node collects what its owner left behind"),
		refuse("metadata.finalizers", "nothing on a single node lifts a finalizer", "remove the field"),
		inert("metadata.managedFields", "an API server's own note"),
	}
}

func volumeRows() []Field {
	rows := []Field{
		{Path: "spec.volumes", Unordered: true, Note: "emptyDir and hostPath"},
		honour("spec.volumes[].name", RestartPod),
		honour("spec.volumes[].hostPath", RestartPod),
		honour("spec.volumes[].hostPath.path", RestartPod),
		{Path: "spec.volumes[].hostPath.type", Restart: RestartPod, Default: ""},
		honour("spec.volumes[].emptyDir", RestartPod),
		only("spec.volumes[].emptyDir.medium", RestartPod, "only the node's disk", oneOf("")),
		reject("spec.volumes[].emptyDir.sizeLimit", "remove it: the volume then has the size of the disk below the root directory"),
	}
	for _, kind := range []string{
		"gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "secret", "nfs", "iscsi", "glusterfs",
		"persistentVolumeClaim", "rbd", "flexVolume", "cinder", "cephfs", "flocker", "downwardAPI", "fc",
		"azureFile", "configMap", "vsphereVolume", "quobyte", "azureDisk", "photonPersistentDisk",
		"projected", "portworxVolume", "scaleIO", "storageos", "csi", "ephemeral", "image",
	} {
		rows = append(rows, reject("spec.volumes[]."+kind, "this version has emptyDir and hostPath volumes"))
	}
	return rows
}

func specRows() []Field {
	const (
		oneNode   = "pods are bound to this node by being here"
		imageUser = "remove it; containers then run as their images say, unprivileged"
		required  = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	)
	rows := []Field{
		refuse("spec.ephemeralContainers", "a static pod has no ephemeral containers", "write it under spec.containers"),
		honour("spec.restartPolicy", RestartNone),
		honour("spec.terminationGracePeriodSeconds", RestartNone),
		honour("spec.activeDeadlineSeconds", RestartNone),
		{Path: "spec.dnsPolicy", Restart: RestartPod, Default: "ClusterFirst", Note: "without a cluster's DNS service, ClusterFirst and ClusterFirstWithHostNet mean Default, as for the kubelet"},
		{Path: "spec.nodeSelector", Note: "held against this node's labels when the pod comes (C-1.31)"},
		refuse("spec.serviceAccountName", "a static pod cannot have a service account", "remove it"),
		refuse("spec.serviceAccount", "a static pod cannot have a service account", "remove it"),
		only("spec.automountServiceAccountToken", RestartNone, "a static pod has no service account: write false or leave it out", oneOf("false")),
		{Path: "spec.nodeName", Note: "empty or this node"},
		honour("spec.hostNetwork", RestartPod),
		reject("spec.hostPID", ""),
		reject("spec.hostIPC", ""),
		only("spec.shareProcessNamespace", RestartNone, "only false", oneOf("false")),
		honour("spec.securityContext", RestartPod),
	}
	for _, name := range []string{"seLinuxOptions", "windowsOptions", "runAsUser", "runAsGroup", "runAsNonRoot", "supplementalGroups", "supplementalGroupsPolicy", "fsGroup"} {
		rows = append(rows, reject("spec.securityContext."+name, imageUser))
	}
	rows = append(rows,
		Field{Path: "spec.securityContext.sysctls", Unordered: true, Note: "those of the pod's own namespaces that are safe or allowed (C-1.31)"},
		honour("spec.securityContext.sysctls[].name", RestartPod),
		honour("spec.securityContext.sysctls[].value", RestartPod),
	)
	for _, name := range []string{"fsGroupChangePolicy", "seccompProfile", "appArmorProfile", "seLinuxChangePolicy"} {
		rows = append(rows, reject("spec.securityContext."+name, imageUser))
	}
	rows = append(rows,
		reject("spec.imagePullSecrets", "bring the image as an archive, or take a registry without a login"),
		honour("spec.hostname", RestartPod),
		reject("spec.subdomain", ""),
		honour("spec.affinity", RestartNone),
		honour("spec.affinity.nodeAffinity", RestartNone),
		Field{Path: required, Note: "held against this node's labels when the pod comes (C-1.31)"},
		honour(required+".nodeSelectorTerms", RestartNone),
	)
	for _, list := range []string{"matchExpressions", "matchFields"} {
		at := required + ".nodeSelectorTerms[]." + list
		rows = append(rows, honour(at, RestartNone), honour(at+"[].key", RestartNone), honour(at+"[].operator", RestartNone), honour(at+"[].values", RestartNone))
	}
	rows = append(rows,
		inert("spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", "a preference among nodes, and there is one"),
		inert("spec.affinity.podAffinity", "a scheduler's: the kubelet does not hold it against a node's pods either"),
		inert("spec.affinity.podAntiAffinity", "a scheduler's: the kubelet does not hold it against a node's pods either"),
		inert("spec.schedulerName", oneNode+"; no scheduler takes part"),
		Field{Path: "spec.tolerations", Note: "of NoExecute taints, when the pod comes (C-1.31); static pods tolerate them all"},
		honour("spec.tolerations[].key", RestartNone),
		honour("spec.tolerations[].operator", RestartNone),
		honour("spec.tolerations[].value", RestartNone),
		honour("spec.tolerations[].effect", RestartNone),
		inert("spec.tolerations[].tolerationSeconds", "evicting pods from a tainted node is an API server's work"),
		reject("spec.hostAliases", ""),
		only("spec.priorityClassName", RestartNone, "PriorityClass objects live in an API server: write spec.priority", priorityClass),
		honour("spec.priority", RestartNone),
		honour("spec.dnsConfig", RestartPod),
		honour("spec.dnsConfig.nameservers", RestartPod),
		honour("spec.dnsConfig.searches", RestartPod),
		honour("spec.dnsConfig.options", RestartPod),
		honour("spec.dnsConfig.options[].name", RestartPod),
		honour("spec.dnsConfig.options[].value", RestartPod),
		Field{Path: "spec.readinessGates", Note: "without an API server nobody sets the condition, and the pod is never Ready"},
		honour("spec.readinessGates[].conditionType", RestartNone),
		reject("spec.runtimeClassName", "remove it: the runtime's default handler runs the pod"),
		inert("spec.enableServiceLinks", "there are no services whose addresses could be passed on"),
		inert("spec.preemptionPolicy", "no pod is stopped to make room for another"),
		reject("spec.overhead", ""),
		inert("spec.topologySpreadConstraints", "on one node there is nothing to spread over"),
		only("spec.setHostnameAsFQDN", RestartNone, "only false", oneOf("false")),
		honour("spec.os", RestartNone),
		Field{Path: "spec.os.name", Note: "a pod for another system than this node's is not admitted (C-1.31)"},
		only("spec.hostUsers", RestartNone, "only true", oneOf("true")),
		refuse("spec.schedulingGates", "a static pod is bound to its node already", "remove it"),
		reject("spec.resourceClaims", ""),
		reject("spec.resources", "write requests and limits for each container"),
		reject("spec.hostnameOverride", "spec.hostname is supported"),
		refuse("spec.schedulingGroup", "a static pod is bound to its node already", "remove it"),
	)
	return rows
}

// Priorities of the two classes that exist without an API server (C-1.4.2).
const (
	PriorityNodeCritical    = 2000001000
	PriorityClusterCritical = 2000000000
)

// PriorityOf returns the priority of a built-in priority class; ok is false
// for any other.
func PriorityOf(class string) (priority int32, ok bool) {
	switch class {
	case "system-node-critical":
		return PriorityNodeCritical, true
	case "system-cluster-critical":
		return PriorityClusterCritical, true
	}
	return 0, false
}

func priorityClass(v any) string {
	if _, ok := PriorityOf(v.(string)); ok {
		return ""
	}
	return fmt.Sprintf("priority class %q is unknown: without an API server there are only system-node-critical and system-cluster-critical", v)
}
