package kube

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// path returns a JSONPath of a pod.
func (w *world) path(pod, jsonpath string) string {
	w.Helper()
	return w.kubectl("get", "pod", pod, "-o", "jsonpath="+jsonpath)
}

// readinessGates: a pod with one is ready when its containers are and another client has set
// the gate's condition.
func (w *world) readinessGates() {
	w.apply(strings.Replace(shell("gate", sleeps), "spec:\n", "spec:\n  readinessGates: [{conditionType: example.com/open}]\n", 1))
	condition := func(kind string) string {
		return fmt.Sprintf("jsonpath={.status.conditions[?(@.type==%q)]['status','reason']}", kind)
	}
	w.awaitOutput("True", "get", "pod", "gate", "-o", condition("ContainersReady"))
	w.awaitOutput("False ReadinessGatesNotReady", "get", "pod", "gate", "-o", condition("Ready"))
	say := func(status string) {
		w.kubectl("patch", "pod", "gate", "--subresource=status", "-p", `{"status": {"conditions": [{"type": "example.com/open", "status": "`+status+`"}]}}`)
	}
	say("True")
	w.awaitOutput("True", "get", "pod", "gate", "-o", condition("Ready"))
	say("False")
	w.awaitOutput("False ReadinessGatesNotReady", "get", "pod", "gate", "-o", condition("Ready"))
	if got := w.path("gate", `{.status.conditions[?(@.type=="example.com/open")].status}`); got != "False" {
		w.Errorf("the gate's own condition is %q", got)
	}
}

// addresses: podIP, podIPs, hostIP, hostIPs and the QoS class agree.
func (w *world) addresses() {
	w.pod("plain", sleeps)
	ip := w.path("plain", "{.status.podIP}")
	if net.ParseIP(ip) == nil || ip == w.address {
		w.Errorf("pod address %q", ip)
	}
	for path, want := range map[string]string{
		"{.status.podIPs[*].ip}":         ip,
		"{.status.hostIP}":               w.address,
		"{.status.hostIPs[*].ip}":        w.address,
		"{.status.qosClass}":             "BestEffort",
		"{.status.observedGeneration}":   w.path("plain", "{.metadata.generation}"),
		"{.status.conditions[*].status}": "True True True True True",
		"{.status.phase}":                "Running",
		"{.status.containerStatuses[0]['ready','started','restartCount']}": "true true 0",
	} {
		w.awaitOutput(want, "get", "pod", "plain", "-o", "jsonpath="+path)
	}
	if out := w.kubectl("exec", "plain", "--", "hostname", "-i"); strings.TrimSpace(out) != ip {
		w.Errorf("the pod says its address is %q, its status %q", out, ip)
	}
	kinds := strings.Fields(w.path("plain", "{.status.conditions[*].type}"))
	slices.Sort(kinds)
	if out := strings.Join(kinds, " "); out != "ContainersReady Initialized PodReadyToStartContainers PodScheduled Ready" {
		w.Errorf("conditions %q", out)
	}
}

// occupies is a pod that requests CPU, so that no other pod can have all of the node's.
const occupies = `apiVersion: v1
kind: Pod
metadata: {name: occupies}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "` + sleeps + `"], resources: {requests: {cpu: 200m}}}]
`

