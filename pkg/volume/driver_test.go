package volume_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/volume"
)

// drivers are CSI drivers below a directory of the kubelet. Each volume is a mount.
type drivers struct {
	dir   string
	fails error
	renew time.Duration
	grows pod.CSIGrowth
	calls []string
	swept map[string]bool // the answers of keep for the directories of pods
}

func (d *drivers) path(q pod.CSIRequest) string {
	name := q.Volume
	if q.Persistent != nil {
		name = q.Persistent.Name
	}
	return filepath.Join(d.dir, "pods", q.Want.UID(), "volumes", "kubernetes.io~csi", name, "mount")
}

func (d *drivers) Publish(_ context.Context, q pod.CSIRequest) (pod.CSIMount, error) {
	d.calls = append(d.calls, "publish "+q.Volume)
	if d.fails != nil {
		return pod.CSIMount{}, d.fails
	}
	m := pod.CSIMount{Path: d.path(q), SetGroup: true, Growth: d.grows}
	if d.renew != 0 {
		m.Renew = time.Now().Add(d.renew)
	}
	if d.Mounted(m.Path) {
		return m, nil
	}
	disk := filepath.Join(d.dir, "disk")
	return m, errors.Join(os.MkdirAll(disk, 0o755), os.MkdirAll(m.Path, 0o750), unix.Mount(disk, m.Path, "", unix.MS_BIND, ""))
}

func (d *drivers) Mounted(path string) bool {
	all, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	return err == nil && len(all) > 0
}

func (d *drivers) Uses(uid string) bool {
	_, err := os.Lstat(filepath.Join(d.dir, "pods", uid, "volumes", "kubernetes.io~csi"))
	return err == nil
}

func (d *drivers) Unpublish(_ context.Context, uid string) error {
	d.calls = append(d.calls, "unpublish "+uid)
	if d.fails != nil {
		return d.fails
	}
	top := filepath.Join(d.dir, "pods", uid, "volumes")
	paths, err := filepath.Glob(filepath.Join(top, "kubernetes.io~csi", "*", "mount"))
	for _, path := range paths {
		err = errors.Join(err, unix.Unmount(path, 0))
	}
	return errors.Join(err, os.RemoveAll(top))
}

func (d *drivers) Sweep(_ context.Context, keep func(uid string) bool) error {
	d.calls = append(d.calls, "sweep")
	entries, err := os.ReadDir(filepath.Join(d.dir, "pods"))
	if err != nil {
		return err
	}
	d.swept = make(map[string]bool)
	for _, e := range entries {
		d.swept[e.Name()] = keep(e.Name())
	}
	if keep("kept") {
		return nil
	}
	return errors.New("it keeps nothing")
}

// withDrivers returns a place with drivers, whose directory is the agent's own: the hardest case.
func withDrivers(t *testing.T) (place, *drivers) {
	t.Helper()
	needRoot(t)
	p := newPlace(t)
	d := &drivers{dir: p.root}
	c := p.config()
	c.Drivers = d
	c.Claim = func(_ context.Context, want *pod.Spec, name string) (pod.BoundVolume, error) {
		pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
		pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "x.test", VolumeHandle: name}
		if name == "raw" {
			pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
		}
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if strings.HasPrefix(name, want.Name+"-own") {
			claim.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: want.Name, UID: want.Pod.UID, Controller: ptr.To(true)}}
		}
		return pod.BoundVolume{CSI: pv, Claim: claim}, nil
	}
	p.Volumes = volume.New(c)
	return p, d
}

