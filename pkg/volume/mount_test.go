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

// mount mounts and sees to it that nothing stays mounted.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount: this test needs a real mount")
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("mount on %s: %v", target, err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}

// What is mounted in an emptyDir, as a container with Bidirectional propagation
// may have left it, is neither entered nor removed, and nothing else is either
// until it is unmounted.
func TestTakeNeverCrossesAMount(t *testing.T) {
	for _, tt := range []struct {
		name string
		file bool // a file is mounted, not a directory
		tmp  bool // another file system, not a bind of the same
	}{{"BindDirectory", false, false}, {"BindFile", true, false}, {"OtherFileSystem", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t)
			s := withUID(spec(empty("a b"), empty("z")), uid)
			p.put(t, s, 1)
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
			for what, err := range map[string]error{"Take": p.Take(uid, 1), "Forget": p.Forget(key, uid)} {
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
			if err := p.Forget(key, uid); err != nil {
				t.Fatal(err)
			}
			if exists(t, filepath.Join(p.root, "pods", uid)) || !tt.tmp && !exists(t, canary) {
				t.Error("after the unmount the pod goes, and what was mounted stays")
			}
		})
	}
}

// The pods directory may be a file system of its own, or a link to one.
func TestPodsOnAFileSystemOfTheirOwn(t *testing.T) {
	p := newPlace(t)
	pods := filepath.Join(p.root, "pods")
	write(t, filepath.Join(pods, "below"), "")
	mount(t, "tmpfs", pods, "tmpfs", 0, "size=1m")
	s := withUID(spec(empty("a")), uid)
	p.put(t, s, 1)
	if err := errors.Join(p.Take(uid, 1), p.Forget(key, uid)); err != nil {
		t.Error(err)
	}
	if exists(t, filepath.Join(pods, uid)) {
		t.Error("the pod's directory is still there")
	}
}

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

// testRefusingDisk checks that a disk that takes nothing more holds back only
// pods that need it.
func testRefusingDisk(t *testing.T, p place, refuse func()) {
	t.Helper()
	refuse()
	for name, v := range map[string][]v1.Volume{"none": nil, "host": {host("h", "/", v1.HostPathDirectory)}} {
		s := withUID(spec(v...), name)
		if err := p.Put(s, 1); err != nil || !p.Ready(s, 1) || p.Ready(s, 2) != (v == nil) {
			t.Errorf("%s: %v, ready %t; want success: it keeps nothing on disk", name, err, p.Ready(s, 1))
		}
		if err := p.Take(name, 1); err != nil || p.Ready(s, 1) != (v == nil) {
			t.Errorf("%s: take: %v, ready %t", name, err, p.Ready(s, 1))
		}
	}
	s := withUID(spec(empty("data")), uid)
	if err := p.Put(s, 1); err == nil || p.Ready(s, 1) {
		t.Errorf("emptyDir: %v, ready %t; want an error", err, p.Ready(s, 1))
	}
}
