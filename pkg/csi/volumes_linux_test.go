package csi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// publish mounts a volume, or fails the test.
func publish(t *testing.T, v *Volumes, q pod.CSIRequest) pod.CSIMount {
	t.Helper()
	m, err := v.Publish(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Two pods share a volume: it is staged once and unstaged with the last of them. The files are the
// kubelet's, and the driver gets the kubelet's parameters.
func TestPublish_TwoPodsOfOneVolume_IsStagedOnceAndUnstagedOnce(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	m.secrets["vault/stage"] = map[string]string{"key": "s1"}
	m.secrets["vault/publish"] = map[string]string{"key": "s2"}
	q := request("u1", "pv-1", "vol/../1")
	q.Persistent.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "vault", Name: "stage"}
	q.Persistent.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "vault", Name: "publish"}
	q.Persistent.Spec.MountOptions = []string{"noatime"}
	one := publish(t, v, q)
	if want := filepath.Join(m.dir, "pods/u1/volumes/kubernetes.io~csi/pv-1/mount"); one.Path != want || !v.Mounted(want) || one.SetGroup || !one.Renew.IsZero() {
		t.Errorf("%+v, want %s", one, want)
	}
	q.Want = podOf("u2")
	two := publish(t, v, q)
	if err := os.WriteFile(filepath.Join(one.Path, "a"), []byte("b"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(two.Path, "a")); string(text) != "b" {
		t.Errorf("the second pod reads %q, %v", text, err)
	}
	if got := f.called(); !slices.Equal(got, []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume"}) {
		t.Errorf("calls %v", got)
	}
	s, p := f.stages[0], f.publishes[0]
	if want := filepath.Join(m.dir, "plugins/kubernetes.io/csi/disk.test/41665a6950d293f755cf42e75a40cd3c90e68ed2568f0a062d6cff3ceed17e0d/globalmount"); s.GetStagingTargetPath() != want {
		t.Errorf("staged at %s, want %s", s.GetStagingTargetPath(), want)
	}
	c := s.GetVolumeCapability()
	if s.GetVolumeId() != "vol/../1" || s.GetSecrets()["key"] != "s1" || s.GetPublishContext()["device"] != "/dev/vdb" || s.GetVolumeContext()["size"] != "1" ||
		c.GetMount().GetFsType() != "ext4" || !slices.Equal(c.GetMount().GetMountFlags(), []string{"noatime"}) || c.GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("staged by %+v", s)
	}
	if p.GetSecrets()["key"] != "s2" || p.GetTargetPath() != one.Path || p.GetStagingTargetPath() != s.GetStagingTargetPath() || p.GetReadonly() || p.GetVolumeContext()["csi.storage.k8s.io/pod.name"] != "" {
		t.Errorf("published by %+v", p)
	}
	var file map[string]string
	text, err := os.ReadFile(filepath.Join(filepath.Dir(one.Path), "vol_data.json"))
	if err != nil || json.Unmarshal(text, &file) != nil {
		t.Fatal(err, string(text))
	}
	maps.DeleteFunc(file, func(key, _ string) bool { return strings.HasPrefix(key, "nodectl.dev/") })
	if want := map[string]string{
		"specVolID": "pv-1", "volumeHandle": "vol/../1", "driverName": "disk.test", "nodeName": "n1", "volumeLifecycleMode": "Persistent",
		"attachmentID": volumeID{driver: driverName, handle: "vol/../1"}.attachment("n1"),
	}; !maps.Equal(file, want) || strings.Contains(string(text), "s2") {
		t.Errorf("vol_data.json has %v", file)
	}
	if got := v.InUse(); !slices.Equal(got, []v1.UniqueVolumeName{"kubernetes.io/csi/disk.test^vol/../1"}) {
		t.Errorf("in use: %v", got)
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if got := f.called(); !slices.Equal(got, []string{"NodeUnpublishVolume"}) || len(v.InUse()) != 1 {
		t.Errorf("after the first pod: %v, in use %v", got, v.InUse())
	}
	if err := errors.Join(v.Unpublish(t.Context(), "u2"), v.Unpublish(t.Context(), "u2")); err != nil {
		t.Fatal(err)
	}
	if got := f.called(); !slices.Equal(got, []string{"NodeUnpublishVolume", "NodeUnstageVolume"}) || len(v.InUse()) != 0 {
		t.Errorf("after the last pod: %v, in use %v", got, v.InUse())
	}
	if left := m.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Lstat(filepath.Join(m.dir, "pods/u1")); !os.IsNotExist(err) {
		t.Error("the directory of the pod is left")
	}
}

// An agent is killed at each point of starting a pod and of stopping it. The next one stages nothing
// that was staged, mounts once, and leaves nothing.
//
// Shows: F1
func TestPublish_KilledAtEachPoint_NextAgentGoesOn(t *testing.T) {
	t.Parallel()
	needRoot(t)
	up := []string{"stage begun", "staged", "stage done", "publish begun", "published", "publish done"}
	down := []string{"unpublished", "unstaged"}
	for _, at := range slices.Concat(up, down) {
		m := newMachine(t)
		f := newFake(t)
		first := m.agent()
		stop := m.plug(first, f)
		killed := errors.New("killed")
		cut := func(v *Volumes) {
			v.cut = func(point string) error {
				if point == at {
					return killed
				}
				return nil
			}
		}
		cut(first)
		q := request("u1", "pv-1", "vol-1")
		_, err := first.Publish(t.Context(), q)
		if wanted := slices.Contains(up, at); errors.Is(err, killed) != wanted {
			t.Fatalf("%s: %v", at, err)
		}
		if at == "unpublished" || at == "unstaged" {
			_ = first.Unpublish(t.Context(), "u1")
		}
		stop()
		second := m.agent()
		if at != "unstaged" && len(second.InUse()) != 1 {
			t.Errorf("%s: the next agent reports %v in use", at, second.InUse())
		}
		m.plug(second, f)
		if slices.Contains(up, at) {
			publish(t, second, q)
			calls := f.called()
			count := func(name string) (n int) {
				for _, c := range calls {
					if c == name {
						n++
					}
				}
				return n
			}
			if n := count("NodeStageVolume"); n != map[bool]int{true: 2, false: 1}[at == "staged"] { // its answer was lost
				t.Errorf("%s: staged by %d calls", at, n)
			}
			if n := count("NodePublishVolume"); n > map[bool]int{true: 2, false: 1}[at == "published"] {
				t.Errorf("%s: published by %d calls", at, n)
			}
			if mounts := mountsIn(t, m.dir); len(mounts) != 2 {
				t.Errorf("%s: mounts %v", at, mounts)
			}
		}
		if at == "unstaged" { // the file does not say that it is staged, although it could not be removed
			f.called()
			publish(t, second, q)
			if calls := f.called(); !slices.Contains(calls, "NodeStageVolume") {
				t.Errorf("published without staging: %v", calls)
			}
		}
		if err := second.Unpublish(t.Context(), "u1"); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		second.swept = true
		second.unstageUnused(t.Context())
		if left := m.left(); len(left) > 0 || len(second.InUse()) > 0 {
			t.Errorf("%s: left %v, in use %v", at, left, second.InUse())
		}
	}
}

// After a restart a pod that runs needs neither its driver nor an API server that attaches. After a
// reboot the volume is staged and published again.
//
// Shows: F1
func TestPublish_AfterRestartAndReboot_IsReadFromTheDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, q := newFake(t), request("u1", "pv-1", "vol-1")
	first := m.agent()
	stop := m.plug(first, f)
	publish(t, first, q)
	stop()
	f.called()
	second := m.agent()
	second.patience, m.detached = 0, true
	publish(t, second, q)
	if got := f.called(); len(got) > 0 {
		t.Errorf("after a restart the driver got %v", got)
	}
	for _, path := range mountsIn(t, m.dir) { // as a reboot does
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	third := m.agent()
	third.boot, m.detached = "another boot", false
	m.plug(third, f)
	publish(t, third, q)
	if got := f.called(); !slices.Equal(got, []string{"NodeStageVolume", "NodePublishVolume"}) {
		t.Errorf("after a reboot the driver got %v", got)
	}
}

// A pod waits until the controller has attached its volume, and its status names the reason. A volume
// whose CSIDriver needs no attachment does not wait.
func TestPublish_VolumeIsNotAttached_Waits(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v, q := newFake(t), m.agent(), request("u1", "pv-1", "vol-1")
	v.patience = 0
	_, err := v.Publish(t.Context(), q)
	if want := `MountVolume.MountDevice failed for volume "pv-1" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name disk.test not found in the list of registered CSI drivers`; err == nil || err.Error() != want {
		t.Errorf("without a driver: %v", err)
	}
	m.plug(v, f)
	m.detached = true
	if _, err = v.Publish(t.Context(), q); err == nil || !strings.Contains(err.Error(), "Unable to attach or mount volumes: unmounted volumes=[data]") || !strings.Contains(err.Error(), "Volume not attached according to node status") {
		t.Errorf("not attached: %v", err)
	}
	m.detached, m.attach = false, errors.New("no such disk")
	if _, err = v.Publish(t.Context(), q); err == nil || err.Error() != `MountVolume.WaitForAttach failed for volume "pv-1" : no such disk` {
		t.Errorf("the attacher fails: %v", err)
	}
	if got := f.called(); len(got) > 0 || len(v.InUse()) != 1 {
		t.Errorf("the driver got %v; in use %v", got, v.InUse())
	}
	m.attach = nil
	publish(t, v, q)
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	m.detached = true
	m.object(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = ptr.To(false) })
	publish(t, v, q)
	if len(v.InUse()) != 0 {
		t.Errorf("in use, although nothing attaches it: %v", v.InUse())
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
}

// The CSIDriver object decides which attributes, tokens and groups a driver gets.
func TestPublish_CSIDriverObject_IsFollowed(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	m.plug(v, f)
	q := request("u1", "pv-1", "vol-1")
	q.Want.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(77))}
	m.object(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount, s.RequiresRepublish = ptr.To(true), ptr.To(true)
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	})
	first := publish(t, v, q)
	second := publish(t, v, q)
	if got := f.called(); !slices.Equal(got, []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume"}) || first.Renew.IsZero() || !second.SetGroup {
		t.Errorf("%v, %+v, %+v", got, first, second)
	}
	with := f.publishes[0].GetVolumeContext()
	if with["csi.storage.k8s.io/pod.name"] != "pod-u1" || with["csi.storage.k8s.io/ephemeral"] != "false" || with["csi.storage.k8s.io/serviceAccount.name"] != "clerk" ||
		!strings.Contains(with["csi.storage.k8s.io/serviceAccount.tokens"], `"vault":{"token":"token of clerk for vault"`) || f.publishes[0].GetVolumeCapability().GetMount().GetVolumeMountGroup() != "" {
		t.Errorf("%v", with)
	}
	if _, tokens := f.stages[0].GetVolumeContext()["csi.storage.k8s.io/serviceAccount.tokens"]; tokens || len(q.Persistent.Spec.CSI.VolumeAttributes) != 1 {
		t.Error("the stage call, or the PersistentVolume, has a token")
	}
	f.able = append(f.able, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	m.object(func(s *storagev1.CSIDriverSpec) {
		s.TokenRequests, s.ServiceAccountTokenInSecrets = []storagev1.TokenRequest{{}}, ptr.To(true)
	})
	q = request("u2", "pv-2", "vol-2")
	q.Want.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(77))}
	q.Persistent.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	third := publish(t, v, q)
	p := f.publishes[len(f.publishes)-1]
	if p.GetVolumeCapability().GetMount().GetVolumeMountGroup() != "77" || third.SetGroup || p.GetSecrets()["csi.storage.k8s.io/serviceAccount.tokens"] == "" ||
		p.GetVolumeCapability().GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		t.Errorf("%+v, %+v", p, third)
	}
	q.Want = podOf("u3")
	if _, err := v.Publish(t.Context(), q); err == nil || !strings.Contains(err.Error(), "volume uses the ReadWriteOncePod access mode and is already in use by another pod") {
		t.Errorf("a second pod of a ReadWriteOncePod volume: %v", err)
	}
	for _, uid := range []string{"u1", "u2", "u3"} {
		if err := v.Unpublish(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
	if left := m.left(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// The group of files changes by the policy of the CSIDriver object, as in the kubelet.
func TestGroupByNode_PolicyOfTheDriver_IsTheKubelets(t *testing.T) {
	t.Parallel()
	group := &v1.PodSecurityContext{FSGroup: ptr.To(int64(77))}
	for _, c := range []struct {
		policy   storagev1.FSGroupPolicy
		fsType   string
		mode     v1.PersistentVolumeAccessMode
		readOnly bool
		sc       *v1.PodSecurityContext
		want     bool
	}{
		{"", "ext4", v1.ReadWriteOnce, false, group, true},
		{"", "ext4", v1.ReadWriteOncePod, false, group, true},
		{"", "ext4", v1.ReadWriteMany, false, group, false},
		{"", "", v1.ReadWriteOnce, false, group, false},
		{"", "ext4", v1.ReadWriteOnce, true, group, false},
		{"", "ext4", v1.ReadWriteOnce, false, nil, false},
		{storagev1.FileFSGroupPolicy, "", v1.ReadWriteMany, false, group, true},
		{storagev1.NoneFSGroupPolicy, "ext4", v1.ReadWriteOnce, false, group, false},
	} {
		q := request("u", "pv", "h")
		q.Want.Pod.Spec.SecurityContext, q.ReadOnly = c.sc, c.readOnly
		q.Persistent.Spec.CSI.FSType, q.Persistent.Spec.AccessModes = c.fsType, []v1.PersistentVolumeAccessMode{c.mode}
		_, _, s, err := sourceOf(q)
		o := &operation{request: q, source: s}
		if c.policy != "" {
			o.object = &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{FSGroupPolicy: &c.policy}}
		}
		if got := o.groupByNode(); got != c.want || err != nil {
			t.Errorf("%+v: %t, %v", c, got, err)
		}
	}
}

// An inline volume needs a CSIDriver object that allows it. It is neither attached nor staged.
func TestPublish_InlineVolume_IsOnlyPublished(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	m.plug(v, f)
	m.secrets["shop/s"] = map[string]string{"key": "s3"}
	q := pod.CSIRequest{Want: podOf("u1"), Volume: "scratch", ReadOnly: true, Inline: &v1.CSIVolumeSource{
		Driver: driverName, VolumeAttributes: map[string]string{"a": "b"}, NodePublishSecretRef: &v1.LocalObjectReference{Name: "s"},
	}}
	if _, err := v.Publish(t.Context(), q); err == nil || !strings.Contains(err.Error(), `volume mode "Ephemeral" not supported by driver disk.test (no CSIDriver object)`) {
		t.Errorf("without an object: %v", err)
	}
	m.object(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.PodInfoOnMount = ptr.To(true)
	})
	got := publish(t, v, q)
	p := f.publishes[0]
	if calls := f.called(); !slices.Equal(calls, []string{"NodePublishVolume"}) || p.GetVolumeId() != inlineHandle("u1", "scratch") || p.GetStagingTargetPath() != "" || p.GetSecrets()["key"] != "s3" ||
		p.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" || !p.GetReadonly() || got.Path != filepath.Join(m.dir, "pods/u1/volumes/kubernetes.io~csi/scratch/mount") || len(v.InUse()) > 0 {
		t.Errorf("%v, %+v, %s, in use %v", calls, p, got.Path, v.InUse())
	}
	again := m.agent()
	m.plug(again, f)
	if err := again.Unpublish(t.Context(), "u1"); err != nil || len(m.left()) > 0 {
		t.Errorf("%v, left %v", err, m.left())
	}
}