// The volume of a cloud in a pod is published as a volume of its CSI driver. A volume that cannot be
// translated, or that is used as a device, is refused.
//
// Shows: C-1.37
func TestSetUp_VolumeOfACloud_IsPublishedByItsDriver(t *testing.T) {
	p, d := withDrivers(t)
	ebs := func(id string) *pod.Spec {
		s := withUID(spec(v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}}), uid)
		s.Origin.Source = "api"
		s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "disk", MountPath: "/disk"}}
		return s
	}
	if err := p.SetUp(ebs("aws://us-1a/disk"), 1); err == nil || !strings.HasPrefix(err.Error(), "volume disk: failed to translate in-tree pv to CSI: ") {
		t.Errorf("a volume without a valid ID: %v", err)
	}
	s := ebs("vol-1")
	s.Pod.Spec.Containers[0].VolumeMounts, s.Pod.Spec.Containers[0].VolumeDevices = nil, []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/x"}}
	if err := p.SetUp(s, 1); err == nil || !strings.Contains(err.Error(), "volume disk has volumeMode Filesystem, but is specified in volumeDevices") {
		t.Errorf("a volume that is used as a device: %v", err)
	}
	s = ebs("vol-1")
	p.setUp(t, s, 1)
	p.setUp(t, s, 1)
	if got := strings.Join(d.calls, ","); got != "publish disk" {
		t.Errorf("calls %s", got)
	}
	m, err := p.Mounts(t.Context(), s, 1, "c")
	if want := filepath.Join(p.root, "pods", uid, "volumes/kubernetes.io~csi/ebs.csi.aws.com-vol-1/mount"); err != nil || len(m) != 1 || m[0].HostPath != want {
		t.Errorf("mounts %v %v, want %s", m, err, want)
	}
	if err := errors.Join(p.TearDown(t.Context(), uid, 1), p.Forget(t.Context(), key, uid)); err != nil || len(mounts(t, p.root)) > 0 {
		t.Errorf("%v, mounts %v", err, mounts(t, p.root))
	}
}

// A claim of a CSI driver's volume is mounted where the driver published it, has the pod's group,
// and is unpublished with the pod. A volume that is mounted is not published again.
func TestSetUp_ClaimOfADriversVolume_IsPublished(t *testing.T) {
	p, d := withDrivers(t)
	s := withUID(spec(claimVolume("db", "data", false)), uid)
	s.Origin.Source = "api"
	s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(77))}
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "db", MountPath: "/db"}, {Name: "db", MountPath: "/part", SubPath: "part"}}
	d.fails = errors.New(`MountVolume.MountDevice failed for volume "pv-data" : no such disk`)
	if err := p.SetUp(s, 1); err == nil || err.Error() != "volume db: "+d.fails.Error() {
		t.Fatalf("%v", err)
	}
	if done, _, _ := p.Volumes.Ready(s, 1); done {
		t.Error("it is ready, and not mounted")
	}
	if p.HasDriverVolumes(uid) {
		t.Error("a volume is left, and none was mounted")
	}
	d.fails = nil
	p.setUp(t, s, 1)
	p.setUp(t, s, 1)
	if got := strings.Join(d.calls, ","); got != "publish db,publish db" {
		t.Errorf("calls %s", got)
	}
	m, err := p.Mounts(t.Context(), s, 1, "c")
	want := filepath.Join(p.root, "pods", uid, "volumes/kubernetes.io~csi/pv-data/mount")
	if err != nil || len(m) != 2 || m[0].HostPath != want {
		t.Fatalf("mounts %v %v, want %s", m, err, want)
	}
	var st unix.Stat_t
	if err := unix.Stat(want, &st); err != nil || st.Gid != 77 {
		t.Errorf("group %d, %v", st.Gid, err)
	}
	if done, current, until := p.Volumes.Ready(s, 1); !done || !current || !until.IsZero() {
		t.Errorf("ready %t, current %t, until %v", done, current, until)
	}
	d.fails = errors.New("the driver is away")
	if err := p.TearDown(t.Context(), uid, 1); err == nil || !strings.Contains(err.Error(), "the driver is away") || !d.Mounted(want) {
		t.Errorf("without the driver: %v", err)
	}
	if !p.HasDriverVolumes(uid) {
		t.Error("no volume is left, and one is mounted")
	}
	if err := p.Forget(t.Context(), key, uid); err == nil {
		t.Error("the pod is forgotten while its volume is mounted")
	}
	d.fails = nil
	if err := errors.Join(p.TearDown(t.Context(), uid, 1), p.Forget(t.Context(), key, uid)); err != nil {
		t.Fatal(err)
	}
	if exists(t, filepath.Join(p.root, "pods", uid)) || len(mounts(t, p.root)) > 0 {
		t.Errorf("left: %v", mounts(t, p.root))
	}
}

