package csi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// blockRequest asks for a block volume of a claim.
func blockRequest(uid, name, handle string) pod.CSIRequest {
	q := request(uid, name, handle)
	q.Persistent.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	return q
}

// makeDevice is a driver that publishes block devices: it shows a device on a file, as drivers do.
func (f *fake) makeDevice(t *testing.T) {
	t.Helper()
	device := filepath.Join(t.TempDir(), "disk")
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200))); err != nil {
		t.Fatal(err)
	}
	f.plant = func(call, target string) error {
		if call == "NodeStageVolume" {
			return nil
		}
		if isDevice(target) {
			return nil
		}
		file, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(file.Close(), unix.Mount(device, target, "", unix.MS_BIND, ""))
	}
}

// A block volume is staged once and published for each pod, at the kubelet's paths and without a
// file system. The device of a running pod is not published again by the next agent. Nothing is left.
//
// Shows: F1
func TestPublish_BlockVolume_IsADeviceForEachPod(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	m.object(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount, s.TokenRequests = ptr.To(true), []storagev1.TokenRequest{{Audience: "a"}}
	})
	f := newFake(t)
	f.makeDevice(t)
	first := m.agent()
	stop := m.plug(first, f)
	q := blockRequest("u1", "pv-1", "vol-1")
	q.Want.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(7))}
	got := publish(t, first, q)
	if want := filepath.Join(m.dir, "plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/u1"); got.Path != want || got.SetGroup || !first.Mounted(want) {
		t.Errorf("published %+v, want %s", got, want)
	}
	publish(t, first, blockRequest("u2", "pv-1", "vol-1"))
	if calls := f.called(); !slices.Equal(calls, []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume"}) {
		t.Errorf("calls %v", calls)
	}
	s, p := f.stages[0], f.publishes[0]
	if want := filepath.Join(m.dir, "plugins/kubernetes.io/csi/volumeDevices/staging/pv-1"); s.GetStagingTargetPath() != want || p.GetStagingTargetPath() != want {
		t.Errorf("staged at %s and %s, want %s", s.GetStagingTargetPath(), p.GetStagingTargetPath(), want)
	}
	if s.GetVolumeCapability().GetBlock() == nil || p.GetVolumeCapability().GetBlock() == nil || p.GetPublishContext()["device"] != "/dev/vdb" ||
		p.GetVolumeContext()["csi.storage.k8s.io/pod.uid"] != "u1" || p.GetVolumeContext()["csi.storage.k8s.io/serviceAccount.tokens"] != "" {
		t.Errorf("staged by %+v, published by %+v", s, p)
	}
	stop()
	next := m.agent()
	if in := next.InUse(); !slices.Equal(in, []v1.UniqueVolumeName{"kubernetes.io/csi/disk.test^vol-1"}) || !next.Uses("u1") {
		t.Errorf("in use: %v", in)
	}
	m.plug(next, f)
	publish(t, next, q)
	if calls := f.called(); len(calls) > 0 {
		t.Errorf("the next agent calls %v", calls)
	}
	if err := errors.Join(next.Unpublish(t.Context(), "u1"), next.Unpublish(t.Context(), "u2")); err != nil {
		t.Fatal(err)
	}
	if calls := f.called(); !slices.Equal(calls, []string{"NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}) {
		t.Errorf("calls %v", calls)
	}
	if left := m.left(); len(left) > 0 || len(next.InUse()) > 0 {
		t.Errorf("left %v, in use %v", left, next.InUse())
	}
	for _, path := range []string{"pods/u1", "plugins/kubernetes.io/csi/volumeDevices/pv-1", "plugins/kubernetes.io/csi/volumeDevices/staging/pv-1", "plugins/kubernetes.io/csi/volumeDevices/publish/pv-1"} {
		if _, err := os.Lstat(filepath.Join(m.dir, path)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// An agent is killed at each point of starting and stopping a pod with a block volume: the next one
// continues, and leaves nothing.
//
// Shows: F1
func TestPublish_BlockVolumeKilledAtEachPoint_NextAgentGoesOn(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, at := range []string{"stage begun", "staged", "stage done", "publish begun", "published", "publish done", "unpublished", "unstaged"} {
		m := newMachine(t)
		f := newFake(t)
		f.makeDevice(t)
		first := m.agent()
		stop := m.plug(first, f)
		killed := errors.New("killed")
		first.cut = func(point string) error {
			if point == at {
				return killed
			}
			return nil
		}
		q := blockRequest("u1", "pv-1", "vol-1")
		_, _ = first.Publish(t.Context(), q)
		_ = first.Unpublish(t.Context(), "u1")
		stop()
		next := m.agent()
		m.plug(next, f)
		f.called()
		if got := publish(t, next, q); !next.Mounted(got.Path) {
			t.Errorf("%s: no device", at)
		}
		if calls := f.called(); at == "unstaged" && !slices.Contains(calls, "NodeStageVolume") {
			t.Errorf("%s: published without staging: %v", at, calls)
		}
		if err := next.Unpublish(t.Context(), "u1"); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		if left := m.left(); len(left) > 0 || len(next.InUse()) > 0 {
			t.Errorf("%s: left %v, in use %v", at, left, next.InUse())
		}
	}
}

// A driver that puts no block device at the target, or a link to one, gives a container none. A block
// volume does not take the place of the directories of all block volumes.
func TestPublish_BlockVolumeWithoutADevice_IsRefused(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for name, plant := range map[string]func(target string) error{
		"nothing":        func(string) error { return nil },
		"a file":         func(target string) error { return os.WriteFile(target, []byte("x"), 0o600) },
		"a link":         func(target string) error { return os.Symlink("/dev/null", target) },
		"another device": func(target string) error { return unix.Mknod(target, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) },
	} {
		m := newMachine(t)
		f, v := newFake(t), m.agent()
		f.plant = func(call, target string) error {
			if call == "NodePublishVolume" {
				return plant(target)
			}
			return nil
		}
		m.plug(v, f)
		q := blockRequest("u1", "pv-1", "vol-1")
		if _, err := v.Publish(t.Context(), q); err == nil || !strings.Contains(err.Error(), "CSI driver disk.test has put no block device at") {
			t.Errorf("%s: %v", name, err)
		}
		if v.Mounted(v.userTarget(user{"u1", "pv-1", true})) {
			t.Errorf("%s: counts as a device", name)
		}
		if err := v.Unpublish(t.Context(), "u1"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left := m.left(); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	m := newMachine(t)
	v := m.agent()
	for _, name := range []string{"staging", "publish", "..", "a/b", ""} {
		if _, err := v.Publish(t.Context(), blockRequest("u1", name, "vol-1")); err == nil {
			t.Errorf("a block volume is named %q", name)
		}
	}
	if left := m.left(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// A driver that says that it has removed a device, and has not, does not lose it.
func TestUnpublish_DriverKeepsTheDevice_IsAnError(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	f.plant = func(call, target string) error {
		if call == "NodePublishVolume" {
			return unix.Mknod(target, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200)))
		}
		return nil
	}
	f.able = []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	m.plug(v, f)
	got := publish(t, v, blockRequest("u1", "pv-1", "vol-1"))
	f.lies = true
	if err := v.Unpublish(t.Context(), "u1"); err == nil || !strings.Contains(err.Error(), "has not unmounted") || !v.Mounted(got.Path) || len(v.InUse()) != 1 {
		t.Errorf("%v, in use %v", err, v.InUse())
	}
	if err := errors.Join(os.Remove(got.Path), v.Unpublish(t.Context(), "u1")); err != nil || len(m.left()) > 0 {
		t.Errorf("%v, left %v", err, m.left())
	}
}
