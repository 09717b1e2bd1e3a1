package volume_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/volume"
)

func claimVolume(name, claim string, readOnly bool) v1.Volume {
	return vol(name, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly}})
}

// A claim is a directory that outlives every pod and that only a person removes.
func TestClaimsOutlivePods(t *testing.T) {
	needRoot(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	p := newPlace(t)
	s := bound(withUID(spec(claimVolume("db", "data", false), claimVolume("ro", "data", true)), uid), claimObject("data"))
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "db", MountPath: "/db"}, {Name: "ro", MountPath: "/ro"}, {Name: "db", MountPath: "/wal", SubPath: "wal"}}
	c := p.config()
	c.SELinux = true
	p.Volumes = volume.New(c)
	begun := time.Now()
	p.setUp(t, s, 1)
	dir := filepath.Join(p.root, "volumes/default/data")
	wantTree(t, dir+"/data", "drwxrwxrwx 0:0 .")
	for _, path := range []string{p.root + "/volumes", p.root + "/volumes/default", dir} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v, want 0700", path, info, err)
		}
	}
	write(t, dir+"/data/file", "kept")
	m, err := p.Mounts(t.Context(), s, 1, "c")
	want := []pod.Mount{
		{HostPath: dir + "/data", ContainerPath: "/db", Relabel: true},
		{HostPath: dir + "/data", ContainerPath: "/ro", ReadOnly: true},
		{HostPath: p.instance(1) + "/volume-subpaths/db/c/2", ContainerPath: "/wal", Relabel: true},
	}
	if err != nil || fmt.Sprint(m) != fmt.Sprint(want) {
		t.Errorf("mounts %v %v, want %v", m, err, want)
	}
	if err := errors.Join(p.TearDown(t.Context(), uid, 1), p.Forget(t.Context(), key, uid)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Sweep(t.Context(), func(string) bool { return false }); err != nil || !exists(t, dir+"/data/file") || !exists(t, dir+"/data/wal") {
		t.Errorf("the claim's files are gone (%v)", err)
	}
	// Another pod sees the same files, with modes that a container has changed.
	if err := os.Chmod(dir+"/data", 0o750); err != nil {
		t.Fatal(err)
	}
	other := bound(withUID(spec(claimVolume("db", "data", false)), "other"), claimObject("data"))
	p.setUp(t, other, 1)
	if info, err := os.Stat(dir + "/data"); err != nil || info.Mode().Perm() != 0o750 || !exists(t, dir+"/data/file") {
		t.Errorf("%v %v, want what was there", info, err)
	}
	p.setUp(t, bound(withUID(spec(claimVolume("a", "also", false)), "third"), claimObject("also")), 1)
	claims, err := volume.Claims(p.root)
	if err != nil || len(claims) != 2 || claims[0].Name != "also" || claims[1].Name != "data" || claims[1].Namespace != "default" ||
		claims[1].Dir != dir+"/data" || claims[1].Created.Before(begun.Add(-time.Second)) || claims[1].Created.After(time.Now()) {
		t.Errorf("claims %+v %v", claims, err)
	}
	if err := volume.RemoveClaim(t.Context(), p.root, "default", "data"); err != nil || exists(t, dir) || !exists(t, p.root+"/volumes/default/also") {
		t.Errorf("remove: %v", err)
	}
	if err := volume.RemoveClaim(t.Context(), p.root, "default", "data"); !errors.Is(err, volume.ErrNoClaim) {
		t.Errorf("remove again: %v", err)
	}
	if err := volume.RemoveClaim(t.Context(), p.root, "default", "also"); err != nil || exists(t, p.root+"/volumes/default") {
		t.Errorf("the last of a namespace: %v", err)
	}
}