// The claim of a mounted volume is read again from time to time. An expansion and its failure are events of
// the pod; a server that is away, or another volume of the claim, changes nothing.
func TestSetUp_ClaimGotLarger_DriverIsAskedAgain(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	d := &drivers{dir: p.root, grows: pod.CSIGrowth{Possible: true}}
	c := p.config()
	c.Drivers = d
	var events []string
	c.Event = func(e pod.Event) {
		events = append(events, e.Key.Name+" "+e.UID+" "+e.Type+" "+e.Reason+" "+e.Message)
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "x.test", VolumeHandle: "data"}
	bound, away := pod.BoundVolume{CSI: pv, Claim: &v1.PersistentVolumeClaim{}}, error(nil)
	c.Claim = func(context.Context, *pod.Spec, string) (pod.BoundVolume, error) { return bound, away }
	p.Volumes = volume.New(c)
	s := withUID(spec(claimVolume("db", "data", false)), uid)
	s.Origin.Source = "api"
	ready := func() {
		t.Helper()
		p.setUp(t, s, 1)
		if done, current, until := p.Volumes.Ready(s, 1); !done || !current || until.IsZero() || until.After(time.Now().Add(time.Hour)) {
			t.Errorf("ready %t, current %t, until %v", done, current, until)
		}
	}
	ready()
	d.grows.Failed = errors.New("no room")
	ready()
	d.grows.Failed, d.grows.Done = nil, "it grew"
	ready()
	d.grows.Done = ""
	away = errors.New("the server is away")
	ready()
	away, bound = nil, pod.BoundVolume{Directory: &v1.HostPathVolumeSource{Path: t.TempDir()}}
	ready()
	if want := []string{key.Name + " " + uid + " Warning VolumeResizeFailed no room", key.Name + " " + uid + " Normal FileSystemResizeSuccessful it grew"}; !slices.Equal(events, want) || len(d.calls) != 3 {
		t.Errorf("events %q, calls %v", events, d.calls)
	}
	bound, d.grows.Possible = pod.BoundVolume{CSI: pv, Claim: &v1.PersistentVolumeClaim{}}, false
	p.setUp(t, s, 1)
	p.setUp(t, s, 1)
	if _, _, until := p.Volumes.Ready(s, 1); !until.IsZero() || len(d.calls) != 4 {
		t.Errorf("until %v, calls %v", until, d.calls)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Error(err)
	}
}

// A claim of a block volume is a device of the containers that name it, read-only if the claim is. It
// cannot be mounted, and a file system cannot be a device.
func TestDevices_ClaimOfABlockVolume_IsADevice(t *testing.T) {
	p, d := withDrivers(t)
	s := withUID(spec(claimVolume("disk", "raw", true), claimVolume("db", "data", false)), uid)
	s.Origin.Source = "api"
	c := &s.Pod.Spec.Containers[0]
	c.VolumeDevices = []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/raw"}}
	c.VolumeMounts = []v1.VolumeMount{{Name: "db", MountPath: "/db"}}
	r := p.request(s, pod.Sandbox{})
	if all, err := p.Devices(r); err == nil {
		t.Errorf("before the set-up: %v", all)
	}
	p.setUp(t, s, 1)
	want := []pod.BlockDevice{{HostPath: filepath.Join(p.root, "pods", uid, "volumes/kubernetes.io~csi/pv-raw/mount"), ContainerPath: "/dev/raw", ReadOnly: true}}
	if all, err := p.Devices(r); err != nil || !slices.Equal(all, want) {
		t.Errorf("%v, %v, want %v", all, err, want)
	}
	if m, err := p.Mounts(t.Context(), s, 1, "c"); err != nil || len(m) != 1 {
		t.Errorf("mounts %v, %v", m, err)
	}
	c.VolumeDevices[0].DevicePath = "dev/raw"
	if all, err := p.Devices(r); err == nil || err.Error() != "error DevicePath `dev/raw` must be an absolute path" {
		t.Errorf("%v, %v", all, err)
	}
	c.VolumeDevices[0] = v1.VolumeDevice{Name: "db", DevicePath: "/dev/raw"}
	if all, err := p.Devices(r); err == nil || err.Error() != `cannot find volume "db" to pass into container "c"` {
		t.Errorf("%v, %v", all, err)
	}
	c.VolumeMounts[0].Name = "disk"
	const text = "volume disk has volumeMode Block, but is specified in volumeMounts"
	if m, err := p.Mounts(t.Context(), s, 1, "c"); err == nil || !strings.HasSuffix(err.Error(), text) {
		t.Errorf("mounts %v, %v", m, err)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil || len(d.calls) != 3 {
		t.Fatal(err, d.calls)
	}
	err := p.SetUp(s, 1)
	for _, part := range []string{text, "volume db has volumeMode Filesystem, but is specified in volumeDevices"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, want %s", err, part)
		}
	}
	if len(d.calls) != 3 {
		t.Errorf("calls %v", d.calls)
	}
}

