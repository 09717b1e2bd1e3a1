package podspec

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// containerRows are the rows of one container. restart is the part of the pod that an edit restarts
// if only a new container can have the new value.
func containerRows(at string, restart RestartScope) []Field {
	resize := restart
	if restart == RestartContainer {
		resize = Resize
	}
	mapped := func(port any) bool { return port.(v1.ContainerPort).HostPort != 0 }
	rows := []Field{
		honour("name", restart),
		honour("image", restart),
		honour("command", restart),
		honour("args", restart),
		honour("workingDir", restart),
		{Path: "ports", Unordered: true, Counts: mapped, Note: "an edit restarts the pod only if a hostPort is set: other ports only inform readers and give probes their names"},
		honour("ports[].name", RestartNone),
		honour("ports[].hostPort", RestartPod),
		honour("ports[].containerPort", RestartPod),
		{Path: "ports[].protocol", Restart: RestartPod, Default: "TCP"},
		honour("ports[].hostIP", RestartPod),
		honour("envFrom", restart),
		honour("envFrom[].prefix", restart),
		honour("envFrom[].configMapRef", restart),
		honour("envFrom[].configMapRef.name", restart),
		honour("envFrom[].configMapRef.optional", restart),
		honour("envFrom[].secretRef", restart),
		honour("envFrom[].secretRef.name", restart),
		honour("envFrom[].secretRef.optional", restart),
		honour("env", restart),
		honour("env[].name", restart),
		honour("env[].value", restart),
		honour("env[].valueFrom", restart),
		honour("env[].valueFrom.configMapKeyRef", restart),
		honour("env[].valueFrom.configMapKeyRef.name", restart),
		honour("env[].valueFrom.configMapKeyRef.key", restart),
		honour("env[].valueFrom.configMapKeyRef.optional", restart),
		honour("env[].valueFrom.secretKeyRef", restart),
		honour("env[].valueFrom.secretKeyRef.name", restart),
		honour("env[].valueFrom.secretKeyRef.key", restart),
		honour("env[].valueFrom.secretKeyRef.optional", restart),
		{Path: "env[].valueFrom.fileKeyRef", Restart: restart, Note: "a file that an init container wrote into an emptyDir (C-1.38.4)"},
		honour("env[].valueFrom.fileKeyRef.volumeName", restart),
		honour("env[].valueFrom.fileKeyRef.path", restart),
		honour("env[].valueFrom.fileKeyRef.key", restart),
		{Path: "env[].valueFrom.fileKeyRef.optional", Restart: restart, Default: false, Note: "allows a missing key, but not a missing file"},
		honour("resources", resize),
		{
			Path: "resources.limits", Restart: resize, Note: "cpu, memory, ephemeral-storage (a pod that exceeds it is evicted within a minute, C-1.35.9), huge pages, and extended resources of device plugins, for pods of a cluster also of ResourceClaims",
			Check: containerResource, Keys: []string{"cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example/gpu"},
		},
		{
			Path: "resources.requests", Restart: resize, Note: "cpu, memory, ephemeral-storage, huge pages, and extended resources of device plugins, for pods of a cluster also of ResourceClaims",
			Check: containerResource, Keys: []string{"cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example/gpu"},
		},
		reject("resources.claims", ""),
		{Path: "resizePolicy", Note: "a change of a resource with RestartContainer restarts the container (C-1.34.4)"},
		honour("resizePolicy[].resourceName", RestartNone),
		honour("resizePolicy[].restartPolicy", RestartNone),
		honour("restartPolicy", RestartNone),
		{Path: "restartPolicyRules", Note: "require a restartPolicy in the same container (C-1.21)"},
		honour("restartPolicyRules[].action", RestartNone),
		honour("restartPolicyRules[].exitCodes", RestartNone),
		honour("restartPolicyRules[].exitCodes.operator", RestartNone),
		honour("restartPolicyRules[].exitCodes.values", RestartNone),
		{Path: "volumeMounts", Unordered: true},
		honour("volumeMounts[].name", restart),
		honour("volumeMounts[].readOnly", restart),
		{Path: "volumeMounts[].recursiveReadOnly", Restart: restart, Default: "Disabled", Note: "Enabled if the runtime supports it"},
		honour("volumeMounts[].mountPath", restart),
		honour("volumeMounts[].subPath", restart),
		{Path: "volumeMounts[].mountPropagation", Restart: restart, Default: "None"},
		honour("volumeMounts[].subPathExpr", restart),
		refuse("volumeDevices", "only a claim of an API server can be a block volume", "use volumeMounts and a volume with a file system"),
	}
	for _, probe := range []pod.ProbeKind{pod.Liveness, pod.Readiness, pod.Startup} {
		rows = append(rows, probeRows(string(probe)+"Probe")...)
	}
	rows = append(rows, lifecycleRows(restart)...)
	rows = append(rows, below("env[].valueFrom", selectorRows(restart))...)
	rows = append(rows, below("securityContext", securityRows(restart))...)
	rows = append(rows,
		honour("securityContext.capabilities", restart),
		honour("securityContext.capabilities.add", restart),
		honour("securityContext.capabilities.drop", restart),
		honour("securityContext.privileged", restart),
		honour("securityContext.readOnlyRootFilesystem", restart),
		honour("securityContext.allowPrivilegeEscalation", restart),
		Field{Path: "securityContext.procMount", Restart: restart, Default: "Default"},
		Field{Path: "terminationMessagePath", Note: "an edit takes effect when the container starts next"},
		Field{Path: "terminationMessagePolicy", Note: "an edit takes effect when the container starts next"},
		honour("imagePullPolicy", RestartNone),
		honour("stdin", restart),
		honour("stdinOnce", restart),
		honour("tty", restart),
	)
	return below(at, rows)
}

