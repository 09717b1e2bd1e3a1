//go:build full

package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// The images of a CSI driver and its sidecars, of the versions in hack/csi/go.mod.
const (
	csiAttacher    = "registry.k8s.io/sig-storage/csi-attacher:v4.12.0"
	csiProvisioner = "registry.k8s.io/sig-storage/csi-provisioner:v6.3.0"
	csiResizer     = "registry.k8s.io/sig-storage/csi-resizer:v2.2.0"
	csiDisk        = "nodectl.dev/test/csi-disk:1" // hack/csi/disk
)

// diskDriver is the name of that driver.
const diskDriver = "disk.csi.nodectl.dev"

// storage is a world whose node has a CSI driver with its sidecars, all of them as pods.
type storage struct {
	*world
	dir  string // of the kubelet
	data string // the driver's
	boot string // the file that shows the ID of the boot
}

// newStorage starts the world. The kubelet's directory is a mount that is shared, as on a machine with
// systemd, so that the mounts of the driver's container reach the node.
func newStorage(t testing.TB, flags ...string) *storage {
	t.Helper()
	w := bareWorld(t)
	w.importImages()
	w.importSidecars()
	dir, err := os.MkdirTemp("", "kc") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	s := &storage{world: w, dir: dir, data: t.TempDir(), boot: filepath.Join(t.TempDir(), "boot_id")}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.mount(dir, dir)
	s.must(unix.Mount("", dir, "", unix.MS_SHARED, ""), os.WriteFile(s.boot, []byte("11111111-1111-4111-8111-111111111111\n"), 0o444))
	s.mount(s.boot, "/proc/sys/kernel/random/boot_id")
	w.file = w.cluster.NodeKubeconfig(t, w.name)
	w.serve(append([]string{"--cluster-dns", dnsAddress, "--kubelet-dir", dir}, flags...)...)
	w.cluster.KubeProxy(t, w.name)
	for _, name := range []string{"external-attacher", "external-provisioner", "external-resizer"} {
		text, err := os.ReadFile(filepath.Join(node.Repo(), "bin/csi", name+".yaml"))
		s.must(err)
		w.apply(string(text))
	}
	w.apply(strings.NewReplacer("KUBELET", dir, "DATA", s.data, "DRIVER", diskDriver, "ATTACHER", csiAttacher, "PROVISIONER", csiProvisioner, "RESIZER", csiResizer, "DISK", csiDisk).Replace(diskManifests))
	w.awaitOutput(diskDriver, "get", "csinode", w.name, "-o", "jsonpath={.spec.drivers[*].name}")
	return s
}

// mount shows a file or directory on a path until the test ends.
func (s *storage) mount(from, to string) {
	s.Helper()
	s.must(unix.Mount(from, to, "", unix.MS_BIND, ""))
	s.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			s.Errorf("unmount %s: %v", to, err)
		}
	})
}

func (s *storage) must(errs ...error) {
	s.Helper()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}

// importSidecars imports the images of the driver and of its sidecars.
func (w *world) importSidecars() {
	w.Helper()
	dir := w.TempDir()
	var files []string
	for ref, program := range map[string]string{csiAttacher: "csi-attacher", csiProvisioner: "csi-provisioner", csiResizer: "csi-resizer", csiDisk: "disk"} {
		file := filepath.Join(dir, program+".tar")
		if err := writeImage(file, ref, filepath.Join(node.Repo(), "bin/csi", program), nil, []string{"/bin/" + program}); err != nil {
			w.Fatalf("a test on a real CSI driver needs hack/csi/build: %v", err)
		}
		files = append(files, file)
	}
	w.machine.Import(w, files...)
}

