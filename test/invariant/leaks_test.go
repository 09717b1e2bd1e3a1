package invariant

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// cgroup makes a cgroup in a hierarchy that accepts processes, until the test ends, and
// returns its directory.
func cgroup(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[2], "cgroup") || strings.Contains(f[3], "cpuset") {
			continue
		}
		dir := filepath.Join(f[1], path)
		if os.MkdirAll(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for ; dir != f[1]; dir = filepath.Dir(dir) {
				if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
					t.Error(err)
				}
			}
		})
		return dir
	}
	t.Fatal("a test of what is in cgroups needs root and a cgroup tree")
	return ""
}

// TestI6_WhatIsLeftOfAPod: leaks of a removed pod are found in every place.
//
// Shows: I6
func TestI6_WhatIsLeftOfAPod(t *testing.T) {
	dir, uid, parent := t.TempDir(), fmt.Sprintf("uid-%d", os.Getpid()), fmt.Sprintf("/ndt-invariant-%d", os.Getpid())
	s := Scope{
		Node: &node.Node{RunDir: filepath.Join(dir, "run"), CgroupParent: parent}, History: &History{},
		Root: filepath.Join(dir, "root"), Logs: filepath.Join(dir, "log", "pods"),
	}
	web := Life{Pod: "web", UID: uid}
	left := func(now shown) string {
		var lines []string
		for _, v := range s.leaks([]Life{web}, now) {
			if v.Promise != "I6" || v.Pod != "web" {
				t.Errorf("found %s", v)
			}
			lines = append(lines, v.What)
		}
		return strings.Join(lines, "\n")
	}
	touch := func(path ...string) string {
		at := filepath.Join(path...)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		return at
	}
	touch(s.Root, "pods", "uid-of-another")
	touch(s.Logs, "default_other_uid-of-another")
	touch(filepath.Dir(s.Logs), "containers", "web2_default_main.log")
	if got := left(shown{}); got != "" {
		t.Fatalf("found\n%s\nof a pod that left nothing", got)
	}
	mount := touch(dir, "mnt", uid)
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal("a test of what is mounted needs root: ", err)
	}
	unmount := sync.OnceFunc(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(unmount)
	places := []string{
		mount,
		cgroup(t, filepath.Join(parent, "pod"+uid)),
		touch(s.Root, "pods", uid),
		touch(s.Logs, "default_web_"+uid),
		touch(filepath.Dir(s.Logs), "containers", "web_default_main.log"),
	}
	got := left(shown{})
	for _, p := range places {
		if !strings.Contains(got, "is gone, and left "+p) {
			t.Errorf("%s is not missed; found\n%s", p, got)
		}
	}
	if n := strings.Count(got, "is gone"); n != len(places) {
		t.Errorf("found %d, want %d:\n%s", n, len(places), got)
	}
	if got := left(shown{boxes: []*cri.PodSandbox{box("web", "b1", false)}}); got != "" {
		t.Errorf("found\n%s\nof a pod that the runtime shows", got)
	}
	s.History.Want("web", &v1.Pod{})
	if got := left(shown{}); got != "" {
		t.Errorf("found\n%s\nof a pod that is wanted", got)
	}
	s.History.Away("web")
	unmount()
	if got := left(shown{}); strings.Contains(got, mount) || !strings.Contains(got, places[1]) {
		t.Errorf("after one was taken away found\n%s", got)
	}
}

// TestI1_AProcessOutlivesItsContainer: the kernel's state counts, not the runtime's.
//
// Shows: I1
func TestI1_AProcessOutlivesItsContainer(t *testing.T) {
	id, parent := fmt.Sprintf("c%063d", os.Getpid()), fmt.Sprintf("/ndt-invariant-%d", os.Getpid())
	group := cgroup(t, filepath.Join(parent, "pod", id))
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = c.Process.Kill()
		_ = c.Wait() // it was killed
	})
	t.Cleanup(end) // before the cgroup is removed
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(fmt.Sprint(c.Process.Pid)), 0o600); err != nil {
		t.Fatal("a test of what is in cgroups needs root: ", err)
	}
	s := Scope{Node: &node.Node{}}
	found := func(id string, state cri.ContainerState) []Violation {
		return s.processes(shown{containers: []*cri.Container{record("web", id, "b1", 1, state)}})
	}
	got := found(id, cri.ContainerState_CONTAINER_EXITED)
	if want := fmt.Sprintf("its process %d lives: [sleep 600]", c.Process.Pid); len(got) != 1 || got[0].Promise != "I1" || got[0].Pod != "web" || !strings.Contains(got[0].What, want) {
		t.Errorf("found %v, want %q", got, want)
	}
	if got := found(id, cri.ContainerState_CONTAINER_RUNNING); len(got) != 0 {
		t.Errorf("found %v of a container that runs", got)
	}
	if got := found(id[1:], cri.ContainerState_CONTAINER_EXITED); len(got) != 0 {
		t.Errorf("found %v of another container", got)
	}
	end()
	if got := found(id, cri.ContainerState_CONTAINER_EXITED); len(got) != 0 {
		t.Errorf("found %v of a container whose process has ended", got)
	}
}
