package pod

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// fieldRows is the table. A field that a later version honours changes here,
// and nowhere else, between "rejects the pod" and "takes effect".
func fieldRows() []Field {
	rows := metadataRows()
	rows = append(rows, Field{Path: "spec", Note: "see its fields"})
	rows = append(rows, volumeRows()...)
	rows = append(rows, Field{Path: "spec.initContainers", Note: "run in order before the containers; an edit replaces the pod, so that what the author asks for has run"})
	rows = append(rows, containerRows("spec.initContainers[].", true)...)
	rows = append(rows, Field{Path: "spec.containers", Unordered: true, Note: "one added to a running pod starts, one taken away stops"})
	rows = append(rows, containerRows("spec.containers[].", false)...)
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

// containerRows are the rows of one container. An edit of an init container
// replaces the pod.
func containerRows(at string, init bool) []Field {
	restart := RestartContainer
	if init {
		restart = RestartPod
	}
	mapped := func(port any) bool { return port.(v1.ContainerPort).HostPort != 0 }
	rows := []Field{
		honour("name", restart),
		honour("image", restart),
		honour("command", restart),
		honour("args", restart),
		honour("workingDir", restart),
		{Path: "ports", Unordered: true, Counts: mapped, Note: "an edit restarts the pod only where a hostPort is set: the others are notes for readers and probes"},
		honour("ports[].name", RestartNone),
		honour("ports[].hostPort", RestartPod),
		honour("ports[].containerPort", RestartPod),
		{Path: "ports[].protocol", Restart: RestartPod, Default: "TCP"},
		honour("ports[].hostIP", RestartPod),
		reject("envFrom", "write the variables out under env"),
		honour("env", restart),
		honour("env[].name", restart),
		honour("env[].value", restart),
		reject("env[].valueFrom", "write the value out"),
		honour("resources", restart),
		only("resources.limits", restart, "cpu and memory", oneOf("cpu", "memory")),
		only("resources.requests", restart, "cpu and memory", oneOf("cpu", "memory")),
		reject("resources.claims", ""),
		{Path: "resizePolicy", Note: "a change of resources restarts the container"},
		honour("resizePolicy[].resourceName", RestartNone),
		only("resizePolicy[].restartPolicy", RestartNone, "a change of resources restarts the container: write RestartContainer or leave it out", oneOf("RestartContainer")),
		reject("restartPolicy", "spec.restartPolicy speaks for the whole pod"),
		reject("restartPolicyRules", "spec.restartPolicy speaks for the whole pod"),
		{Path: "volumeMounts", Unordered: true},
		honour("volumeMounts[].name", restart),
		honour("volumeMounts[].readOnly", restart),
		{Path: "volumeMounts[].recursiveReadOnly", Restart: restart, Default: "Disabled", Note: "only Disabled", Check: oneOf("Disabled")},
		honour("volumeMounts[].mountPath", restart),
		reject("volumeMounts[].subPath", "mount the whole volume, or take a hostPath volume of the directory"),
		{Path: "volumeMounts[].mountPropagation", Restart: restart, Default: "None"},
		reject("volumeMounts[].subPathExpr", "mount the whole volume, or take a hostPath volume of the directory"),
		reject("volumeDevices", ""),
		reject("livenessProbe", "a readinessProbe is supported"),
	}
	if init {
		rows = append(rows, refuse("readinessProbe", "an init container is never ready: it ends", "remove it"))
	} else {
		rows = append(rows, probeRows("readinessProbe")...)
	}
	rows = append(rows,
		reject("startupProbe", "a readinessProbe with initialDelaySeconds is supported"),
		reject("lifecycle", ""),
		only("terminationMessagePath", RestartNone, "only the default /dev/termination-log: messages are not read yet", oneOf("/dev/termination-log")),
		only("terminationMessagePolicy", RestartNone, "only the default File: messages are not read yet", oneOf("File")),
		honour("imagePullPolicy", RestartNone),
		reject("securityContext", "remove it; the container then runs as its image says, unprivileged"),
		honour("stdin", restart),
		honour("stdinOnce", restart),
		honour("tty", restart),
	)
	for i := range rows {
		rows[i].Path = at + rows[i].Path
	}
	return rows
}

func probeRows(at string) []Field {
	rows := []Field{
		honour("", RestartNone),
		honour(".exec", RestartNone),
		honour(".exec.command", RestartNone),
		honour(".httpGet", RestartNone),
		honour(".httpGet.path", RestartNone),
		honour(".httpGet.port", RestartNone),
		honour(".httpGet.host", RestartNone),
		honour(".httpGet.scheme", RestartNone),
		honour(".httpGet.httpHeaders", RestartNone),
		honour(".httpGet.httpHeaders[].name", RestartNone),
		honour(".httpGet.httpHeaders[].value", RestartNone),
		honour(".tcpSocket", RestartNone),
		honour(".tcpSocket.port", RestartNone),
		honour(".tcpSocket.host", RestartNone),
		reject(".grpc", "exec, httpGet and tcpSocket are supported"),
		honour(".initialDelaySeconds", RestartNone),
		honour(".timeoutSeconds", RestartNone),
		honour(".periodSeconds", RestartNone),
		honour(".successThreshold", RestartNone),
		honour(".failureThreshold", RestartNone),
		reject(".terminationGracePeriodSeconds", "spec.terminationGracePeriodSeconds speaks for the whole pod"),
	}
	for i := range rows {
		rows[i].Path = at + rows[i].Path
	}
	return rows
}

func specRows() []Field {
	const oneNode = "pods are bound to this node by being here"
	rows := []Field{
		refuse("spec.ephemeralContainers", "a static pod has no ephemeral containers", "write it under spec.containers"),
		honour("spec.restartPolicy", RestartNone),
		honour("spec.terminationGracePeriodSeconds", RestartNone),
		reject("spec.activeDeadlineSeconds", ""),
		{Path: "spec.dnsPolicy", Restart: RestartPod, Default: "ClusterFirst", Note: "without a cluster's DNS service, ClusterFirst and ClusterFirstWithHostNet mean Default, as for the kubelet"},
		reject("spec.nodeSelector", oneNode+": remove it"),
		refuse("spec.serviceAccountName", "a static pod cannot have a service account", "remove it"),
		refuse("spec.serviceAccount", "a static pod cannot have a service account", "remove it"),
		only("spec.automountServiceAccountToken", RestartNone, "a static pod has no service account: write false or leave it out", oneOf("false")),
		{Path: "spec.nodeName", Note: "empty or this node"},
		honour("spec.hostNetwork", RestartPod),
		reject("spec.hostPID", ""),
		reject("spec.hostIPC", ""),
		only("spec.shareProcessNamespace", RestartNone, "only false", oneOf("false")),
		reject("spec.securityContext", "remove it; containers then run as their images say, unprivileged"),
		reject("spec.imagePullSecrets", "bring the image as an archive, or take a registry without a login"),
		honour("spec.hostname", RestartPod),
		reject("spec.subdomain", ""),
		reject("spec.affinity", oneNode+": remove it"),
		inert("spec.schedulerName", oneNode+"; no scheduler takes part"),
		inert("spec.tolerations", "the node has no taints, and static pods tolerate every NoExecute taint"),
		reject("spec.hostAliases", ""),
		only("spec.priorityClassName", RestartNone, "PriorityClass objects live in an API server: write spec.priority", priorityClass),
		honour("spec.priority", RestartNone),
		honour("spec.dnsConfig", RestartPod),
		honour("spec.dnsConfig.nameservers", RestartPod),
		honour("spec.dnsConfig.searches", RestartPod),
		honour("spec.dnsConfig.options", RestartPod),
		honour("spec.dnsConfig.options[].name", RestartPod),
		honour("spec.dnsConfig.options[].value", RestartPod),
		reject("spec.readinessGates", "nothing on a single node sets such a condition"),
		reject("spec.runtimeClassName", "remove it: the runtime's default handler runs the pod"),
		inert("spec.enableServiceLinks", "there are no services whose addresses could be passed on"),
		inert("spec.preemptionPolicy", "no pod is stopped to make room for another"),
		reject("spec.overhead", ""),
		inert("spec.topologySpreadConstraints", "on one node there is nothing to spread over"),
		only("spec.setHostnameAsFQDN", RestartNone, "only false", oneOf("false")),
		honour("spec.os", RestartNone),
		only("spec.os.name", RestartNone, "only linux", oneOf("linux")),
		only("spec.hostUsers", RestartNone, "only true", oneOf("true")),
		refuse("spec.schedulingGates", "a static pod is bound to its node already", "remove it"),
		reject("spec.resourceClaims", ""),
		reject("spec.resources", "write requests and limits for each container"),
		reject("spec.hostnameOverride", "spec.hostname is supported"),
		refuse("spec.schedulingGroup", "a static pod is bound to its node already", "remove it"),
	}
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
