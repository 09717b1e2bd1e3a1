//go:build full

package kube

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/nodectl/nodectl/test/wait"
)

// TestDisks_BlockVolumeOfACSIDriver_IsADeviceInTheContainer: a claim with volumeMode Block is a block
// device of the container, also over a kill of the agent, and nothing is left of it. The volume grows
// while the pod runs.
//
// Shows: F1
func TestDisks_BlockVolumeOfACSIDriver_IsADeviceInTheContainer(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "kb") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := shared(t).in(t, "blocks").secondNode(t, "blocks", "--kubelet-dir", dir)
	d := &disks{name: "raw.test", dir: t.TempDir(), grows: true}
	d.serve(t, dir)
	w.awaitOutput("raw.test", "get", "csinode", w.name, "-o", "jsonpath={.spec.drivers[0].name}")
	w.apply(`apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: raw.test}
spec: {attachRequired: false}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: raw-1}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], volumeMode: Block, persistentVolumeReclaimPolicy: Retain, storageClassName: "", csi: {driver: raw.test, volumeHandle: one}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: "", volumeName: raw-1, resources: {requests: {storage: 1Gi}}}
---
` + strings.NewReplacer("spec:\n", "spec:\n  nodeName: "+w.name+"\n  volumes: [{name: raw, persistentVolumeClaim: {claimName: raw}}]\n", "    command:", "    volumeDevices: [{name: raw, devicePath: /dev/raw}]\n    command:").
		Replace(shell("writer", "test -b /dev/raw || exit 1; exec sleep 100000")))
	w.awaitReady("writer")
	w.agent.Restart(w)
	w.awaitNode("Ready", "True")
	w.awaitReady("writer")
	if got := d.called(); got != "stage: publish" {
		w.Errorf("after a kill of the agent the driver had the calls %s", got)
	}
	w.kubectl("patch", "pv", "raw-1", "--type=merge", "-p", `{"spec": {"capacity": {"storage": "2Gi"}}}`) // as the controller does
	calls := func(want string) {
		wait.NoError(w, func() error {
			if got := d.called(); got != want {
				return fmt.Errorf("the driver had the calls %s, want %s", got, want)
			}
			return nil
		}, wait.WithoutStall)
	}
	calls("stage: publish expand")
	w.awaitOutput("2Gi", "get", "persistentvolumeclaim", "raw", "-o", "jsonpath={.status.capacity.storage}")
	w.kubectl("delete", "pod", "writer", "--wait=false")
	w.awaitOutput("", "get", "pods", "-o", "name")
	calls("stage: publish expand unpublish unstage")
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil || len(mounts) > 0 {
		w.Errorf("mounts are left: %v, %v", mounts, err)
	}
}