func TestClaims_NoneExist(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	if claims, err := volume.Claims(p.root); err != nil || claims != nil {
		t.Errorf("%v %v, want none", claims, err)
	}
	write(t, filepath.Join(p.root, "keep"), "")
	for _, name := range []string{"..", ".", "", "a/b", "../../keep"} {
		if err := errors.Join(volume.RemoveClaim(t.Context(), p.root, name, "x")); err == nil || errors.Is(err, volume.ErrNoClaim) {
			t.Errorf("namespace %q: %v", name, err)
		}
		if err := errors.Join(volume.RemoveClaim(t.Context(), p.root, "x", name)); err == nil || errors.Is(err, volume.ErrNoClaim) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	// A claim without its file is listed, and a file beside the directories is not a claim.
	write(t, filepath.Join(p.root, "volumes/ns/lost/data/x"), "")
	write(t, filepath.Join(p.root, "volumes/ns/file"), "")
	claims, err := volume.Claims(p.root)
	if err != nil || len(claims) != 1 || claims[0].Name != "lost" || !claims[0].Created.IsZero() {
		t.Errorf("%+v %v", claims, err)
	}
}

// While something is mounted in a claim nothing of it is removed. Targets of its links are
// never removed.
func TestRemoveClaimNeverLeavesIt(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	outside := t.TempDir()
	write(t, outside+"/canary", "host's")
	s := bound(withUID(spec(claimVolume("db", "data", false)), uid), claimObject("data"))
	p.setUp(t, s, 1)
	data := filepath.Join(p.root, "volumes/default/data/data")
	write(t, data+"/own/file", "")
	if err := os.Symlink(outside, data+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{data + "/mnt", filepath.Dir(data) + "/beside"} {
		write(t, target+"/hidden", "")
		mount(t, outside, target, "", unix.MS_BIND, "")
		var mounted *volume.MountedError
		if err := volume.RemoveClaim(t.Context(), p.root, "default", "data"); !errors.As(err, &mounted) || mounted.Path != target || !exists(t, data+"/own/file") {
			t.Errorf("remove: %v, want that %s is mounted and nothing removed", err, target)
		}
		if err := unix.Unmount(target, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := volume.RemoveClaim(t.Context(), p.root, "default", "data"); err != nil || exists(t, data) || !exists(t, outside+"/canary") {
		t.Errorf("remove: %v", err)
	}
}

// The group of a claim's files changes with each new instance, or only if the claim's own
// directory has another group. Links are not followed, and mounts are not entered.
//
// Shows: C-1.37.5
func TestC_1_37_5_FSGroupOfClaims(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	outside := t.TempDir()
	write(t, outside+"/canary", "host's")
	data := filepath.Join(p.root, "volumes/default/data/data")
	make := func(uid string, group int64, policy *v1.PodFSGroupChangePolicy) *pod.Spec {
		s := withUID(spec(claimVolume("db", "data", false)), uid)
		s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: policy}
		return bound(s, claimObject("data"))
	}
	first := make(uid, 2000, nil)
	p.setUp(t, first, 1)
	write(t, data+"/d/file", "f")
	write(t, data+"/suid", "f")
	if err := errors.Join(os.Chmod(data+"/d", 0o700), os.Chmod(data+"/d/file", 0o400), os.Chown(data+"/suid", 1000, 1000), os.Chmod(data+"/suid", 0o755|os.ModeSetuid),
		os.Symlink(outside+"/canary", data+"/link"), os.Symlink(outside, data+"/d/links"), unix.Mkfifo(data+"/fifo", 0o600), os.Mkdir(data+"/mnt", 0o755)); err != nil {
		t.Fatal(err)
	}
	mount(t, outside, data+"/mnt", "", unix.MS_BIND, "")
	before := tree(t, data+"/d")
	// The same instance again: the files are not walked.
	relabelled := make(uid, 2000, nil)
	relabelled.Pod.Spec.Volumes = append(relabelled.Pod.Spec.Volumes, empty("more"))
	p.setUp(t, relabelled, 1)
	if got := tree(t, data+"/d"); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Errorf("a SetUp of the same instance changed %v to %v", before, got)
	}
	// The claim's own directory is correct: the files are not walked either.
	p.setUp(t, make("u2", 2000, ptr.To(v1.FSGroupChangeOnRootMismatch)), 1)
	if got := tree(t, data+"/d"); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Errorf("OnRootMismatch changed %v to %v", before, got)
	}
	for i, s := range []*pod.Spec{make("u3", 2000, ptr.To(v1.FSGroupChangeAlways)), make("u4", 3000, ptr.To(v1.FSGroupChangeOnRootMismatch))} {
		p.setUp(t, s, 1)
		g := *s.Pod.Spec.SecurityContext.FSGroup
		wantTree(t, data+"/d", fmt.Sprintf("dgrwxrwx--- 0:%d .", g), fmt.Sprintf(`-rw-rw---- 0:%d file "f"`, g), fmt.Sprintf("Lrwxrwxrwx 0:%d links -> %s", g, outside))
		for path, mode := range map[string]string{"": "dgrwxrwxrwx", "/suid": "urwxrwxr-x", "/fifo": "prw-rw----"} {
			info, err := os.Lstat(data + path)
			if err != nil || info.Mode().String() != mode || int64(info.Sys().(*syscall.Stat_t).Gid) != g {
				t.Errorf("%d: %s: %v of %d, want %s of %d (%v)", i, path, info.Mode(), info.Sys().(*syscall.Stat_t).Gid, mode, g, err)
			}
		}
	}
	info, err := os.Stat(outside + "/canary")
	if err != nil || info.Mode() != 0o644 || info.Sys().(*syscall.Stat_t).Gid != 0 {
		t.Errorf("the canary: %v %v, want 0644 of root", info, err)
	}
	if info, err := os.Stat(outside); err != nil || info.Sys().(*syscall.Stat_t).Gid != 0 {
		t.Errorf("what is mounted: %v %v", info, err)
	}
}