// The volume of a cloud in a pod has a name with slashes; its directory has none. It is staged
// and published, and unpublished by the next agent.
//
// Shows: C-1.37
func TestPublish_VolumeOfACloud_DirectoryIsTheKubelets(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	m.plug(v, f)
	m.object(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = ptr.To(false) })
	q := request("u1", "/subscriptions/s/../disk", "h")
	q.Migrated = true
	got := publish(t, v, q)
	dir := filepath.Join(m.dir, "pods/u1/volumes/kubernetes.io~csi/~subscriptions~s~..~disk")
	d, err := readData(dir)
	if err != nil || got.Path != filepath.Join(dir, "mount") || d[keyVolume] != "/subscriptions/s/../disk" {
		t.Errorf("%s, %v, %v", got.Path, d, err)
	}
	again := m.agent()
	m.plug(again, f)
	if err := again.Unpublish(t.Context(), "u1"); err != nil || len(m.left()) > 0 {
		t.Errorf("%v, left %v", err, m.left())
	}
	if calls := f.called(); !slices.Equal(calls, []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}) {
		t.Errorf("calls %v", calls)
	}
}

// A failed call leaves no file behind. A pod whose driver is not registered keeps its files until
// the driver registers again.
func TestUnpublish_DriverIsAway_IsTriedAgain(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v, q := newFake(t), m.agent(), request("u1", "pv-1", "vol-1")
	m.plug(v, f)
	f.before = func(call string) error {
		if call == "NodeStageVolume" {
			return status.Error(codes.Internal, "mkfs failed"+strings.Repeat(".", 4*pluginconn.MaxText))
		}
		return nil
	}
	if _, err := v.Publish(t.Context(), q); err == nil || !strings.HasPrefix(err.Error(), `MountVolume.MountDevice failed for volume "pv-1" : rpc error: code = Internal desc = mkfs failed`) || len(err.Error()) > 2*pluginconn.MaxText {
		t.Errorf("%v", err)
	}
	if left := m.left(); len(left) > 0 {
		t.Errorf("left after a failed call: %v", left)
	}
	f.before = nil
	publish(t, v, q)
	v.Unregister(driverName, filepath.Join(m.dir, "plugins", driverName, "csi.sock"))
	if err := v.Unpublish(t.Context(), "u1"); err == nil || !strings.Contains(err.Error(), "driver name disk.test not found in the list of registered CSI drivers") || len(mountsIn(t, m.dir)) != 2 {
		t.Errorf("without the driver: %v, mounts %v", err, mountsIn(t, m.dir))
	}
	m.plug(v, f)
	f.before = func(call string) error {
		if call == "NodeUnstageVolume" {
			return status.Error(codes.Internal, "device is busy")
		}
		return nil
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil || len(v.InUse()) != 1 {
		t.Errorf("a volume that is not unstaged holds its pod up: %v; in use %v", err, v.InUse())
	}
	f.before = nil
	v.swept = true
	v.volumes[volumeID{driver: driverName, handle: "vol-1"}].retry = v.volumes[volumeID{driver: driverName, handle: "vol-1"}].retry.Add(-retryLast)
	v.unstageUnused(t.Context())
	if left := m.left(); len(left) > 0 || len(v.InUse()) > 0 {
		t.Errorf("left %v, in use %v", left, v.InUse())
	}
}

// Pods that no source has any more lose their volumes, at once or when their driver is back.
func TestSweep_UnknownPod_IsUnpublished(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	stop := m.plug(v, f)
	publish(t, v, request("known", "pv-1", "vol-1"))
	publish(t, v, request("lost", "pv-2", "vol-2"))
	stop()
	next := m.agent()
	keep := func(uid string) bool { return uid == "known" }
	if err := next.Sweep(t.Context(), keep); err == nil || len(next.left) != 1 {
		t.Fatalf("without the driver: %v, %v", err, next.left)
	}
	m.plug(next, f)
	for u, l := range next.left {
		l.retry = l.retry.Add(-retryLast)
		next.left[u] = l
	}
	next.retryLeft(t.Context())
	foreign := filepath.Join(m.dir, "pods/kubelets/volumes/kubernetes.io~csi/pv-3")
	if err := errors.Join(os.MkdirAll(foreign, 0o750), writeData(foreign, data{keyDriver: driverName, keyHandle: "vol-3"}), next.Sweep(t.Context(), keep)); err != nil {
		t.Error(err)
	}
	if d, err := readData(foreign); err != nil || d == nil {
		t.Errorf("the volume of a kubelet: %v, %v", d, err)
	}
	if mounts := mountsIn(t, m.dir); len(mounts) != 2 || len(next.left) > 0 || !next.Mounted(filepath.Join(m.dir, "pods/known/volumes/kubernetes.io~csi/pv-1/mount")) {
		t.Errorf("mounts %v, left %v", mounts, next.left)
	}
}

// A call that hangs delays only its own volume.
func TestPublish_DriverHangs_OtherVolumesAreMounted(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	hangs, release := make(chan struct{}), make(chan struct{})
	first := true
	f.before = func(call string) error {
		f.mu.Lock()
		mine := first && call == "NodeStageVolume"
		if mine {
			first = false
		}
		f.mu.Unlock()
		if mine {
			close(hangs)
			<-release
		}
		return nil
	}
	m.plug(v, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := v.Publish(ctx, request("u1", "pv-1", "vol-1"))
		done <- err
	}()
	<-hangs
	publish(t, v, request("u2", "pv-2", "vol-2"))
	cancel()
	if err := <-done; err == nil {
		t.Error("the volume of a call that hangs is mounted")
	}
	close(release)
	wait.True(t, "the call ends", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.stages) == 2 })
	for _, uid := range []string{"u1", "u2"} {
		if err := v.Unpublish(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
}

// The condition of a volume is reported if the node is configured so, and if the driver reports conditions. Its
// text is bounded.
func TestUsage_VolumeIsAbnormal_IsReportedOnRequest(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	f.able = append(f.able, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	m.plug(v, f)
	publish(t, v, request("u1", "pv-1", "vol-1"))
	f.usage, f.health = []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 9}}, &csipb.VolumeCondition{Abnormal: true, Message: "disk is gone"}
	is := func(what string, want pod.VolumeHealth) {
		t.Helper()
		if got, known, err := v.Usage(t.Context(), "u1", "data"); got.Health != want || !known || err != nil {
			t.Errorf("%s: %+v, known %t, %v, want %+v", what, got, known, err, want)
		}
	}
	v.cfg.Health = true
	is("a driver that does not report conditions", pod.VolumeHealth{})
	f.able = append(f.able, csipb.NodeServiceCapability_RPC_VOLUME_CONDITION)
	is("an abnormal volume", pod.VolumeHealth{Known: true, Abnormal: true, Message: "disk is gone"})
	v.cfg.Health = false
	is("a node that does not report conditions", pod.VolumeHealth{})
	v.cfg.Health = true
	f.usage, f.health = nil, nil
	is("a volume without a condition or usage", pod.VolumeHealth{Known: true})
	f.health = &csipb.VolumeCondition{Message: strings.Repeat("é", pluginconn.MaxText)}
	is("a long text", pod.VolumeHealth{Known: true, Message: strings.Repeat("é", pluginconn.MaxText/2) + "…"})
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
}

