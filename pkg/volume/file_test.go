package volume_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// File reads a regular file of an emptyDir, and nothing else that a container puts there.
//
// Shows: C-1.38.4
func TestC_1_38_4_FileOfAVolume(t *testing.T) {
	needRoot(t)
	t.Parallel()
	p := newPlace(t)
	outside := t.TempDir()
	write(t, outside+"/canary", "host's")
	s := bound(withUID(spec(empty("e"), memory("m", "1Mi"), host("h", outside, ""), configMapVolume("cm", "conf")), uid), configMapObject("conf", map[string]string{"a": "b"}))
	p.setUp(t, s, 1)
	dir := p.emptyDir(1, "e")
	write(t, dir+"/in/env", "A=1\n")
	write(t, dir+"/full", strings.Repeat("x", 64<<10))
	write(t, dir+"/more", strings.Repeat("x", 64<<10+1))
	write(t, p.emptyDir(1, "m")+"/env", "M=1\n")
	if err := errors.Join(os.Symlink("in/env", dir+"/link"), os.Symlink(outside+"/canary", dir+"/out"), os.Symlink("../../../../../../..", dir+"/up"),
		os.Symlink("/proc/self/environ", dir+"/environ"), unix.Mkfifo(dir+"/fifo", 0o600), unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, 1<<8|3)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"in/env": "A=1\n", "link": "A=1\n", "full": strings.Repeat("x", 64<<10), "./in//env": "A=1\n"} {
		if text, err := p.File(s, 1, "e", path); err != nil || string(text) != want {
			t.Errorf("%s: %d bytes, %v", path, len(text), err)
		}
	}
	if text, err := p.File(s, 1, "m", "env"); err != nil || string(text) != "M=1\n" {
		t.Errorf("in memory: %q %v", text, err)
	}
	for path, want := range map[string]string{
		"more": "is larger than 65536 bytes", "out": "leads out of the volume", "up/etc/passwd": "leads out of the volume", "environ": "leads out of the volume",
		"/etc/passwd": "leads out of the volume", "in/../../x": "leads out of the volume", "fifo": "is not a file", "null": "is not a file", "in": "is not a file", "none": "no such file or directory",
	} {
		text, err := p.File(s, 1, "e", path)
		if err == nil || !strings.HasSuffix(err.Error(), want) || text != nil {
			t.Errorf("%s: %q %v, want %s", path, text, err, want)
		}
		if errors.Is(err, fs.ErrNotExist) != (path == "none") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, volume := range []string{"h", "cm", "missing"} {
		if text, err := p.File(s, 1, volume, "canary"); err == nil {
			t.Errorf("%s: %q, want an error", volume, text)
		}
	}
}

// C-1.35.9: the disk usage of an emptyDir is counted as du does.
//
// Shows: C-1.35.9
func TestC_1_35_9_VolumeOverItsLimit(t *testing.T) {
	needRoot(t)
	t.Parallel()
	p := newPlace(t)
	limited := func(name, limit string) v1.Volume {
		v := empty(name)
		v.EmptyDir.SizeLimit = ptr.To(quantity(limit))
		return v
	}
	s := withUID(spec(empty("free"), memory("m", "1Mi"), limited("none", "0"), limited("one", "1Mi"), limited("two", "2Mi")), uid)
	over := func() string {
		t.Helper()
		text, err := p.ExceededLimit(t.Context(), s, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if got := over(); got != "" {
		t.Errorf("before it is there: %q", got)
	}
	p.setUp(t, s, 1)
	full := bytes.Repeat([]byte("x"), 600<<10)
	put := func(path string) {
		t.Helper()
		write(t, path, string(full))
	}
	for _, name := range []string{"free", "none"} {
		for i := range 4 {
			put(filepath.Join(p.emptyDir(1, name), fmt.Sprint(i)))
		}
	}
	one := p.emptyDir(1, "one")
	put(one + "/d/a")
	if err := errors.Join(os.Link(one+"/d/a", one+"/b"), os.Link(one+"/d/a", one+"/d/c"), os.Symlink(p.emptyDir(1, "free"), one+"/link"), os.Truncate(one+"/d/a", 600<<10)); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(one + "/sparse")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sparse.Truncate(1<<30), sparse.Close()); err != nil {
		t.Fatal(err)
	}
	if got := over(); got != "" {
		t.Errorf("600 KiB, three links and a hole: %q", got)
	}
	put(one + "/d/e")
	if got, want := over(), `Usage of EmptyDir volume "one" exceeds the limit "1Mi". `; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := os.Remove(one + "/d/e"); err != nil {
		t.Fatal(err)
	}
	// Deeper than any path: it counts as over the limit.
	deep := p.emptyDir(1, "two")
	fd, err := unix.Open(deep, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Pod.Spec.Volumes[4].EmptyDir.SizeLimit = ptr.To(quantity("1Gi"))
	for range 2060 {
		if err := unix.Mkdirat(fd, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if got, want := over(), `Usage of EmptyDir volume "two" cannot be measured: it is more than 2048 directories deep. `; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Fatal(err)
	}
}

// A mount in a volume uses another disk.
//
// Shows: C-1.35.9
func TestC_1_35_9_MountsAreNotMeasured(t *testing.T) {
	p := newPlace(t)
	v := empty("e")
	v.EmptyDir.SizeLimit = ptr.To(quantity("1Mi"))
	s := withUID(spec(v), uid)
	p.setUp(t, s, 1)
	target := p.emptyDir(1, "e") + "/mnt"
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	mount(t, "tmpfs", target, "tmpfs", 0, "size=8m")
	write(t, target+"/big", strings.Repeat("x", 4<<20))
	if got, err := p.ExceededLimit(t.Context(), s, 1, nil); err != nil || got != "" {
		t.Errorf("%q %v", got, err)
	}
}
