//go:build linux

package support

import (
	"errors"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// objects are beside the pods that need them.
const objects = `{apiVersion: v1, kind: ConfigMap, metadata: {name: cfg}, data: {k: one, l: two}}
---
{apiVersion: v1, kind: Secret, metadata: {name: sec}, stringData: {k: one, l: two}}
`

// made says that the container under test was made.
func (n *node) made() error { return holds(n.ctr() != nil, "not made: %+v", n.state()) }

func (n *node) envIs(name, want string) error {
	return is("variable "+name, n.env()[name], want)
}

func proofs() []proof {
	return slices.Concat(containerProofs(), environmentProofs(), securityProofs(), probeProofs(), hookProofs(), volumeProofs(), podProofs(), securityPodProofs(), nodeProofs(), serverProofs())
}

func containerProofs() []proof {
	return []proof{
		{
			name: "what it runs", rows: "c.name c.image c.command c.args c.workingDir",
			container: "name: main, image: 'app:2', command: [run], args: [a, b], workingDir: /w",
			look: func(n *node) error {
				c := n.ctr()
				return errors.Join(is("name", c.GetMetadata().GetName(), "main"), is("image", c.GetImage().GetUserSpecifiedImage(), "app:2"),
					is("command", c.GetCommand(), []string{"run"}), is("args", c.GetArgs(), []string{"a", "b"}), is("directory", c.GetWorkingDir(), "/w"))
			},
		},
		{
			name: "ports of the node", rows: "c.ports c.ports[].containerPort c.ports[].hostPort c.ports[].protocol c.ports[].hostIP", sidecar: true, notEphemeral: true,
			container: "ports: [{containerPort: 80, hostPort: 8080, protocol: UDP, hostIP: 192.0.2.9}]",
			look: func(n *node) error {
				var m *runtimeapi.PortMapping
				for _, m = range n.box().GetPortMappings() {
				}
				return errors.Join(is("port", m.GetContainerPort(), 80), is("of the node", m.GetHostPort(), 8080),
					is("protocol", m.GetProtocol(), runtimeapi.Protocol_UDP), is("address", m.GetHostIp(), "192.0.2.9"))
			},
		},
		{
			name: "a port by its name", rows: "c.ports[].name", sidecar: true, notEphemeral: true,
			spec: "hostNetwork: true", container: "ports: [{name: web, containerPort: $TCP}], readinessProbe: {tcpSocket: {port: web, host: 127.0.0.3}, periodSeconds: 1}",
			look: func(n *node) error {
				n.pass(3 * time.Second)
				return holds(n.state().Ready, "not ready")
			},
		},
		{
			name: "terminal", rows: "c.stdin c.stdinOnce c.tty",
			container: "stdin: true, stdinOnce: true, tty: true",
			look: func(n *node) error {
				return errors.Join(is("stdin", n.ctr().GetStdin(), true), is("once", n.ctr().GetStdinOnce(), true), is("tty", n.ctr().GetTty(), true))
			},
		},
		{
			name: "image pull policy", rows: "c.imagePullPolicy", container: "imagePullPolicy: Always",
			look: func(n *node) error {
				n.pass(2 * time.Second)
				return holds(len(n.calls("PullImage app:1")) > 0, "not pulled: %v", n.calls(""))
			},
		},
		{
			name: "termination message", rows: "c.terminationMessagePath", container: "terminationMessagePath: /why",
			look: func(n *node) error { return holds(n.mount("/why") != nil, "no mount /why") },
		},
		{
			name: "termination message of a log", rows: "c.terminationMessagePolicy",
			spec: "restartPolicy: Never", container: "command: [sh, -c, 'echo because; exit 3'], terminationMessagePolicy: FallbackToLogsOnError",
			look: func(n *node) error {
				n.pass(time.Second)
				end := n.state().State.Terminated
				return holds(end != nil && strings.Contains(end.Message, "because"), "state %+v", n.state().State)
			},
		},
		{
			name: "resources", rows: "c.resources c.resources.limits c.resources.requests", notEphemeral: true,
			container: "resources: {limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 250m}}",
			look: func(n *node) error {
				r := n.ctr().GetLinux().GetResources()
				return errors.Join(is("shares", r.GetCpuShares(), 256), is("quota", r.GetCpuQuota(), 50000), is("memory", r.GetMemoryLimitInBytes(), 64<<20))
			},
		},
		{
			name: "resize", rows: "c.resizePolicy c.resizePolicy[].resourceName c.resizePolicy[].restartPolicy", sidecar: true, notEphemeral: true,
			container: "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources: {requests: {memory: 64Mi}}",
			look: func(n *node) error {
				list := "containers"
				if _, sidecar := n.doc["spec"].(map[string]any)["initContainers"]; sidecar {
					list = "initContainers"
				}
				if err := n.edit(list + ": [{resources: {requests: {memory: 65Mi}}}]"); err != nil {
					return err
				}
				n.pass(time.Minute)
				return is("restarts", n.ctr().GetMetadata().GetAttempt(), 1)
			},
		},
		{
			name: "restart policy", rows: "c.restartPolicy", notInit: true, notEphemeral: true,
			container: "command: [exit, '1'], restartPolicy: Never",
			look: func(n *node) error {
				n.pass(time.Minute)
				return errors.Join(is("restarts", n.ctr().GetMetadata().GetAttempt(), 0), holds(n.state().State.Terminated != nil, "state %+v", n.state().State))
			},
		},
		{
			name: "sidecar", rows: "spec.initContainers[].restartPolicy",
			spec: "initContainers: [{name: side, image: 'app:1', restartPolicy: Always}]",
			look: func(n *node) error { return holds(n.state().State.Running != nil, "state %+v", n.state().State) },
		},
		{
			name: "restart rules", notEphemeral: true,
			rows:      "c.restartPolicyRules c.restartPolicyRules[].action c.restartPolicyRules[].exitCodes c.restartPolicyRules[].exitCodes.operator c.restartPolicyRules[].exitCodes.values",
			spec:      "restartPolicy: Never, initContainers: [{name: first, image: 'app:1', command: [exit, '0']}]",
			container: "command: [exit, '42'], restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]",
			look: func(n *node) error {
				n.pass(time.Minute)
				first := n.calls("StartContainer default/p-n1/first ") // twice where all restart
				return holds(n.ctr().GetMetadata().GetAttempt() > 0 && len(first) == 1, "calls: %v", n.calls(""))
			},
		},
		{
			name: "mounts", rows: "c.volumeMounts c.volumeMounts[].name c.volumeMounts[].mountPath c.volumeMounts[].recursiveReadOnly",
			spec:      "volumes: [{name: v, hostPath: {path: $DIR}}]",
			container: "volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}]",
			look: func(n *node) error {
				m := n.mount("/v")
				var of []v1.VolumeMountStatus
				for _, s := range n.state().VolumeMounts {
					if s.RecursiveReadOnly != nil && *s.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
						of = append(of, s)
					}
				}
				return errors.Join(is("path", m.GetHostPath(), n.dir), is("read-only", m.GetReadonly(), true), is("beneath", m.GetRecursiveReadOnly(), true), is("mounts in the status", len(of), 1))
			},
		},
		{
			name: "read-only mount", rows: "c.volumeMounts[].readOnly",
			spec: "volumes: [{name: v, hostPath: {path: $DIR}}]", container: "volumeMounts: [{name: v, mountPath: /v, readOnly: true}]",
			look: func(n *node) error { return is("read-only", n.mount("/v").GetReadonly(), true) },
		},
		{
			name: "mount propagation", rows: "c.volumeMounts[].mountPropagation",
			spec:      "volumes: [{name: v, hostPath: {path: $DIR}}]",
			container: "volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]",
			look: func(n *node) error {
				return is("propagation", n.mount("/v").GetPropagation(), runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER)
			},
		},
		{
			name: "part of a volume", rows: "c.volumeMounts[].subPath", notEphemeral: true,
			spec: "volumes: [{name: v, configMap: {name: cfg}}]", with: objects,
			container: "volumeMounts: [{name: v, mountPath: /v/f, subPath: k}]",
			look:      func(n *node) error { return is("file", n.file("/v/f", ""), "0644 one") },
		},
		{
			name: "part of a volume by the environment", rows: "c.volumeMounts[].subPathExpr", notEphemeral: true,
			spec: "volumes: [{name: v, configMap: {name: cfg}}]", with: objects,
			container: "env: [{name: KEY, value: k}], volumeMounts: [{name: v, mountPath: /v/f, subPathExpr: $(KEY)}]",
			look:      func(n *node) error { return is("file", n.file("/v/f", ""), "0644 one") },
		},
	}
}

