package kube

import (
	"fmt"
	"strings"
	"testing"
)

// TestCapacityOfAForceDeletedPod_IsWaitedFor: a pod takes the place of a pod that was deleted
// by force and is still stopping. It is Pending with the reason and runs once that pod's last
// container is gone. It is never Failed.
//
// Shows: C-1.31
func TestCapacityOfAForceDeletedPod_IsWaitedFor(t *testing.T) {
	t.Parallel()
	w := shared(t).in(t, "capacity").secondNode(t, "tight", "--max-pods", "1")
	bound := func(name string) string {
		return strings.NewReplacer("spec:\n", "spec:\n  nodeName: "+w.name+"\n", "Seconds: 1\n", "Seconds: 8\n").Replace(shell(name, ignores))
	}
	w.apply(bound("old"))
	w.awaitReady("old")
	w.kubectl("delete", "pod", "old", "--force", "--grace-period=0")
	w.apply(bound("next"))
	w.awaitOutput("Pending OutOfpods", "get", "pod", "next", "-o", "jsonpath={.status['phase','reason']}")
	w.awaitReady("next")
	if got := w.path("next", "{.status.phase} {.status.reason}"); got != "Running " {
		w.Errorf("phase and reason %q", got)
	}
}

// TestReplicaSet_PodNeedsWhatTheNodeLacks_MakesNoMorePods: pods with an iSCSI volume are Pending
// with FailedMount, and there are as many as the ReplicaSet specifies. The volume is read-only: the
// scheduler places no two pods on a node that write to the same one.
//
// Shows: C-1.31
func TestReplicaSet_PodNeedsWhatTheNodeLacks_MakesNoMorePods(t *testing.T) {
	t.Parallel()
	w := shared(t).in(t, "lacking")
	w.apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: stuck}
spec:
  replicas: 2
  selector: {matchLabels: {app: stuck}}
  template:
    metadata: {labels: {app: stuck}}
    spec:
      containers:
      - {name: main, image: "` + busybox + `", volumeMounts: [{name: data, mountPath: /data}]}
      volumes: [{name: data, iscsi: {targetPortal: "192.0.2.1:3260", iqn: "iqn.2026-01.com.example:disk", lun: 0, readOnly: true}}]
`)
	w.awaitOutput("Pending Pending", "get", "pods", "-o", "jsonpath={.items[*].status.phase}")
	w.awaitOutput("FailedMount FailedMount", "get", "pods", "-o", "jsonpath={.items[*].status.reason}")
	names := w.kubectl("get", "pods", "-o", "name")
	w.pod("later", sleeps) // the node still works, and the controller had its time
	w.awaitOutput("FailedMount FailedMount", "get", "pods", "-l", "app=stuck", "-o", "jsonpath={.items[*].status.reason}")
	if now := w.kubectl("get", "pods", "-l", "app=stuck", "-o", "name"); now != names {
		w.Errorf("pods %q became %q", names, now)
	}
	w.kubectl("delete", "deployment", "stuck")
	w.awaitOutput("", "get", "pods", "-l", "app=stuck", "-o", "name")
}

// TestRestartAllContainers_TriggeredBySidecar_EndsReachTheServer: Kubernetes' own test of
// the rule, with shorter times.
//
// Shows: C-1.21.3
func TestRestartAllContainers_TriggeredBySidecar_EndsReachTheServer(t *testing.T) {
	t.Parallel()
	w := shared(t).in(t, "restart-all")
	w.apply(`apiVersion: v1
kind: Pod
metadata: {name: all}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: init, image: "` + busybox + `", command: [sh, -c, exit 0]}
  - {name: sidecar, image: "` + busybox + `", command: [sh, -c, sleep 10000], restartPolicy: Always}
  - name: source
    image: "` + busybox + `"
    command: [sh, -c, "if [ -f /mnt/done ]; then sleep 10000; else touch /mnt/done; sleep 5; exit 42; fi"]
    restartPolicy: Always
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
    volumeMounts: [{name: d, mountPath: /mnt}]
  containers:
  - {name: regular, image: "` + busybox + `", command: [sh, -c, sleep 10000]}
  volumes: [{name: d, emptyDir: {}}]
`)
	w.await(func() error {
		got := w.path("all", `{range .status.initContainerStatuses[*]}{.name}={.restartCount}/{.lastState.terminated.reason} {end}{range .status.containerStatuses[*]}{.name}={.restartCount}/{.lastState.terminated.reason} {end}`)
		for _, name := range []string{"init", "sidecar", "source", "regular"} {
			if !strings.Contains(got, name+"=1/RestartingAllContainers") {
				return fmt.Errorf("statuses %s", got)
			}
		}
		return nil
	})
	w.awaitReady("all")
}