// A driver that requires republishing is called again when that is due; a lost mount is mounted
// again.
func TestReady_DriversMountIsGoneOrDue_IsSetUpAgain(t *testing.T) {
	p, d := withDrivers(t)
	d.renew = time.Hour
	s := withUID(spec(vol("v", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "x.test"}})), uid)
	s.Origin.Source = "api"
	p.setUp(t, s, 1)
	if done, current, until := p.Volumes.Ready(s, 1); !done || !current || until.IsZero() {
		t.Errorf("ready %t, current %t, until %v", done, current, until)
	}
	d.renew = -time.Second
	p.setUp(t, s, 1)
	if done, current, _ := p.Volumes.Ready(s, 1); !done || current {
		t.Errorf("ready %t, current %t, although it is due", done, current)
	}
	if err := unix.Unmount(filepath.Join(p.root, "pods", uid, "volumes/kubernetes.io~csi/v/mount"), 0); err != nil {
		t.Fatal(err)
	}
	if done, _, _ := p.Volumes.Ready(s, 1); done {
		t.Error("ready without the mount")
	}
	p.setUp(t, s, 1)
	if done, _, _ := p.Volumes.Ready(s, 1); !done || len(d.calls) != 3 {
		t.Errorf("ready %t, calls %v", done, d.calls)
	}
	if removed, err := p.Sweep(t.Context(), func(uid string) bool { return uid == "kept" }); err != nil || !slices.Equal(removed, []string{uid}) || d.calls[len(d.calls)-1] != "sweep" {
		t.Errorf("swept %v, %v, calls %v", removed, err, d.calls)
	}
}

// A pod whose own mounts cannot be removed keeps the volumes of its drivers, because a subPath may
// show them. A pod whose driver is away is swept by the drivers again.
func TestSweep_MountsOfAPodStay_DriversKeepIt(t *testing.T) {
	p, d := withDrivers(t)
	foreign := filepath.Join(p.root, "pods", "busy", "foreign")
	if err := errors.Join(os.MkdirAll(foreign, 0o700), os.MkdirAll(filepath.Join(p.root, "pods", "away"), 0o700), unix.Mount(t.TempDir(), foreign, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(foreign, unix.MNT_DETACH) })
	d.fails = errors.New("the driver is away")
	var mounted *volume.MountedError
	if _, err := p.Sweep(t.Context(), func(uid string) bool { return uid == "kept" }); !errors.As(err, &mounted) || !errors.Is(err, d.fails) {
		t.Errorf("%v", err)
	}
	if kept, known := d.swept["away"]; !d.swept["busy"] || kept || !known {
		t.Errorf("the drivers keep %v", d.swept)
	}
}

// The claim of a generic ephemeral volume has to be the pod's own.
func TestSetUp_EphemeralClaimOfAnotherPod_IsRefused(t *testing.T) {
	p, d := withDrivers(t)
	template := vol("own", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}})
	s := withUID(spec(template), uid)
	s.Origin.Source = "api"
	p.setUp(t, s, 1)
	s = withUID(spec(template), "other")
	s.Origin.Source, s.Pod.Spec.Volumes[0].Name = "api", "stolen"
	if err := p.SetUp(s, 1); err == nil || !strings.Contains(err.Error(), "PVC default/web-n1-stolen was not created for pod default/web-n1 (pod is not owner)") || len(d.calls) != 1 {
		t.Errorf("%v, calls %v", err, d.calls)
	}
	s.Origin.Source = "file"
	if err := p.SetUp(s, 1); err == nil || !strings.Contains(err.Error(), "this kind of volume is not supported") {
		t.Errorf("of a manifest: %v", err)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Error(err)
	}
}