// below returns rows with at in front of their paths.
func below(at string, rows []Field) []Field {
	for i := range rows {
		rows[i].Path = at + rows[i].Path
	}
	return rows
}

func probeRows(at string) []Field {
	rows := []Field{honour("", RestartNone)}
	rows = append(rows, execRows()...)
	rows = append(rows, httpRows()...)
	grace := honour(".terminationGracePeriodSeconds", RestartNone)
	if at == string(pod.Readiness)+"Probe" {
		grace = refuse(grace.Path, "a readiness probe stops no container", "write it under livenessProbe or startupProbe")
	}
	return below(at, append(rows,
		honour(".tcpSocket", RestartNone),
		honour(".tcpSocket.port", RestartNone),
		honour(".tcpSocket.host", RestartNone),
		honour(".grpc", RestartNone),
		honour(".grpc.port", RestartNone),
		honour(".grpc.service", RestartNone),
		honour(".initialDelaySeconds", RestartNone),
		honour(".timeoutSeconds", RestartNone),
		honour(".periodSeconds", RestartNone),
		honour(".successThreshold", RestartNone),
		honour(".failureThreshold", RestartNone),
		grace,
	))
}

// lifecycleRows: hooks run as the newest spec has them. The runtime gets the stop
// signal when the container is created.
func lifecycleRows(restart RestartScope) []Field {
	rows := []Field{honour("lifecycle", RestartNone)}
	for _, hook := range []Field{
		{Path: "lifecycle.postStart", Note: "an edit takes effect when the container starts next"},
		{Path: "lifecycle.preStop", Note: "an edit takes effect at the next stop"},
	} {
		at := hook.Path
		rows = append(rows, hook)
		rows = append(rows, below(at, execRows())...)
		rows = append(rows, below(at, httpRows())...)
		rows = append(rows,
			// C-1.24.4
			refuse(at+".tcpSocket", "the kubelet runs no tcpSocket hooks: the hook would always fail", "write exec, httpGet or sleep"),
			honour(at+".sleep", RestartNone),
			honour(at+".sleep.seconds", RestartNone),
		)
	}
	return append(rows, Field{Path: "lifecycle.stopSignal", Restart: restart, Note: "requires spec.os.name"})
}

func execRows() []Field {
	return []Field{
		honour(".exec", RestartNone),
		honour(".exec.command", RestartNone),
	}
}

func httpRows() []Field {
	return []Field{
		honour(".httpGet", RestartNone),
		honour(".httpGet.path", RestartNone),
		honour(".httpGet.port", RestartNone),
		honour(".httpGet.host", RestartNone),
		honour(".httpGet.scheme", RestartNone),
		honour(".httpGet.httpHeaders", RestartNone),
		honour(".httpGet.httpHeaders[].name", RestartNone),
		honour(".httpGet.httpHeaders[].value", RestartNone),
	}
}