// The usage of a volume comes from the driver. There is none without a driver, without its ability,
// or with a senseless answer.
func TestUsage_OfAVolume_IsTheDrivers(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	stop := m.plug(v, f)
	publish(t, v, request("u1", "pv-1", "vol-1"))
	if _, known, err := v.Usage(t.Context(), "u1", "data"); !known || !errors.Is(err, errNoUsage) {
		t.Errorf("known %t, %v", known, err)
	}
	f.able = append(f.able, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	for _, c := range []struct {
		says []*csipb.VolumeUsage
		want pod.VolumeUsage
		err  string
	}{
		{nil, pod.VolumeUsage{}, "reports no usage"},
		{[]*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 9, Available: -1}}, pod.VolumeUsage{}, "reports a negative usage"},
		{
			[]*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 9, Available: 5, Used: 4}, {Unit: csipb.VolumeUsage_INODES, Total: 3, Available: 2, Used: 1}, {Total: 7}},
			pod.VolumeUsage{Capacity: 9, Available: 5, Used: 4, Inodes: 3, InodesFree: 2, InodesUsed: 1}, "",
		},
	} {
		f.usage = c.says
		got, known, err := v.Usage(t.Context(), "u1", "data")
		if got != c.want || !known || (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v, known %t, %v, want %+v %s", got, known, err, c.want, c.err)
		}
	}
	for _, other := range [][2]string{{"u1", "other"}, {"u2", "data"}, {"..", "data"}, {"", "data"}} {
		if _, known, err := v.Usage(t.Context(), other[0], other[1]); known || err != nil {
			t.Errorf("%v: known %t, %v", other, known, err)
		}
	}
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
	stop()
	if _, known, err := v.Usage(t.Context(), "u1", "data"); known || err != nil {
		t.Errorf("after the pod: known %t, %v", known, err)
	}
}

