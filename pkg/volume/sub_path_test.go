package volume_test

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

func sub(s *pod.Spec, volume, path string) *pod.Spec {
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: volume, MountPath: "/x", SubPath: path}}
	return s
}

// bindOne returns the host path of container c's one mount.
func (p place) bindOne(t *testing.T, s *pod.Spec) (string, error) {
	t.Helper()
	m, err := p.Mounts(t.Context(), s, 1, "c")
	if err != nil {
		return "", err
	}
	if want := filepath.Join(p.instance(1), "volume-subpaths", s.Pod.Spec.Containers[0].VolumeMounts[0].Name, "c", "0"); len(m) != 1 || m[0].HostPath != want {
		t.Fatalf("got %+v, want a mount of %s", m, want)
	}
	return m[0].HostPath, nil
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Lstat(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.Lstat(b)
	return err == nil && os.SameFile(x, y)
}

// Shows: C-1.37.7
func TestC_1_37_7_SubPaths(t *testing.T) {
	needRoot(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	p := newPlace(t)
	host1 := t.TempDir()
	write(t, filepath.Join(host1, "sock"), "")
	s := withUID(spec(empty("data"), memory("mem", "1Mi"), host("host", host1, v1.HostPathDirectory), configMapVolume("cm", "conf"), secretVolume("sec", "pass")), uid)
	s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](2000)}
	s = bound(s, configMapObject("conf", map[string]string{"a.conf": "one"}), secretObject("pass", map[string]string{"key": "v"}))
	p.setUp(t, s, 1)
	data := p.emptyDir(1, "data")
	write(t, filepath.Join(data, "file"), "f")
	if err := os.MkdirAll(filepath.Join(data, "real/in"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "real", "real/up": "../file", "chain": "link/in"} {
		if err := os.Symlink(to, filepath.Join(data, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ volume, path, leads, mode string }{
		{"data", "new/deep/dir", data + "/new/deep/dir", "dgrwxrwxrwx"},
		{"data", "./new//deep/", data + "/new/deep", "dgrwxrwxrwx"},
		{"data", "file", data + "/file", "-rw-------"},
		{"data", "link", data + "/real", ""},
		{"data", "link/up", data + "/file", ""},
		{"data", "chain", data + "/real/in", ""},
		{"data", "link/made", data + "/real/made", "dgrwxrwxrwx"},
		{"data", "a\nb c\\d", data + "/a\nb c\\d", "dgrwxrwxrwx"},
		{"data", "..a", data + "/..a", "dgrwxrwxrwx"},
		{"mem", "made", p.emptyDir(1, "mem") + "/made", "dgtrwxrwxrwx"},
		{"host", "sock", host1 + "/sock", ""},
		{"host", "made/here", host1 + "/made/here", "drwx------"},
		{"cm", "a.conf", p.volume("kubernetes.io~configmap", "cm") + "/..data/a.conf", "-rw-r--r--"},
		{"sec", "key", p.volume("kubernetes.io~secret", "sec") + "/..data/key", "-rw-r--r--"},
	} {
		id := 0
		for range 2 { // the second call finds the mount
			at, err := p.bindOne(t, sub(s, tt.volume, tt.path))
			if err != nil {
				t.Errorf("%s %q: %v", tt.volume, tt.path, err)
				break
			}
			info, err := os.Stat(at)
			if err != nil || !sameFile(t, at, tt.leads) {
				t.Errorf("%s %q: not what %s is (%v)", tt.volume, tt.path, tt.leads, err)
			} else if tt.mode != "" && info.Mode().String() != tt.mode {
				t.Errorf("%s %q: mode %s, want %s", tt.volume, tt.path, info.Mode(), tt.mode)
			}
			m := mounts(t, at)
			if len(m) != 1 || id != 0 && m[0].ID != id {
				t.Errorf("%s %q: mounted %d times, or again", tt.volume, tt.path, len(m))
			}
			id = m[0].ID
		}
	}
	if err := p.TearDown(t.Context(), uid, 1); err != nil || exists(t, p.instance(1)) || len(mounts(t, p.root)) != 0 {
		t.Errorf("TearDown: %v; left %v", err, mounts(t, p.root))
	}
	if !exists(t, host1+"/sock") || !exists(t, host1+"/made/here") {
		t.Error("what a hostPath shows is gone")
	}
}

// Shows: C-1.37.7
func TestC_1_37_7_SubPathsThatLeadOut(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	outside := t.TempDir()
	write(t, filepath.Join(outside, "canary"), "host's")
	s := bound(withUID(spec(empty("data"), configMapVolume("cm", "conf"), host("missing", outside+"/no", "")), uid), configMapObject("conf", map[string]string{"a": "b"}))
	p.setUp(t, s, 1)
	data := p.emptyDir(1, "data")
	for link, to := range map[string]string{
		"abs": outside, "rel": "../../../../../../../../../../" + outside, "up": "..", "dangling": "nowhere", "loop": "loop", "proc": "/proc/self/root", "self": "/proc/self/cwd",
	} {
		if err := os.Symlink(to, filepath.Join(data, link)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(data, "file"), "")
	for _, tt := range []struct{ volume, path, want string }{
		{"data", "/abs", "must not be an absolute path"}, {"data", "..", "must not contain '..'"}, {"data", "a/../b", "must not contain '..'"}, {"data", "a\x00b", "must not contain a zero byte"},
		{"data", "abs", "leads out of the volume"}, {"data", "abs/canary", "leads out of the volume"}, {"data", "abs/new", "leads out of the volume"},
		{"data", "rel/canary", "leads out of the volume"}, {"data", "up", "leads out of the volume"}, {"data", "up/x", "leads out of the volume"},
		{"data", "proc" + outside, "leads out of the volume"}, {"data", "self/x", "leads out of the volume"},
		{"data", "dangling", "is a link to a missing file, or changes at each attempt"}, {"data", "loop", "too many levels of symbolic links"}, {"data", "file/x", "not a directory"},
		{"data", strings.Repeat("n", 256), "file name too long"},
		{"cm", "none", "is not in the volume"}, {"missing", "x", outside + "/no does not exist"},
	} {
		if at, err := p.bindOne(t, sub(s, tt.volume, tt.path)); err == nil || !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s %q: %s %v, want %q", tt.volume, tt.path, at, err, tt.want)
		}
	}
	for _, name := range []string{"..", "a/b", "."} {
		s.Pod.Spec.Containers[0].Name = name
		if _, err := p.Mounts(t.Context(), sub(s, "data", "x"), 1, name); err == nil {
			t.Errorf("a container named %s was given a place", name)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside: %v %v, want the canary alone", entries, err)
	}
}

// C-1.37.7: names of the environment are expanded; a name without a value is an error.
//
// Shows: C-1.37.7
func TestC_1_37_7_SubPathExpr(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	s := withUID(spec(empty("data")), uid)
	p.setUp(t, s, 1)
	env := []v1.EnvVar{{Name: "POD", Value: "web"}, {Name: "EMPTY"}, {Name: "UP", Value: ".."}, {Name: "ROOT", Value: "/etc"}, {Name: "NODE", Value: "n1"}}
	for expr, want := range map[string]string{
		"logs/$(POD)": "logs/web", "$(POD)$(NODE)": "webn1", "$$(POD)": "$(POD)", "$$(NONE)": "$(NONE)", "a$": "a$", "$(POD": "$(POD",
		"$(NONE)/$(EMPTY)/$(POD)": "!missing value for EMPTY, NONE", "$(UP)/x": "!must not contain '..'", "x/$(UP)": "!must not contain '..'", "$(ROOT)": "!must not be an absolute path",
	} {
		s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/x", SubPathExpr: expr}}
		m, err := p.Volumes.Mounts(t.Context(), pod.CreateRequest{Want: s, Container: "c", Sandbox: &pod.Sandbox{Instance: 1}, Env: env})
		if wrong, ok := strings.CutPrefix(want, "!"); ok {
			if err == nil || !strings.HasSuffix(err.Error(), wrong) {
				t.Errorf("%s: %v, want %s", expr, err, wrong)
			}
			continue
		}
		if err != nil || !sameFile(t, m[0].HostPath, filepath.Join(p.emptyDir(1, "data"), want)) {
			t.Errorf("%s: %v, want %s", expr, err, want)
		}
	}
}

// Another process swaps a directory for a link to elsewhere a hundred thousand times while
// a part of the volume is opened, made and mounted. Nothing outside the volume is ever
// mounted or made.
//
// Shows: C-1.37.7
func TestC_1_37_7_SwappedLinksNeverLeadOut(t *testing.T) {
	needRoot(t)
	t.Parallel()
	const swaps = 100_000
	p := newPlace(t)
	outside := t.TempDir()
	write(t, filepath.Join(outside, "in", "canary"), "host's")
	var forbidden []os.FileInfo
	for _, path := range []string{outside, outside + "/in", outside + "/in/canary"} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		forbidden = append(forbidden, info)
	}
	s := withUID(spec(empty("data")), uid)
	p.setUp(t, s, 1)
	data := p.emptyDir(1, "data")
	write(t, filepath.Join(data, "dir", "in", "canary"), "container's")
	if err := os.Symlink(outside, filepath.Join(data, "link")); err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer done.Store(true)
		for range swaps {
			if err := unix.Renameat2(unix.AT_FDCWD, data+"/dir", unix.AT_FDCWD, data+"/link", unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	good, bad := 0, 0
	for i := 0; !done.Load(); i++ {
		path := []string{"dir", "dir/in", "dir/in/canary", "dir/new" + fmt.Sprint(i), "link/in"}[i%5]
		at, err := p.bindOne(t, sub(s, "data", path))
		if err != nil {
			bad++
			continue
		}
		good++
		info, err := os.Lstat(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range forbidden {
			if os.SameFile(info, f) {
				t.Fatalf("%s led out of the volume", path)
			}
		}
	}
	wg.Wait()
	t.Logf("%d mounted, %d refused", good, bad)
	if good < 100 || bad < 100 {
		t.Errorf("%d mounted, %d refused: that proves little", good, bad)
	}
	var names []string
	filepath.WalkDir(outside, func(path string, d fs.DirEntry, err error) error {
		names = append(names, d.Name())
		return err
	})
	if len(names) != 3 {
		t.Errorf("outside are now %v", names)
	}
	if text, err := os.ReadFile(outside + "/in/canary"); string(text) != "host's" {
		t.Errorf("the canary: %q %v", text, err)
	}
}

// A FIFO and a socket are mounted as such, without waiting for them.
//
// Shows: C-1.37.7
func TestC_1_37_7_SubPathOfAFIFO(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	s := withUID(spec(empty("data")), uid)
	p.setUp(t, s, 1)
	t.Chdir(p.emptyDir(1, "data")) // a socket's path has to be short
	l, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := unix.Mkfifo("fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "socket"} {
		at, err := p.bindOne(t, sub(s, "data", name))
		if err != nil || !sameFile(t, at, name) {
			t.Errorf("%s: %s %v", name, at, err)
		}
	}
}

// A wrong mount is replaced: the next container sees the present file, whatever its type.
//
// Shows: C-1.37.7
func TestC_1_37_7_WrongMountIsReplaced(t *testing.T) {
	needRoot(t)
	p := newPlace(t)
	s := withUID(spec(configMapVolume("cm", "conf"), empty("data")), uid)
	first := bound(s, configMapObject("conf", map[string]string{"a": "1"}))
	p.setUp(t, first, 1)
	at, err := p.bindOne(t, sub(first, "cm", "a"))
	if err != nil {
		t.Fatal(err)
	}
	next := bound(s, configMapObject("conf", map[string]string{"a": "2"}))
	p.setUp(t, next, 1)
	if text, _ := os.ReadFile(at); string(text) != "1" {
		t.Errorf("a running container's file holds %q, want the old content", text)
	}
	if at, err = p.bindOne(t, sub(next, "cm", "a")); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(at); string(text) != "2" || len(mounts(t, at)) != 1 {
		t.Errorf("holds %q, mounted %d times; want the new content, once", text, len(mounts(t, at)))
	}
	// Two other mounts are there, and busy; then the mount point has the wrong type.
	data := filepath.Join(p.emptyDir(1, "data"), "x")
	write(t, data, "file")
	if _, err := p.bindOne(t, sub(s, "data", "x")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(data); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(data, "y"), "in a directory")
	if at, err = p.bindOne(t, sub(s, "data", "x")); err != nil || !sameFile(t, at, data) {
		t.Fatalf("a file became a directory: %v", err)
	}
	for range 2 {
		mount(t, "tmpfs", at, "tmpfs", 0, "size=64k")
	}
	busy, err := os.Create(filepath.Join(at, "busy"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if at, err = p.bindOne(t, sub(s, "data", "x")); err != nil || !sameFile(t, at, data) || len(mounts(t, at)) != 1 {
		t.Errorf("foreign mounts: %v, mounted %d times", err, len(mounts(t, at)))
	}
}

// The mount of an image has the subPath; the agent makes no file for it.
func TestImageVolumes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := withUID(spec(vol("model", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "registry.example/model:1"}})), uid)
	p.setUp(t, s, 1)
	m, err := p.Mounts(t.Context(), sub(s, "model", "weights/v1"), 1, "c")
	if err != nil || len(m) != 1 || m[0] != (pod.Mount{ContainerPath: "/x", ReadOnly: true, Image: "registry.example/model:1", SubPath: "weights/v1"}) {
		t.Errorf("%+v %v", m, err)
	}
	if exists(t, filepath.Join(p.instance(1), "volumes")) {
		t.Error("something was made for an image")
	}
}

// Errors never contain the expanded expression: it may hold a Secret's values.
//
// Shows: C-1.37.7
func TestC_1_37_7_ErrorsShowExpressionsAsWritten(t *testing.T) {
	p := newPlace(t)
	s := bound(withUID(spec(empty("data"), configMapVolume("cm", "conf")), uid), configMapObject("conf", map[string]string{"a": "b"}))
	p.setUp(t, s, 1)
	write(t, filepath.Join(p.emptyDir(1, "data"), "canary"), "")
	for volume, values := range map[string][]string{
		"data": {"/canary", "..", "canary/..", "canary\x00", "canary/x", "canary" + strings.Repeat("n", 256)},
		"cm":   {"canary", "a/canary"},
	} {
		for _, value := range values {
			s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: volume, MountPath: "/x", SubPathExpr: "$(PASSWORD)"}}
			r := p.request(s, pod.Sandbox{})
			r.Env = []v1.EnvVar{{Name: "PASSWORD", Value: value}}
			_, err := p.Volumes.Mounts(t.Context(), r)
			if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), `volume `+volume+`: subPathExpr "$(PASSWORD)"`) {
				t.Errorf("%s %q: %v", volume, value, err)
			}
		}
	}
}
