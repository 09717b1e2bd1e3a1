package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/volume"
)

// needRoot skips a test that mounts, or changes owners.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount: this test needs a real mount")
	}
}

// mount mounts and unmounts at the end of the test.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	needRoot(t)
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("mount on %s: %v", target, err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}

// A mount in an emptyDir, which a container with Bidirectional propagation may have made,
// is neither entered nor removed. Nothing else is removed until it is unmounted.
//
// Shows: D1
func TestTakeNeverCrossesAMount(t *testing.T) {
	for _, tt := range []struct {
		name string
		file bool // the mount is of a file, not a directory
		tmp  bool // another file system, not a bind mount of the same
	}{{"BindDirectory", false, false}, {"BindFile", true, false}, {"OtherFileSystem", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t)
			s := withUID(spec(empty("a b"), empty("z")), uid)
			p.setUp(t, s, 1)
			write(t, filepath.Join(p.emptyDir(1, "z"), "own"), "x")
			outside := t.TempDir()
			canary := filepath.Join(outside, "canary")
			write(t, canary, "host's")
			target := filepath.Join(p.emptyDir(1, "a b"), "deep", "mnt")
			switch {
			case tt.file:
				write(t, target, "")
				mount(t, canary, target, "", unix.MS_BIND, "")
			case tt.tmp:
				write(t, filepath.Join(target, "hidden"), "")
				mount(t, "tmpfs", target, "tmpfs", 0, "size=64k")
				canary = filepath.Join(target, "canary")
				write(t, canary, "host's")
			default:
				write(t, filepath.Join(target, "hidden"), "")
				mount(t, outside, target, "", unix.MS_BIND, "")
			}
			for what, err := range map[string]error{"TearDown": p.TearDown(t.Context(), uid, 1), "Forget": p.Forget(t.Context(), key, uid)} {
				var mounted *volume.MountedError
				if !errors.As(err, &mounted) || mounted.Path != target {
					t.Errorf("%s: got %v, want that %s is mounted", what, err, target)
				}
			}
			if !exists(t, canary) || !exists(t, filepath.Join(p.emptyDir(1, "z"), "own")) || !p.Ready(s, 1) {
				t.Error("something was removed although something is mounted")
			}
			if err := unix.Unmount(target, 0); err != nil {
				t.Fatal(err)
			}
			if err := p.Forget(t.Context(), key, uid); err != nil {
				t.Fatal(err)
			}
			if exists(t, filepath.Join(p.root, "pods", uid)) || !tt.tmp && !exists(t, canary) {
				t.Error("after the unmount the pod goes, and what was mounted stays")
			}
		})
	}
}