// A volume that a controller has enlarged is expanded when it is mounted, and the claim gets its
// size. It is not expanded by a driver without the ability, or if the claim already shows the size.
func TestPublish_VolumeIsLargerThanItsClaim_IsExpanded(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f, v := newFake(t), m.agent()
	m.plug(v, f)
	q := request("u1", "pv-1", "vol-1")
	q.Persistent.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	q.Persistent.Spec.CSI.NodeExpandSecretRef = &v1.SecretReference{Namespace: "vault", Name: "grow"}
	m.secrets["vault/grow"] = map[string]string{"key": "s4"}
	q.Claim = &v1.PersistentVolumeClaim{}
	q.Claim.Name = "data"
	q.Claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	publish(t, v, q)
	f.able = append(f.able, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	if len(f.expands) > 0 {
		t.Error("a driver that does not expand volumes was called")
	}
	f.before = func(call string) error {
		if call == "NodeExpandVolume" {
			return status.Error(codes.Internal, "no room")
		}
		return nil
	}
	const failed = "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = no room"
	if got := publish(t, v, q).Growth; got.Failed == nil || got.Failed.Error() != `NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : `+failed || !got.Possible || got.Done != "" {
		t.Errorf("of a mounted volume: %+v", got)
	}
	other := q
	other.Want = podOf("u2")
	if _, err := v.Publish(t.Context(), other); err == nil || err.Error() != `MountVolume.Setup failed while expanding volume for volume "pv-1" : `+failed {
		t.Errorf("%v", err)
	}
	f.before = nil
	mount := publish(t, v, q)
	if got := mount.Growth; got.Failed != nil || got.Done != `MountVolume.NodeExpandVolume succeeded for volume "pv-1" n1` {
		t.Errorf("%+v", got)
	}
	if len(f.expands) != 1 || f.expands[0].GetCapacityRange().GetRequiredBytes() != 2<<30 || f.expands[0].GetVolumePath() != mount.Path || f.expands[0].GetSecrets()["key"] != "s4" ||
		!slices.Contains(m.gets, "size data 2Gi") {
		t.Errorf("%v, the server got %v", f.expands, m.gets)
	}
	q.Claim.Status.Capacity[v1.ResourceStorage] = resource.MustParse("2Gi")
	if publish(t, v, q); len(f.expands) != 1 {
		t.Error("expanded again")
	}
	if err := errors.Join(v.Unpublish(t.Context(), "u1"), v.Unpublish(t.Context(), "u2")); err != nil {
		t.Error(err)
	}
}
