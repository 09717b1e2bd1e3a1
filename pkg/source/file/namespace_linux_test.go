package file

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

// inside names the test that runs in its own namespaces.
const inside = "NODECTL_TEST_INSIDE"

// inNamespaces runs the calling test once more, as root of new namespaces with their
// own limits and mounts. It reports whether this is that run.
func inNamespaces(t *testing.T, flags uintptr) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.count=1", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	id := func(of int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: of, Size: 1}} }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | flags, UidMappings: id(os.Getuid()), GidMappings: id(os.Getgid()),
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in namespaces of its own: %v\n%s", err, out)
	}
	return false
}

// The manifests are on their own file system, which is unmounted and mounted again.
//
// Shows: F42
func TestF42_BindMountUnmounted(t *testing.T) {
	if !inNamespaces(t, syscall.CLONE_NEWNS) {
		return
	}
	ok(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for name, below := range map[string]string{"all of them": "", "those below": "sub"} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			b := newBench(t)
			b.cfg.Recursive, b.cfg.CheckFrequency, b.poll = true, 10*time.Millisecond, 10*time.Millisecond
			at, want := b.path(below), "is empty and not on the file system it was read from; is it unmounted?"
			if below != "" {
				ok(t, os.Mkdir(at, 0o700))
				want = at + ": " + want
			}
			mount := func() { t.Helper(); ok(t, unix.Mount(disk, at, "", unix.MS_BIND, "")) }
			unmount := func() {
				t.Helper()
				var err error
				wait.True(t, "the directory is empty", func() bool { // a reader may be
					err = unix.Unmount(at, 0)
					return !errors.Is(err, unix.EBUSY)
				})
				ok(t, err)
			}
			mount()
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			b.put(below+"/web.yaml", "pod one x\n")
			l := sourcetest.Listen(t, b)
			first := l.Set()
			first.Holds(t, "one")
			for range 2 {
				unmount()
				if err := l.Error(); err.Error() != want {
					t.Fatalf("error %q, want %q", err, want)
				}
				mount()
				w := l.Set()
				w.Holds(t, "one")
				w.Names(t)
				if w.Pod("one") != first.Pod("one") {
					t.Fatal("the pod is another pointer")
				}
			}
			// The source follows the directory on the current mount.
			b.put(below+"/web.yaml", "pod one y\n")
			l.Set().Names(t, "one")
			// The directory below the mount has another set.
			unmount()
			_ = l.Error()
			b.put(below+"/other.yaml", "pod other x\n")
			l.Set().Holds(t, "one", "other") // a file that stays away is removed
			l.Set().Holds(t, "other")
		})
	}
}