func environmentProofs() []proof {
	all := []proof{
		{
			name: "variable", rows: "c.env c.env[].name c.env[].value", container: "env: [{name: A, value: one}]",
			look: func(n *node) error { return n.envIs("A", "one") },
		},
		{
			name: "variable of a field", rows: "c.env[].valueFrom c.env[].valueFrom.fieldRef c.env[].valueFrom.fieldRef.apiVersion c.env[].valueFrom.fieldRef.fieldPath",
			same:      "c.env[].valueFrom.fieldRef.apiVersion",
			container: "env: [{name: A, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}}]",
			look:      func(n *node) error { return n.envIs("A", "default") },
		},
		{
			name: "variable of a resource", rows: "c.env[].valueFrom.resourceFieldRef c.env[].valueFrom.resourceFieldRef.containerName c.env[].valueFrom.resourceFieldRef.resource c.env[].valueFrom.resourceFieldRef.divisor",
			spec:      "containers: [{name: other, image: 'app:1', resources: {limits: {memory: 64Mi}}}]",
			container: "env: [{name: A, valueFrom: {resourceFieldRef: {containerName: other, resource: limits.memory, divisor: 1Mi}}}]",
			look:      func(n *node) error { return n.envIs("A", "64") },
		},
		{
			name: "variable of a file", rows: "c.env[].valueFrom.fileKeyRef c.env[].valueFrom.fileKeyRef.volumeName c.env[].valueFrom.fileKeyRef.path c.env[].valueFrom.fileKeyRef.key",
			spec:      "volumes: [{name: v, emptyDir: {}}], initContainers: [{name: writer, image: 'app:1', command: [sleep, '5'], volumeMounts: [{name: v, mountPath: /v}]}]",
			container: "env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: f, key: K}}}]",
			look: func(n *node) error {
				if err := n.write("writer", "/v", "f", "K='one'\n"); err != nil {
					return err
				}
				n.pass(time.Minute)
				return n.envIs("A", "one")
			},
		},
		{
			name: "variable that may be missing in a file", rows: "c.env[].valueFrom.fileKeyRef.optional",
			spec:      "volumes: [{name: v, emptyDir: {}}], initContainers: [{name: writer, image: 'app:1', command: [sleep, '5'], volumeMounts: [{name: v, mountPath: /v}]}]",
			container: "env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: f, key: K, optional: true}}}]",
			look: func(n *node) error {
				if err := n.write("writer", "/v", "f", "L='one'\n"); err != nil {
					return err
				}
				n.pass(time.Minute)
				return n.made()
			},
		},
		{
			name: "variables of a ConfigMap", rows: "c.envFrom c.envFrom[].prefix c.envFrom[].configMapRef c.envFrom[].configMapRef.name",
			container: "envFrom: [{prefix: P_, configMapRef: {name: cfg}}]", with: objects,
			look: func(n *node) error { return errors.Join(n.envIs("P_k", "one"), n.envIs("P_l", "two")) },
		},
		{
			name: "variables of a Secret", rows: "c.envFrom[].secretRef c.envFrom[].secretRef.name",
			container: "envFrom: [{secretRef: {name: sec}}]", with: objects,
			look: func(n *node) error { return errors.Join(n.envIs("k", "one"), n.envIs("l", "two")) },
		},
	}
	for _, o := range []struct{ kind, ref, from string }{{"ConfigMap", "configMapKeyRef", "configMapRef"}, {"Secret", "secretKeyRef", "secretRef"}} {
		of := map[string]string{"ConfigMap": "cfg", "Secret": "sec"}[o.kind]
		at := "c.env[].valueFrom." + o.ref
		all = append(all,
			proof{
				name: "variable of a " + o.kind + "'s key", rows: at + " " + at + ".name " + at + ".key", with: objects,
				container: "env: [{name: A, valueFrom: {" + o.ref + ": {name: " + of + ", key: k}}}]",
				look:      func(n *node) error { return n.envIs("A", "one") },
			},
			proof{
				name: "variable of a " + o.kind + " that may be missing", rows: at + ".optional",
				container: "env: [{name: A, valueFrom: {" + o.ref + ": {name: absent, key: k, optional: true}}}]",
				look:      func(n *node) error { return n.made() },
			},
			proof{
				name: "variables of a " + o.kind + " that may be missing", rows: "c.envFrom[]." + o.from + ".optional",
				container: "envFrom: [{" + o.from + ": {name: absent, optional: true}}]",
				look:      func(n *node) error { return n.made() },
			},
		)
	}
	return all
}