// diskManifests run the driver on every node, as testing-manifests of Kubernetes run theirs.
const diskManifests = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: DRIVER}
spec: {attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disk}
provisioner: DRIVER
reclaimPolicy: Delete
volumeBindingMode: Immediate
allowVolumeExpansion: true
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: csi-disk}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-disk-attacher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-attacher-runner}
subjects: [{kind: ServiceAccount, name: csi-disk, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-disk-provisioner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-provisioner-runner}
subjects: [{kind: ServiceAccount, name: csi-disk, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-disk-resizer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-resizer-runner}
subjects: [{kind: ServiceAccount, name: csi-disk, namespace: default}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: csi-disk}
spec:
  selector: {matchLabels: {app: csi-disk}}
  template:
    metadata: {labels: {app: csi-disk}}
    spec:
      serviceAccountName: csi-disk
      terminationGracePeriodSeconds: 2
      containers:
      - name: disk
        image: DISK
        command: [/bin/disk, driver, --driver-name=DRIVER, --endpoint=/csi/csi.sock, --data-dir=/csi-data, --node-id=$(NODE)]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: socket, mountPath: /csi}
        - {name: pods, mountPath: KUBELET/pods, mountPropagation: Bidirectional}
        - {name: plugins, mountPath: KUBELET/plugins, mountPropagation: Bidirectional}
        - {name: data, mountPath: /csi-data}
      - name: registrar
        image: DISK
        command: [/bin/disk, registrar, --csi-address=/csi/csi.sock, --kubelet-registration-path=KUBELET/plugins/DRIVER/csi.sock]
        volumeMounts: [{name: socket, mountPath: /csi}, {name: registration, mountPath: /registration}]
      - name: csi-attacher
        image: ATTACHER
        command: [/bin/csi-attacher, --v=5, --csi-address=/csi/csi.sock]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: csi-provisioner
        image: PROVISIONER
        command: [/bin/csi-provisioner, --v=5, --csi-address=/csi/csi.sock]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: csi-resizer
        image: RESIZER
        command: [/bin/csi-resizer, --v=5, --csi-address=/csi/csi.sock]
        volumeMounts: [{name: socket, mountPath: /csi}]
      volumes:
      - {name: socket, hostPath: {path: KUBELET/plugins/DRIVER, type: DirectoryOrCreate}}
      - {name: pods, hostPath: {path: KUBELET/pods, type: DirectoryOrCreate}}
      - {name: registration, hostPath: {path: KUBELET/plugins_registry, type: Directory}}
      - {name: plugins, hostPath: {path: KUBELET/plugins, type: Directory}}
      - {name: data, hostPath: {path: DATA, type: Directory}}
`

// calls returns the driver's calls for a volume since it was created. The attacher may repeat a call
// that it has just made; the node must not.
func (s *storage) calls(id string) (all []string) {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.data, "calls"))
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if call, of, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(of, id) {
			all = append(all, call+strings.TrimPrefix(of, id))
		}
	}
	return slices.CompactFunc(all, func(a, b string) bool { return a == b && strings.HasPrefix(a, "Controller") })
}

// awaitCalls waits until the driver's calls for a volume are these.
func (s *storage) awaitCalls(id, want string) {
	s.Helper()
	s.await(func() error {
		if got := strings.Join(s.calls(id), " "); got != want {
			return fmt.Errorf("the driver had the calls %s, want %s", got, want)
		}
		return nil
	})
}

// volumeOf returns the driver's ID of the volume that a claim is bound to.
func (s *storage) volumeOf(claim string) string {
	s.Helper()
	s.awaitOutput("Bound", "get", "persistentvolumeclaim", claim, "-o", "jsonpath={.status.phase}")
	return s.kubectl("get", "persistentvolume", s.kubectl("get", "persistentvolumeclaim", claim, "-o", "jsonpath={.spec.volumeName}"), "-o", "jsonpath={.spec.csi.volumeHandle}")
}

// awaitStarts waits until the file of the StatefulSet has a line of each start of its container.
func (s *storage) awaitStarts(want int) {
	s.Helper()
	s.await(func() error {
		out, err := s.try("exec", "db-0", "--", "cat", "/data/starts")
		if got := strings.Count(out, "start"); err == nil && got != want {
			err = fmt.Errorf("the volume has %d starts, want %d: %q", got, want, out)
		}
		return err
	})
	s.awaitReady("db-0")
}

// mounts returns the mounts of volumes below the kubelet's directory.
func (s *storage) mounts() (all []string) {
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, s.dir+"/") {
			all = append(all, m)
		}
	}
	return all
}

// reboot takes everything from the machine that a reboot takes: the agent, the pods, the mounts, and the
// ID of the boot.
func (s *storage) reboot() {
	s.Helper()
	s.agent.Kill(s)
	s.must(s.machine.RemovePods(s.Context()))
	all := node.Mounts()
	slices.Reverse(all)
	for _, m := range all {
		if strings.HasPrefix(m, s.dir+"/") || strings.HasPrefix(m, s.root+"/") {
			s.must(unix.Unmount(m, unix.MNT_DETACH))
		}
	}
	if left := s.mounts(); len(left) > 0 {
		s.Fatalf("mounts are left after a reboot: %v", left)
	}
	s.must(os.Chmod(s.boot, 0o600), os.WriteFile(s.boot, []byte("22222222-2222-4222-8222-222222222222\n"), 0o600))
	s.agent.Start(s)
	s.awaitNode("Ready", "True")
}

const statefulSetOnADisk = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: 1000, fsGroup: 2000}
      containers:
      - name: main
        image: ` + busybox + `
        command: [sh, -c, "echo start >>/data/starts; exec sleep 100000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: disk, resources: {requests: {storage: 16Mi}}}
`

// TestCSI_StatefulSetOnAClaim_KeepsItsDataThroughRestartsDrainAndReboot: a CSI driver runs as a pod, with
// the attacher, the provisioner and the resizer of Kubernetes. The claim of a StatefulSet is provisioned,
// attached, staged and published. Its data survives a kill of the agent, another pod of the driver, a
// drain and a reboot; only the last two make the driver mount again. A deleted claim leaves nothing.
//
// Shows: F1, F33
func TestCSI_StatefulSetOnAClaim_KeepsItsDataThroughRestartsDrainAndReboot(t *testing.T) {
	s := newStorage(t)
	s.apply(statefulSetOnADisk)
	s.awaitStarts(1)
	id := s.volumeOf("data-db-0")
	up, down := "ControllerPublishVolume NodeStageVolume NodePublishVolume", "NodeUnpublishVolume NodeUnstageVolume ControllerUnpublishVolume"
	s.awaitCalls(id, up)

	s.agent.Restart(t)
	s.awaitNode("Ready", "True")
	s.awaitStarts(1)
	old := s.kubectl("get", "pods", "-l", "app=csi-disk", "-o", "jsonpath={.items[0].metadata.uid}")
	s.kubectl("delete", "pod", "-l", "app=csi-disk")
	s.await(func() error {
		uid, err := s.try("get", "pods", "-l", "app=csi-disk", "-o", "jsonpath={.items[0].metadata.uid}")
		if err == nil && (uid == "" || uid == old) {
			err = fmt.Errorf("the pod of the driver is %q, which was %q before", uid, old)
		}
		return err
	})
	s.awaitRollout("daemonset/csi-disk")
	s.awaitOutput(diskDriver, "get", "csinode", s.name, "-o", "jsonpath={.spec.drivers[*].name}")
	s.awaitStarts(1)
	s.awaitCalls(id, up)

	s.kubectl("drain", s.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+wait.Limit.String())
	s.awaitCalls(id, up+" "+down)
	s.kubectl("uncordon", s.name)
	s.awaitStarts(2)
	s.awaitCalls(id, up+" "+down+" "+up)

	s.reboot()
	s.awaitStarts(3)
	s.awaitCalls(id, up+" "+down+" "+up+" NodeStageVolume NodePublishVolume")

	s.kubectl("delete", "statefulset", "db")
	s.kubectl("delete", "pvc", "data-db-0")
	s.awaitCalls(id, up+" "+down+" "+up+" NodeStageVolume NodePublishVolume "+down+" DeleteVolume")
	s.awaitOutput("", "get", "volumeattachments", "-o", "name")
	s.awaitOutput("", "get", "node", s.name, "-o", "jsonpath={.status.volumesInUse[*]}")
	if left := s.mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}

// podWithVolume is a pod of a shell with one volume.
func podWithVolume(name, volume, script string) string {
	return strings.NewReplacer("spec:\n", "spec:\n  volumes: [{name: data, "+volume+"}]\n", "    command:", "    volumeMounts: [{name: data, mountPath: /data}]\n    command:").Replace(shell(name, script))
}

// TestCSI_GrowingAndEphemeralVolumes_AreMountedAndLeaveNothing: a mounted volume grows with its claim; an
// inline volume and the claim of a generic ephemeral volume exist as long as their pods. The metrics of the
// node have the size and the health that the driver reports.
//
// Shows: C-1.37
func TestCSI_GrowingAndEphemeralVolumes_AreMountedAndLeaveNothing(t *testing.T) {
	s := newStorage(t, "--volume-health", "--volume-stats-agg-period", "1s")
	const claim = `{accessModes: [ReadWriteOnce], storageClassName: disk, resources: {requests: {storage: 16Mi}}}`
	s.apply("{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: grows}, spec: " + claim + "}\n---\n" +
		podWithVolume("grows", "persistentVolumeClaim: {claimName: grows}", "echo kept >/data/file; exec sleep 100000") + "---\n" +
		podWithVolume("inline", "csi: {driver: "+diskDriver+", volumeAttributes: {color: blue}}", "echo kept >/data/file; exec sleep 100000") + "---\n" +
		podWithVolume("generic", "ephemeral: {volumeClaimTemplate: {spec: "+claim+"}}", "echo kept >/data/file; exec sleep 100000"))
	s.awaitReady("grows", "inline", "generic")
	grows, generic := s.volumeOf("grows"), s.volumeOf("generic-data")
	inline := s.inlineVolume()
	for _, id := range []string{grows, generic, inline} {
		if text, err := os.ReadFile(filepath.Join(s.data, "volumes", id, "file")); string(text) != "kept\n" {
			t.Errorf("volume %s has %q, %v", id, text, err)
		}
	}
	s.awaitCalls(inline, "NodePublishVolume")

	s.awaitMetrics("grows", "0", 16<<20)
	s.must(os.WriteFile(filepath.Join(s.data, grows+".abnormal"), []byte("the disk is failing"), 0o600))
	s.awaitMetrics("grows", "1", 16<<20)
	s.awaitOutput("Volume data: the disk is failing", "get", "events", "--field-selector", "reason=VolumeConditionAbnormal", "-o", "jsonpath={.items[0].message}{.items[0].note}")

	s.kubectl("patch", "pvc", "grows", "-p", `{"spec": {"resources": {"requests": {"storage": "48Mi"}}}}`)
	s.awaitOutput("48Mi", "get", "persistentvolumeclaim", "grows", "-o", "jsonpath={.status.capacity.storage}")
	s.awaitCalls(grows, "ControllerPublishVolume NodeStageVolume NodePublishVolume ControllerExpandVolume NodeExpandVolume")
	s.awaitMetrics("grows", "1", 48<<20)

	s.kubectl("delete", "pod", "grows", "inline", "generic", "--wait=false")
	s.awaitCalls(inline, "NodePublishVolume NodeUnpublishVolume")
	s.awaitCalls(generic, "ControllerPublishVolume NodeStageVolume NodePublishVolume NodeUnpublishVolume NodeUnstageVolume ControllerUnpublishVolume DeleteVolume")
	s.kubectl("delete", "pvc", "grows")
	s.await(func() error {
		if left, err := os.ReadDir(filepath.Join(s.data, "volumes")); err != nil || len(left) > 0 {
			return fmt.Errorf("the driver still has the volumes %v, %v", left, err)
		}
		return nil
	})
	if left := s.mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}

// inlineVolume returns the ID of the only inline volume.
func (s *storage) inlineVolume() string {
	s.Helper()
	all, err := filepath.Glob(filepath.Join(s.data, "volumes", "csi-*"))
	if err != nil || len(all) != 1 {
		s.Fatalf("the inline volumes are %v, %v", all, err)
	}
	return filepath.Base(all[0])
}

// awaitMetrics waits until the metrics of the node have the health and the size of a claim's volume.
func (s *storage) awaitMetrics(claim, abnormal string, size int) {
	s.Helper()
	of := fmt.Sprintf("{namespace=%q,persistentvolumeclaim=%q} ", "default", claim)
	want := []string{"kubelet_volume_stats_health_status_abnormal" + of + abnormal, "kubelet_volume_stats_capacity_bytes" + of + strconv.FormatFloat(float64(size), 'g', -1, 64)}
	s.await(func() error {
		out, err := s.try("get", "--raw", "/api/v1/nodes/"+s.name+"/proxy/metrics")
		for _, line := range want {
			if err == nil && !strings.Contains(out, line+"\n") {
				err = fmt.Errorf("the metrics have no %s", line)
			}
		}
		return err
	})
}
