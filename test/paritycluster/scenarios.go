package main

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
)

// steadyPods run while the cases do, and are what /pods, statistics and metrics are
// compared of.
var steadyPods = []string{"view-plain", "view-volumes"}

var steady = manifest("view-plain", container(`serve, ":8080", forever`, `readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 2}, livenessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 2}`)) +
	"\n---\n" + manifest("view-volumes", `  initContainers:
  - {name: first, image: `+node.Stamp+`, args: [print, one]}
  - {name: beside, image: `+node.Stamp+`, args: [forever], restartPolicy: Always}
  containers:
  - {name: main, image: `+node.Stamp+`, args: [forever], volumeMounts: [{name: dir, mountPath: /dir}], resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}}
  volumes: [{name: dir, emptyDir: {}}]
`)

// bound is a pod that no scheduler sees.
const bound = "  nodeName: " + nodeName + "\n"

var scenarios = []scenario{
	{name: "crash", shows: "a container that crashes", pod: container(`sleep, 1s, exit, "3"`, ""),
		steps: []step{until("CrashLoopBackOff", waiting(1, "CrashLoopBackOff"))}},
	{name: "liveness", shows: "a liveness probe that fails", pod: container("forever", `livenessProbe: {httpGet: {path: /, port: 9999}, periodSeconds: 3, failureThreshold: 2}`),
		steps: []step{until("started again", restarted(1))}},
	{name: "pull-error", shows: "an image that cannot be pulled", pod: "  containers: [{name: main, image: 127.0.0.1:1/nothing:1}]\n",
		steps: []step{until("ImagePullBackOff", waiting(0, "ImagePullBackOff"))}},
	{name: "config-env", shows: "a ConfigMap for a variable that is made later", pod: container("forever", `env: [{name: A, valueFrom: {configMapKeyRef: {name: later-env, key: a}}}]`),
		steps: []step{until("CreateContainerConfigError", waiting(0, "CreateContainerConfigError")),
			made("kind: ConfigMap\napiVersion: v1\nmetadata: {name: later-env}\ndata: {a: one}\n"), until("Ready", ready)}},
	{name: "config-volume", shows: "a ConfigMap for a volume that is made later", pod: container("forever", `volumeMounts: [{name: v, mountPath: /v}]`) + "  volumes: [{name: v, configMap: {name: later-volume}}]\n",
		steps: []step{until("ContainerCreating", waiting(0, "ContainerCreating")),
			made("kind: ConfigMap\napiVersion: v1\nmetadata: {name: later-volume}\ndata: {a: one}\n"), until("Ready", ready)}},
	{name: "ordinary", shows: "an ordinary pod", pod: container(`serve, ":8080", forever`, `readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}`),
		steps: []step{until("Ready", ready)}},
	{name: "init", shows: "an init container and a sidecar", pod: `  initContainers:
  - {name: first, image: ` + node.Stamp + `, args: [sleep, 3s]}
  - {name: beside, image: ` + node.Stamp + `, args: [forever], restartPolicy: Always}
` + running, steps: []step{until("Ready", ready)}},
	{name: "init-fails", shows: "an init container that fails permanently", pod: "  restartPolicy: Never\n  initContainers: [{name: first, image: " + node.Stamp + `, args: [exit, "4"]}]` + "\n" + running,
		steps: []step{until("Failed", phase(v1.PodFailed))}},
	{name: "gate", shows: "a readiness gate, set by a patch", pod: "  readinessGates: [{conditionType: example.com/gate}]\n" + running,
		steps: []step{until("ContainersReady", containersReady),
			patched("status", `{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`), until("Ready", ready)}},
	{name: "readiness", shows: "a readiness probe that fails at first", pod: container(`ready, 4s, serve, ":8080", forever`, `readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}`),
		steps: []step{until("Ready", ready)}},
	{name: "startup", shows: "a startup probe before the others", pod: container(`ready, 4s, serve, ":8080", forever`, `startupProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1, failureThreshold: 30}, readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}`),
		steps: []step{until("Ready", ready)}},
	{name: "never-success", shows: "restartPolicy Never, exit 0", pod: "  restartPolicy: Never\n" + container("sleep, 3s", ""),
		steps: []step{until("Succeeded", phase(v1.PodSucceeded))}},
	{name: "never-failure", shows: "restartPolicy Never, exit 7", pod: "  restartPolicy: Never\n" + container(`sleep, 3s, exit, "7"`, ""),
		steps: []step{until("Failed", phase(v1.PodFailed))}},
	{name: "on-failure", shows: "restartPolicy OnFailure: once wrong, then right", pod: "  restartPolicy: OnFailure\n" + container(`sleep, 3s, crash, /d/f, "5", sleep, 3s`, `volumeMounts: [{name: d, mountPath: /d}]`) + "  volumes: [{name: d, emptyDir: {}}]\n",
		steps: []step{until("Succeeded", phase(v1.PodSucceeded))}},
	{name: "deadline", shows: "activeDeadlineSeconds", pod: "  activeDeadlineSeconds: 12\n" + running,
		steps: []step{until("Failed", phase(v1.PodFailed))}},
	{name: "never-pull", shows: "imagePullPolicy Never and no image", pod: "  containers: [{name: main, image: nodectl.dev/nothing:1, imagePullPolicy: Never}]\n",
		steps: []step{until("ErrImageNeverPull", waiting(0, "ErrImageNeverPull"))}},
	{name: "secret", shows: "a Secret as a volume", objects: "kind: Secret\napiVersion: v1\nmetadata: {name: word}\nstringData: {word: quiet}\n",
		pod:   container("exists, /s/word, forever", `volumeMounts: [{name: s, mountPath: /s}]`) + "  volumes: [{name: s, secret: {secretName: word}}]\n",
		steps: []step{until("Ready", ready)}},
	{name: "grace", shows: "deletion with a preStop hook, and a container that takes its time", pod: "  terminationGracePeriodSeconds: 6\n" + container("ignore, forever", `lifecycle: {preStop: {exec: {command: [/app, sleep, 1s]}}}`),
		steps: []step{until("Ready", ready)}},
	{name: "early", shows: "deletion before anything has started", pod: container("forever", `volumeMounts: [{name: v, mountPath: /v}]`) + "  volumes: [{name: v, secret: {secretName: never}}]\n",
		steps: []step{until("ContainerCreating", waiting(0, "ContainerCreating"))}},
	{name: "force", shows: "deletion with grace 0", pod: running, keep: true,
		steps: []step{until("Ready", ready), removed(0)}},
	{name: "host-network", shows: "the machine's network", pod: "  hostNetwork: true\n" + running, steps: []step{until("Ready", ready)}},
	{name: "guaranteed", shows: "requests and limits that are equal", pod: container("forever", `resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 50m, memory: 32Mi}}`),
		steps: []step{until("Ready", ready)}},
	{name: "burstable", shows: "requests below the limits", pod: container("forever", `resources: {requests: {cpu: 20m, memory: 16Mi}, limits: {memory: 32Mi}}`),
		steps: []step{until("Ready", ready)}},
	{name: "resize", shows: "a resize in place", pod: container("forever", `resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 64Mi}}`),
		steps: []step{until("Ready", ready),
			patched("resize", `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"60m"},"limits":{"cpu":"200m"}}}]}}`),
			until("resized", func(p *v1.Pod) bool {
				r := p.Status.ContainerStatuses[0].Resources
				return r != nil && r.Limits.Cpu().MilliValue() == 200
			})}},
	{name: "message", shows: "a termination message", pod: "  restartPolicy: Never\n" + container("sleep, 3s, write, /dev/termination-log, bye", ""),
		steps: []step{until("Succeeded", phase(v1.PodSucceeded))}},
	{name: "message-log", shows: "a termination message from the log", pod: "  restartPolicy: Never\n" + container(`print, last, sleep, 3s, exit, "4"`, "terminationMessagePolicy: FallbackToLogsOnError"),
		steps: []step{until("Failed", phase(v1.PodFailed))}},
	{name: "ephemeral", shows: "an ephemeral container", pod: running,
		steps: []step{until("Ready", ready),
			patched("ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"eye","image":"`+node.Stamp+`","args":["sleep","3s"],"targetContainerName":"main"}]}}`),
			until("the ephemeral container to end", func(p *v1.Pod) bool {
				e := p.Status.EphemeralContainerStatuses
				return len(e) > 0 && e[0].State.Terminated != nil
			})}},
	{name: "host-port", shows: "a port of the machine", pod: container("forever", `ports: [{containerPort: 80, hostPort: 18347}]`), steps: []step{until("Ready", ready)}},
	{name: "subdomain", shows: "host name and subdomain", pod: "  hostname: hop\n  subdomain: sub\n" + running, steps: []step{until("Ready", ready)}},
	{name: "non-root", shows: "runAsNonRoot and an image of root", pod: container("forever", `securityContext: {runAsNonRoot: true, runAsUser: 0}`),
		steps: []step{until("CreateContainerConfigError", waiting(0, "CreateContainerConfigError"))}},
	{name: "no-program", shows: "a program that is not there", pod: "  containers: [{name: main, image: " + node.Stamp + ", command: [/nothing]}]\n",
		steps: []step{until("CrashLoopBackOff", waiting(0, "CrashLoopBackOff"))}},
	{name: "out-of-cpu", shows: "bound to the node, and too large for it", pod: bound + container("forever", `resources: {requests: {cpu: "1000"}}`),
		steps: []step{until("Failed", phase(v1.PodFailed))}},
	{name: "affinity", shows: "bound to the node against its own selector", pod: bound + "  nodeSelector: {disk: none}\n" + running,
		steps: []step{until("Failed", phase(v1.PodFailed))}},
	{name: "static", shows: "a static pod and its mirror", also: []string{"static-" + nodeName}, keep: true,
		steps: []step{static}},
	{name: "post-start", shows: "a postStart hook that fails", pod: container("forever", `lifecycle: {postStart: {exec: {command: [/app, exit, "9"]}}}`),
		steps: []step{until("CrashLoopBackOff", waiting(0, "CrashLoopBackOff"))}},
	{name: "two", shows: "two containers, one of which ends", pod: "  restartPolicy: Never\n  containers: [{name: main, image: " + node.Stamp + ", args: [forever]}, {name: short, image: " + node.Stamp + ", args: [sleep, 3s]}]\n",
		steps: []step{until("the short one to end", func(p *v1.Pod) bool {
			for _, c := range p.Status.ContainerStatuses {
				if c.State.Terminated != nil {
					return true
				}
			}
			return false
		})}},
	{name: "resize-deferred", shows: "a resize that has to wait for room", pod: container("forever", `resources: {requests: {cpu: 50m}}`),
		steps: []step{until("Ready", ready),
			patched("resize", `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1995m"}}}]}}`),
			until("PodResizePending", func(p *v1.Pod) bool { return condition(p, v1.PodResizePending) != "" })}},
}

// pods returns the names of a scenario's pods.
func (s *scenario) pods() []string {
	if s.pod == "" {
		return s.also
	}
	return append([]string{s.name}, s.also...)
}