// Our own mounts are unmounted, deep in the tree or not, busy or not. A container's mount
// in a volume blocks all of it.
func TestTakeUnmountsOnlyItsOwn(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	s := bound(withUID(spec(memory("m", "1Mi"), empty("e"), secretVolume("sec", "pass")), uid), secretObject("pass", map[string]string{"k": "v"}))
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "m", MountPath: "/a", SubPath: "part"}, {Name: "sec", MountPath: "/b", SubPath: "k"}, {Name: "e", MountPath: "/c", SubPath: "x/y"}}
	all := func() {
		t.Helper()
		p.setUp(t, s, 1)
		if _, err := p.Mounts(t.Context(), s, 1, "c"); err != nil {
			t.Fatal(err)
		}
		if n := len(mounts(t, p.root)); n != 5 {
			t.Fatalf("%d mounts, want two in memory and three parts", n)
		}
	}
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	write(t, canary, "host's")
	part := p.instance(1) + "/volume-subpaths/m/c/0"
	for _, target := range []string{p.emptyDir(1, "m") + "/mnt", part + "/mnt", p.emptyDir(1, "e"), p.instance(1) + "/volumes/mine"} {
		all()
		if err := os.MkdirAll(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(outside, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		before := len(mounts(t, p.root))
		_, sweepErr := p.Sweep(t.Context(), func(string) bool { return false })
		for what, err := range map[string]error{"TearDown": p.TearDown(t.Context(), uid, 1), "Forget": p.Forget(t.Context(), key, uid), "Sweep": sweepErr} {
			var mounted *volume.MountedError
			if !errors.As(err, &mounted) || mounted.Path != target {
				t.Errorf("%s: %s: got %v, want that it is mounted", target, what, err)
			}
		}
		if now := len(mounts(t, p.root)); now != before || !exists(t, canary) {
			t.Errorf("%s: %d of %d mounts are left, canary %t", target, now, before, exists(t, canary))
		}
		if err := unix.Unmount(target, 0); err != nil {
			t.Fatal(err)
		}
	}
	for what, take := range map[string]func() error{
		"TearDown": func() error { return p.TearDown(t.Context(), uid, 1) }, "Forget": func() error { return p.Forget(t.Context(), key, uid) },
		"Sweep": func() error { _, err := p.Sweep(t.Context(), func(string) bool { return false }); return err },
	} {
		all()
		busy, err := os.Create(part + "/busy")
		if err != nil {
			t.Fatal(err)
		}
		err = take()
		busy.Close()
		if err != nil || exists(t, p.instance(1)) || len(mounts(t, p.root)) != 0 {
			t.Errorf("%s: %v; left %v", what, err, mounts(t, p.root))
		}
	}
	// Only one instance is removed.
	p.setUp(t, s, 1)
	p.setUp(t, s, 2)
	if err := p.TearDown(t.Context(), uid, 1); err != nil || !p.Ready(s, 2) || len(mounts(t, p.root)) != 2 {
		t.Errorf("instance 2 lost something: %v, %v", err, mounts(t, p.root))
	}
}

// The pods directory may be a file system of its own, or a link to one.
func TestPodsOnAFileSystemOfTheirOwn(t *testing.T) {
	p := newPlace(t)
	pods := filepath.Join(p.root, "pods")
	write(t, filepath.Join(pods, "below"), "")
	mount(t, "tmpfs", pods, "tmpfs", 0, "size=1m")
	s := withUID(spec(empty("a")), uid)
	p.setUp(t, s, 1)
	if err := errors.Join(p.TearDown(t.Context(), uid, 1), p.Forget(t.Context(), key, uid)); err != nil {
		t.Error(err)
	}
	if exists(t, filepath.Join(pods, uid)) {
		t.Error("the pod's directory is still there")
	}
}

// Shows: F12
func TestF12_FullDisk(t *testing.T) {
	p := newPlace(t)
	if err := os.MkdirAll(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, "tmpfs", p.root, "tmpfs", 0, "size=64k,nr_inodes=6")
	testRefusingDisk(t, p, func() {
		for i := 0; ; i++ {
			f, err := os.Create(filepath.Join(p.root, string(rune('a'+i))))
			if err != nil {
				return
			}
			f.Close()
		}
	})
}

// Shows: F13
func TestF13_ReadOnlyDisk(t *testing.T) {
	p := newPlace(t)
	if err := os.MkdirAll(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, "tmpfs", p.root, "tmpfs", 0, "size=64k")
	testRefusingDisk(t, p, func() {
		if err := unix.Mount("", p.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	})
}

// testRefusingDisk checks that on a full or read-only disk only pods that need it cannot
// start.
func testRefusingDisk(t *testing.T, p place, refuse func()) {
	t.Helper()
	refuse()
	for name, v := range map[string][]v1.Volume{"none": nil, "host": {host("h", "/", v1.HostPathDirectory)}} {
		s := withUID(spec(v...), name)
		if err := p.SetUp(s, 1); err != nil || !p.Ready(s, 1) || p.Ready(s, 2) != (v == nil) {
			t.Errorf("%s: %v, ready %t; want success: it keeps nothing on disk", name, err, p.Ready(s, 1))
		}
		if err := p.TearDown(t.Context(), name, 1); err != nil || p.Ready(s, 1) != (v == nil) {
			t.Errorf("%s: take: %v, ready %t", name, err, p.Ready(s, 1))
		}
	}
	s := withUID(spec(empty("data")), uid)
	if err := p.SetUp(s, 1); err == nil || p.Ready(s, 1) {
		t.Errorf("emptyDir: %v, ready %t; want an error", err, p.Ready(s, 1))
	}
}