func securityProofs() []proof {
	const at = "c.securityContext"
	return []proof{
		{
			name: "users", rows: at + " " + at + ".runAsUser " + at + ".runAsGroup",
			container: "securityContext: {runAsUser: 7, runAsGroup: 8}",
			look: func(n *node) error {
				s := n.security()
				return errors.Join(is("user", s.GetRunAsUser().GetValue(), 7), is("group", s.GetRunAsGroup().GetValue(), 8))
			},
		},
		{
			name: "not as root", rows: at + ".runAsNonRoot", container: "securityContext: {runAsNonRoot: true}",
			look: func(n *node) error {
				w := n.state().State.Waiting
				return holds(w != nil && w.Reason == "CreateContainerConfigError" && strings.Contains(w.Message, "run as root"), "state %+v", n.state().State)
			},
		},
		{
			name: "SELinux", rows: at + ".seLinuxOptions " + at + ".seLinuxOptions.user " + at + ".seLinuxOptions.role " + at + ".seLinuxOptions.type " + at + ".seLinuxOptions.level",
			container: "securityContext: {seLinuxOptions: {user: u, role: r, type: t, level: s0}}",
			look:      func(n *node) error { return seLinux(n.security().GetSelinuxOptions()) },
		},
		{
			name: "seccomp", rows: at + ".seccompProfile " + at + ".seccompProfile.type " + at + ".seccompProfile.localhostProfile",
			container: "securityContext: {seccompProfile: {type: Localhost, localhostProfile: p.json}}",
			look: func(n *node) error {
				return is("profile", n.security().GetSeccomp().GetLocalhostRef(), n.dir+"/seccomp/p.json")
			},
		},
		{
			name: "AppArmor", rows: at + ".appArmorProfile " + at + ".appArmorProfile.type " + at + ".appArmorProfile.localhostProfile",
			container: "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: p}}",
			look: func(n *node) error {
				return errors.Join(is("profile", n.security().GetApparmor().GetLocalhostRef(), "p"), is("type", n.security().GetApparmor().GetProfileType(), runtimeapi.SecurityProfile_Localhost))
			},
		},
		{
			name: "unconfined", rows: at + ".seccompProfile.type " + at + ".appArmorProfile.type",
			container: "securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}}",
			look:      unconfined,
		},
		{
			name: "capabilities", rows: at + ".capabilities " + at + ".capabilities.add " + at + ".capabilities.drop",
			container: "securityContext: {capabilities: {add: [NET_ADMIN], drop: [ALL]}}",
			look: func(n *node) error {
				c := n.security().GetCapabilities()
				return errors.Join(is("added", c.GetAddCapabilities(), []string{"NET_ADMIN"}), is("dropped", c.GetDropCapabilities(), []string{"ALL"}))
			},
		},
		{
			name: "privileged", rows: at + ".privileged", container: "securityContext: {privileged: true}",
			look: func(n *node) error {
				return errors.Join(is("container", n.security().GetPrivileged(), true), is("sandbox", n.box().GetLinux().GetSecurityContext().GetPrivileged(), true))
			},
		},
		{
			name: "limits of a process", rows: at + ".readOnlyRootFilesystem " + at + ".allowPrivilegeEscalation",
			container: "securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false}",
			look: func(n *node) error {
				return errors.Join(is("read-only", n.security().GetReadonlyRootfs(), true), is("no new privileges", n.security().GetNoNewPrivs(), true))
			},
		},
		{
			name: "/proc", rows: at + ".procMount", spec: "hostUsers: false", container: "securityContext: {procMount: Unmasked}",
			look: func(n *node) error {
				return holds(n.ctr() != nil && len(n.security().GetMaskedPaths()) == 0, "masked: %v", n.security().GetMaskedPaths())
			},
		},
	}
}

func unconfined(n *node) error {
	const want = runtimeapi.SecurityProfile_Unconfined
	return errors.Join(is("seccomp", n.security().GetSeccomp().GetProfileType(), want), is("AppArmor", n.security().GetApparmor().GetProfileType(), want),
		holds(n.security().GetApparmor() != nil, "no AppArmor profile"))
}

func seLinux(o *runtimeapi.SELinuxOption) error {
	return is("label", []string{o.GetUser(), o.GetRole(), o.GetType(), o.GetLevel()}, []string{"u", "r", "t", "s0"})
}
