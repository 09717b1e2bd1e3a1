package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/test/wait"
)

// disks is the node plugin of a CSI driver: a volume is a directory that it mounts.
type disks struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	name, endpoint, dir string
	grows               bool // it expands mounted volumes

	mu    sync.Mutex
	calls []string
}

func (d *disks) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: d.name, Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *disks) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *disks) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.name}, nil
}

func (d *disks) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{
		NodeId: "id-of-node", MaxVolumesPerNode: 3,
		AccessibleTopology: &csipb.Topology{Segments: map[string]string{"topology.disk.test/rack": "7"}},
	}, nil
}

func (d *disks) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	able := []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	if d.grows {
		able = append(able, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	answer := &csipb.NodeGetCapabilitiesResponse{}
	for _, a := range able {
		answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: a}},
		})
	}
	return answer, nil
}

func (d *disks) NodeExpandVolume(context.Context, *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	d.note("expand")
	return &csipb.NodeExpandVolumeResponse{}, nil
}

func (d *disks) note(call string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
}

func (d *disks) called() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.calls, " ")
}

// show mounts a directory once.
func show(from, to string) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	if mounted, err := mountinfo.Mounted(to); err != nil || mounted {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

func hide(path string) error {
	if err := unix.Unmount(path, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func (d *disks) NodeStageVolume(_ context.Context, q *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	d.note("stage:" + q.GetPublishContext()["device"])
	return &csipb.NodeStageVolumeResponse{}, show(d.dir, q.GetStagingTargetPath())
}

func (d *disks) NodePublishVolume(_ context.Context, q *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	d.note("publish")
	if q.GetVolumeCapability().GetBlock() != nil {
		return &csipb.NodePublishVolumeResponse{}, unix.Mknod(q.GetTargetPath(), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200)))
	}
	return &csipb.NodePublishVolumeResponse{}, show(q.GetStagingTargetPath(), q.GetTargetPath())
}

func (d *disks) NodeUnpublishVolume(_ context.Context, q *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	d.note("unpublish")
	if info, err := os.Lstat(q.GetTargetPath()); err == nil && info.Mode()&os.ModeDevice != 0 {
		return &csipb.NodeUnpublishVolumeResponse{}, os.Remove(q.GetTargetPath())
	}
	return &csipb.NodeUnpublishVolumeResponse{}, hide(q.GetTargetPath())
}

func (d *disks) NodeUnstageVolume(_ context.Context, q *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	d.note("unstage")
	return &csipb.NodeUnstageVolumeResponse{}, hide(q.GetStagingTargetPath())
}

// serve serves the driver, and the socket of its registrar, below the directory of the node.
func (d *disks) serve(t testing.TB, dir string) {
	t.Helper()
	d.endpoint = filepath.Join(dir, "plugins", d.name, "csi.sock")
	for _, socket := range []string{d.endpoint, filepath.Join(dir, "plugins_registry", d.name+"-reg.sock")} {
		if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		csipb.RegisterIdentityServer(server, d)
		csipb.RegisterNodeServer(server, d)
		registerapi.RegisterRegistrationServer(server, d)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
	}
}

// attach does the work of the driver's attacher: volumes that the controller wants to be attached
// are.
func (w *world) attach(driver string) {
	w.Helper()
	all, err := w.objects.named("", "volumeattachments")
	if err != nil {
		w.Fatal(err)
	}
	w.await(func() error {
		list, err := all.List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			is := &list.Items[i]
			if of, _, _ := unstructured.NestedString(is.Object, "spec", "attacher"); of != driver {
				continue
			}
			status := map[string]any{"attached": true, "attachmentMetadata": map[string]any{"device": "vdb"}}
			is.Object["status"] = status
			_, err := all.UpdateStatus(context.Background(), is, metav1.UpdateOptions{})
			return err
		}
		return fmt.Errorf("no attachment of %s in %d", driver, len(list.Items))
	})
}

// TestDisks_VolumeOfACSIDriver_IsAttachedMountedAndDetached: a pod with a claim of a CSI driver on a
// real node. The controller attaches the volume, the driver stages and publishes it once, also over
// a kill of the agent, and the controller detaches it after the pod is gone and the volume unstaged.
//
// Shows: F1
func TestDisks_VolumeOfACSIDriver_IsAttachedMountedAndDetached(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "kd") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := shared(t).in(t, "disks").secondNode(t, "disks", "--kubelet-dir", dir)
	d := &disks{name: "disk.test", dir: t.TempDir()}
	d.serve(t, dir)
	w.awaitOutput("disk.test id-of-node topology.disk.test/rack 3", "get", "csinode", w.name,
		"-o", "jsonpath={.spec.drivers[0].name} {.spec.drivers[0].nodeID} {.spec.drivers[0].topologyKeys[0]} {.spec.drivers[0].allocatable.count}")
	w.awaitOutput(`7 {"disk.test":"id-of-node"}`, "get", "node", w.name, "-o", `jsonpath={.metadata.labels.topology\.disk\.test/rack} {.metadata.annotations.csi\.volume\.kubernetes\.io/nodeid}`)
	w.awaitOutput("kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume",
		"get", "csinode", w.name, "-o", `jsonpath={.metadata.annotations.storage\.alpha\.kubernetes\.io/migrated-plugins}`)
	w.apply(`apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: disk.test}
spec: {attachRequired: true}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-1}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, storageClassName: "", csi: {driver: disk.test, volumeHandle: one, fsType: ext4}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: disk-1, resources: {requests: {storage: 1Gi}}}
---
` + strings.NewReplacer("spec:\n", "spec:\n  nodeName: "+w.name+"\n  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n", "    command:", "    volumeMounts: [{name: data, mountPath: /data}]\n    command:").
		Replace(shell("writer", "echo kept >/data/file; exec sleep 100000")))
	w.attach("disk.test")
	w.awaitReady("writer")
	if text, err := os.ReadFile(filepath.Join(d.dir, "file")); strings.TrimSpace(string(text)) != "kept" {
		w.Errorf("the driver's directory has %q, %v", text, err)
	}
	w.agent.Restart(w)
	w.awaitNode("Ready", "True")
	w.awaitReady("writer")
	w.awaitOutput("kubernetes.io/csi/disk.test^one", "get", "node", w.name, "-o", "jsonpath={.status.volumesInUse[0]}")
	if got := d.called(); got != "stage:vdb publish" {
		w.Errorf("after a kill of the agent the driver had the calls %s", got)
	}
	w.kubectl("delete", "pod", "writer", "--wait=false")
	w.awaitOutput("", "get", "pods", "-o", "name")
	wait.NoError(w, func() error {
		if got := d.called(); got != "stage:vdb publish unpublish unstage" {
			return fmt.Errorf("the driver had the calls %s", got)
		}
		return nil
	}, wait.WithoutStall)
	w.awaitOutput("", "get", "node", w.name, "-o", "jsonpath={.status.volumesInUse[*]}")
	w.awaitOutput("", "get", "volumeattachments", "-o", "name")
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil || len(mounts) > 0 {
		w.Errorf("mounts are left: %v, %v", mounts, err)
	}
	if slices.ContainsFunc(w.audited(), func(r request) bool { return r.User.Username == w.user() && r.ResponseStatus.Code == 403 }) {
		w.Error("a request of the node was forbidden")
	}
}