// resize: a pod's resources are changed in place; it does not restart, and its status shows the
// allocated and the infeasible resources.
func (w *world) resize() {
	w.apply(occupies)
	w.awaitReady("occupies")
	w.apply(`apiVersion: v1
kind: Pod
metadata: {name: resized}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "` + sleeps + `"], resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 32Mi}}}]
`)
	w.awaitReady("resized")
	id := w.path("resized", "{.status.containerStatuses[0].containerID}")
	has := func(want string) {
		w.Helper()
		w.awaitOutput(want, "get", "pod", "resized", "-o", "jsonpath={.status.containerStatuses[0].resources.requests.cpu} {.status.containerStatuses[0].resources.limits.cpu} "+
			"{.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].allocatedResources.cpu} {.status.conditions[?(@.type==\"PodResizePending\")].reason}{.status.conditions[?(@.type==\"PodResizeInProgress\")].status}")
	}
	change := func(request, limit string) {
		w.Helper()
		w.kubectl("patch", "pod", "resized", "--subresource=resize", "-p", fmt.Sprintf(`{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": %q}, "limits": {"cpu": %q}}}]}}`, request, limit))
	}
	quota := func() string {
		return strings.TrimSpace(w.kubectl("exec", "resized", "--", "sh", "-c", "cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
	}
	has("100m 200m 32Mi 100m")
	if q := quota(); !strings.HasPrefix(q, "20000") {
		w.Errorf("quota %q", q)
	}
	change("150m", "400m")
	has("150m 400m 32Mi 150m")
	if q := quota(); !strings.HasPrefix(q, "40000") {
		w.Errorf("after a resize the quota is %q", q)
	}
	room := resource.MustParse(w.kubectl("get", "node", w.name, "-o", "jsonpath={.status.allocatable.cpu}"))
	most := room.MilliValue() - 100 // as much as the node has, and more than others leave
	change(fmt.Sprintf("%dm", most), fmt.Sprintf("%dm", most+50))
	has("150m 400m 32Mi 150m Deferred")
	generation := w.path("resized", "{.metadata.generation}")
	if generation != "3" {
		w.Errorf("generation %s", generation)
	}
	w.awaitOutput(generation+" "+generation, "get", "pod", "resized", "-o", `jsonpath={.status.observedGeneration} {.status.conditions[?(@.type=="PodResizePending")].observedGeneration}`)
	change("100m", "200m")
	has("100m 200m 32Mi 100m")
	if now := w.path("resized", "{.status.containerStatuses[0]['containerID','restartCount']}"); now != id+" 0" {
		w.Errorf("the container was %s, is %s", id, now)
	}
}

// forceDeletion: the object is gone at once, and the node still ends the containers.
func (w *world) forceDeletion() {
	w.pod("forced", ignores)
	w.kubectl("delete", "pod", "forced", "--grace-period=0", "--force")
	if out := w.kubectl("get", "pod", "forced", "--ignore-not-found", "-o", "name"); out != "" {
		w.Errorf("still there: %s", out)
	}
	w.awaitNothingOf("forced")
}

// awaitNothingOf waits until no container and no sandbox of a pod runs, according to the
// runtime.
func (w *world) awaitNothingOf(pod string) {
	w.Helper()
	w.await(func() error {
		for _, c := range w.machine.Containers(w) {
			if c.Labels["io.kubernetes.pod.name"] == pod && c.Labels["io.kubernetes.pod.namespace"] == w.namespace {
				return fmt.Errorf("container %s of %s is there: %s", c.Metadata.Name, pod, c.State)
			}
		}
		for _, s := range w.machine.Sandboxes(w) {
			if s.Metadata.Name == pod && s.Metadata.Namespace == w.namespace {
				return fmt.Errorf("the sandbox of %s is there: %s", pod, s.State)
			}
		}
		return nil
	})
}

// finalizers: the node does its part of a deletion and reports it; the object stays as long
// as a finalizer remains.
func (w *world) finalizers() {
	w.apply(strings.NewReplacer("{name: held}", "{name: held, finalizers: [example.com/held]}", "Seconds: 1", "Seconds: 30", "trap exit TERM;", "trap 'exit 0' TERM; echo ready;").Replace(shell("held", sleeps)))
	w.awaitReady("held")
	w.awaitOutput("ready", "logs", "held") // it handles the signal from now on
	w.kubectl("delete", "pod", "held", "--wait=false")
	w.awaitOutput("0", "get", "pod", "held", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
	w.awaitOutput("Succeeded", "get", "pod", "held", "-o", "jsonpath={.status.phase}")
	w.awaitNothingOf("held")
	if out := w.path("held", "{.metadata.finalizers[*]} {.metadata.deletionGracePeriodSeconds}"); !strings.HasPrefix(out, "example.com/held") {
		w.Errorf("the object is %q", out)
	}
	w.kubectl("patch", "pod", "held", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	w.awaitOutput("", "get", "pod", "held", "--ignore-not-found", "-o", "name")
}

// statusConflict: other clients write to the object and its status while the node does. In
// the end the status is the node's, except for the conditions that belong to others.
func (w *world) statusConflict() {
	w.apply(`apiVersion: v1
kind: Pod
metadata: {name: disputed}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: ` + busybox + `
    command: [sh, -c, "` + sleeps + `"]
    readinessProbe: {exec: {command: [sh, -c, "[ ! -e /tmp/unready ]"]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}
`)
	w.awaitReady("disputed")
	id := w.path("disputed", "{.status.containerStatuses[0].containerID}")
	for i := range 3 {
		toggle := "touch /tmp/unready"
		if i%2 == 1 {
			toggle = "rm /tmp/unready"
		}
		w.kubectl("exec", "disputed", "--", "sh", "-c", toggle)
		w.kubectl("annotate", "pod", "disputed", "--overwrite", fmt.Sprintf("example.com/turn=%d", i))
		w.kubectl("patch", "pod", "disputed", "--subresource=status", "-p", `{"status": {"message": "by hand", "conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "example.com/mine", "status": "True"}]}}`)
	}
	w.awaitOutput("False", "get", "pod", "disputed", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	w.kubectl("exec", "disputed", "--", "rm", "/tmp/unready")
	w.awaitOutput("True True 0 "+id, "get", "pod", "disputed", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="example.com/mine")].status} {.status.containerStatuses[0]['restartCount','containerID']}`)
	// The agent corrects a status that another client wrote while nothing happens here.
	w.kubectl("patch", "pod", "disputed", "--subresource=status", "-p", `{"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "MadeUp"}]}}`)
	w.awaitOutput("True", "get", "pod", "disputed", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
}
