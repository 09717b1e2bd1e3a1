package volume_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/volume"
)

const uid = "5f1c"

var key = pod.Key{Namespace: "default", Name: "web-n1"}

func spec(volumes ...v1.Volume) *pod.Spec {
	return &pod.Spec{Key: key, Pod: &v1.Pod{Spec: v1.PodSpec{
		Volumes:    volumes,
		Containers: []v1.Container{{Name: "c"}},
	}}}
}

func withUID(s *pod.Spec, uid string) *pod.Spec {
	s.Pod.UID = types.UID(uid)
	return s
}

func empty(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
}

func host(name, path string, kind v1.HostPathType) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

// place is a new root and log directory with Volumes over them.
type place struct {
	*volume.Volumes
	root, logs, links string
}

func newPlace(t *testing.T) place {
	t.Helper()
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), logs: filepath.Join(dir, "logs"), links: filepath.Join(dir, "links")}
	p.Volumes = volume.New(p.config())
	t.Cleanup(func() { unmountAll(t, p.root) })
	return p
}

func (p place) config() volume.Config {
	return volume.Config{RootDir: p.root, PodLogsDir: p.logs, ContainerLogsDir: p.links}
}

// unmountAll unmounts all mounts at path and below, for the end of a test.
func unmountAll(t *testing.T, path string) {
	t.Helper()
	all := mounts(t, path)
	slices.Reverse(all)
	for _, m := range all {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Error(err)
		}
	}
}

// mounts returns the kernel's mounts at path and below.
func mounts(t *testing.T, path string) []*mountinfo.Info {
	t.Helper()
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// SetUp, Ready and Mounts are for a pod without a user namespace, whose sandbox does not
// matter.
func (p place) SetUp(s *pod.Spec, instance int) error {
	return p.Volumes.SetUp(context.Background(), s, pod.Place{}, instance)
}

func (p place) Ready(s *pod.Spec, instance int) bool {
	_, current, _ := p.Volumes.Ready(s, instance)
	return current
}

func (p place) Mounts(ctx context.Context, s *pod.Spec, instance int, container string) ([]pod.Mount, error) {
	return p.Volumes.Mounts(ctx, pod.CreateRequest{Want: s, Container: container, Sandbox: &pod.Sandbox{Instance: instance}})
}

func (p place) setUp(t *testing.T, s *pod.Spec, instance int) {
	t.Helper()
	if err := p.SetUp(s, instance); err != nil {
		t.Fatal(err)
	}
}

func (p place) instance(n int) string {
	return filepath.Join(p.root, "pods", uid, fmt.Sprint(n))
}

func (p place) emptyDir(n int, name string) string {
	return filepath.Join(p.instance(n), "volumes", "kubernetes.io~empty-dir", name)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// Shows: C-1.37.4
func TestC_1_37_4_EmptyDirIsForEveryUserBelowClosedDirectories(t *testing.T) {
	p := newPlace(t)
	old := syscall.Umask(0o077) // an agent started by hand
	defer syscall.Umask(old)
	s := withUID(spec(empty("data")), uid)
	if p.Ready(s, 1) {
		t.Error("ready before SetUp")
	}
	p.setUp(t, s, 1)
	if !p.Ready(s, 1) || p.Ready(s, 2) {
		t.Errorf("ready: instance 1 %t, instance 2 %t; want only 1", p.Ready(s, 1), p.Ready(s, 2))
	}
	got := map[string]string{}
	filepath.WalkDir(p.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		info, _ := d.Info()
		rel, _ := filepath.Rel(p.root, path)
		got[rel] = info.Mode().String()
		return nil
	})
	want := map[string]string{
		".":                   "drwx------",
		"pods":                "drwx------",
		"pods/5f1c":           "drwx------",
		"pods/5f1c/1":         "drwx------",
		"pods/5f1c/1/ready":   "-rw-------",
		"pods/5f1c/1/volumes": "drwx------",
		"pods/5f1c/1/volumes/kubernetes.io~empty-dir":      "drwx------",
		"pods/5f1c/1/volumes/kubernetes.io~empty-dir/data": "drwxrwxrwx",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Shows: C-1.37.3
func TestC_1_37_3_EmptyDirLivesAsLongAsItsInstance(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := withUID(spec(empty("data")), uid)
	p.setUp(t, s, 1)
	file := filepath.Join(p.emptyDir(1, "data"), "file")
	write(t, file, "kept")
	if err := os.Chmod(p.emptyDir(1, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	// After a restart of the agent or a container, existing files stay unchanged.
	if err := (place{Volumes: volume.New(volume.Config{RootDir: p.root})}).SetUp(s, 1); err != nil {
		t.Fatal(err)
	}
	p.setUp(t, s, 1)
	if info, err := os.Stat(p.emptyDir(1, "data")); err != nil || info.Mode().Perm() != 0o700 || !exists(t, file) {
		t.Errorf("after SetUp again: %v, %v, file there: %t", info.Mode(), err, exists(t, file))
	}
	p.setUp(t, s, 2)
	if left, err := os.ReadDir(p.emptyDir(2, "data")); err != nil || len(left) != 0 {
		t.Errorf("the new instance begins with %v (%v), want nothing", left, err)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Fatal(err)
	}
	if exists(t, p.instance(1)) || !exists(t, p.emptyDir(2, "data")) || p.Ready(s, 1) || !p.Ready(s, 2) {
		t.Error("TearDown of instance 1 has to remove it and leave instance 2")
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Errorf("taking what is not there: %v", err)
	}
}

// Shows: F1
func TestF1_PutInterruptedIsNotReady(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := withUID(spec(empty("a"), host("h", "/no/such/place", v1.HostPathDirectory)), uid)
	if err := p.SetUp(s, 1); err == nil || p.Ready(s, 1) {
		t.Fatalf("err %v, ready %t; want an error and not ready", err, p.Ready(s, 1))
	}
	// A wrong mode from an end between mkdir and chmod is corrected.
	if err := os.Chmod(p.emptyDir(1, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.Pod.Spec.Volumes = s.Pod.Spec.Volumes[:1]
	p.setUp(t, s, 1)
	if info, err := os.Stat(p.emptyDir(1, "a")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v (%v), want 0777", info.Mode(), err)
	}
}

// Shows: C-1.37.8
func TestC_1_37_8_Mounts(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := withUID(spec(empty("data"), host("sock", "/run/x.sock", "")), uid)
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
		{Name: "sock", MountPath: "/run/x.sock", ReadOnly: true, MountPropagation: ptr.To(v1.MountPropagationHostToContainer)},
		{Name: "data", MountPath: "data"},
		{Name: "data", MountPath: "/again", ReadOnly: true, MountPropagation: ptr.To(v1.MountPropagationNone), RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)},
	}
	s.Pod.Spec.InitContainers = []v1.Container{
		{Name: "init", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/d", MountPropagation: ptr.To(v1.MountPropagationBidirectional)}}},
		{Name: "none"},
	}
	p.setUp(t, s, 3)
	data := p.emptyDir(3, "data")
	for name, want := range map[string][]pod.Mount{
		"c": {
			{HostPath: "/run/x.sock", ContainerPath: "/run/x.sock", ReadOnly: true, Propagation: "HostToContainer"},
			{HostPath: data, ContainerPath: "/data"},
			{HostPath: data, ContainerPath: "/again", ReadOnly: true, Propagation: "None"},
		},
		"init": {{HostPath: data, ContainerPath: "/d", Propagation: "Bidirectional"}},
		"none": nil,
	} {
		got, err := p.Mounts(t.Context(), s, 3, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestMountsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := withUID(spec(empty("data")), uid)
	p.setUp(t, s, 1)
	mount := func(m v1.VolumeMount) error {
		s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{m}
		_, err := p.Mounts(t.Context(), s, 1, "c")
		return err
	}
	for want, m := range map[string]v1.VolumeMount{
		"container c mounts volume other, which the pod does not have":                         {Name: "other", MountPath: "/x"},
		"container c, volume data: recursiveReadOnly: Enabled is not supported by the runtime": {Name: "data", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)},
		"container c, volume data: recursiveReadOnly: Enabled needs readOnly: true":            {Name: "data", MountPath: "/x", RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)},
	} {
		if err := mount(m); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := p.Mounts(t.Context(), s, 1, "missing"); err == nil {
		t.Error("a container the pod does not have got mounts")
	}
	if err := os.Remove(p.emptyDir(1, "data")); err != nil {
		t.Fatal(err)
	}
	if err := mount(v1.VolumeMount{Name: "data", MountPath: "/x"}); err == nil || !strings.HasSuffix(err.Error(), "no longer exists") {
		t.Errorf("an emptyDir that is gone: got %v", err)
	}
	for want, v := range map[string]v1.Volume{
		"volume n: this kind of volume is not supported": {Name: "n", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}},
		`volume m: unknown storage medium "Floppy"`:      {Name: "m", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: "Floppy"}}},
	} {
		bad := withUID(spec(v), "other")
		if err := p.SetUp(bad, 1); err == nil || err.Error() != want || p.Ready(bad, 1) {
			t.Errorf("got %v, want %q and not ready", err, want)
		}
	}
}

// A UID comes from a manifest: it never leads to another directory.
func TestUIDIsOnePlainName(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	write(t, filepath.Join(p.root, "keep"), "")
	write(t, filepath.Join(p.root, "pods", "1", "keep"), "")
	for _, bad := range []string{"", ".", "..", "../..", "a/b", "/", "a\x00b", strings.Repeat("u", 300)} {
		s := withUID(spec(empty("e")), bad)
		_, mountsErr := p.Mounts(t.Context(), s, 1, "c")
		for what, err := range map[string]error{
			"SetUp": p.SetUp(s, 1), "TearDown": p.TearDown(t.Context(), bad, 1), "Forget": p.Forget(t.Context(), key, bad), "Mounts": mountsErr,
		} {
			if err == nil {
				t.Errorf("%s with UID %q: no error", what, bad)
			}
		}
		if p.Ready(s, 1) {
			t.Errorf("UID %q is ready", bad)
		}
	}
	for _, k := range []pod.Key{{Namespace: "../x", Name: "n"}, {Namespace: "x", Name: "n/../.."}} {
		if err := p.Forget(t.Context(), k, uid); err == nil {
			t.Errorf("Forget with key %q: no error", k)
		}
	}
	if err := p.SetUp(withUID(spec(empty("..")), uid), 1); err == nil {
		t.Error("a volume named .. was put")
	}
	if err := p.SetUp(withUID(spec(empty("a")), uid), -1); err == nil {
		t.Error("instance -1 was put")
	}
	if !exists(t, filepath.Join(p.root, "keep")) || !exists(t, filepath.Join(p.root, "pods", "1", "keep")) {
		t.Error("something else was removed")
	}
}

func TestForgetRemovesAllOfOnePod(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := withUID(spec(empty("data")), uid)
	p.setUp(t, s, 1)
	p.setUp(t, s, 2)
	write(t, filepath.Join(p.emptyDir(2, "data"), "a", "b", "c"), "x")
	write(t, filepath.Join(p.root, "pods", uid, "record.json"), "{}")
	logs := filepath.Join(p.logs, "default_web-n1_"+uid)
	write(t, filepath.Join(logs, "c", "0.log"), "line")
	other := withUID(spec(empty("data")), "other")
	p.setUp(t, other, 1)
	write(t, filepath.Join(p.logs, "default_web-n1_other", "c", "0.log"), "line")

	for range 2 { // the second call finds nothing
		if err := p.Forget(t.Context(), key, uid); err != nil {
			t.Fatal(err)
		}
		if exists(t, filepath.Join(p.root, "pods", uid)) || exists(t, logs) {
			t.Error("something of the pod is left")
		}
	}
	if !p.Ready(other, 1) || !exists(t, filepath.Join(p.logs, "default_web-n1_other", "c", "0.log")) {
		t.Error("the other pod lost something")
	}
}

// A name with which no log directory can be made: the sandbox never started, and everything else is
// removed.
func TestForget_NameTooLongForALogDirectory_RemovesTheRest(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.setUp(t, withUID(spec(empty("data")), uid), 1)
	long := pod.Key{Namespace: "default", Name: strings.Repeat("n", 253)}
	if err := p.Forget(t.Context(), long, uid); err != nil || exists(t, filepath.Join(p.root, "pods", uid)) {
		t.Errorf("forget: %v", err)
	}
}

// BenchmarkPut measures an instance with two emptyDirs and a hostPath.
func BenchmarkPut(b *testing.B) {
	v := volume.New(volume.Config{RootDir: b.TempDir()})
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		if err := v.SetUp(b.Context(), withUID(spec(empty("a"), empty("b"), host("h", dir, v1.HostPathDirectory)), fmt.Sprint("u", i)), pod.Place{}, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func logTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
