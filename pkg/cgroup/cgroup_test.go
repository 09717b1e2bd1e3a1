package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
)

// cgroupsOf returns Cgroups on this machine's hierarchies, below a root of the test's own,
// which is removed with it. It needs root and cgroupfs.
func cgroupsOf(t *testing.T, edit ...func(*Config)) *Cgroups {
	t.Helper()
	c := Config{
		Root: fmt.Sprintf("/nodectl-test-%d", rand.Uint64()), Node: "n1", RootDir: t.TempDir(),
		Driver: func(context.Context) (bool, error) { return false, nil },
		Limits: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourceMemory: resource.MustParse("1Gi"), resourcePID: resource.MustParse("1000"),
		},
	}
	for _, e := range edit {
		e(&c)
	}
	g := New(c)
	t.Cleanup(func() {
		for _, dir := range rootDirs(t, c.Root) {
			if err := removeTree(dir); err != nil {
				t.Error(err)
			}
		}
	})
	return g
}

// again returns Cgroups with the same configuration, as after a restart of the agent.
func again(g *Cgroups) *Cgroups { return New(g.cfg) }

// mounts are the mount points of this machine's hierarchies, read from the kernel.
func mounts(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[2] == "cgroup" || f[2] == "cgroup2" {
			all = append(all, f[1])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func rootDirs(t *testing.T, root string) (all []string) {
	for _, m := range mounts(t) {
		all = append(all, filepath.Join(m, root))
	}
	return all
}

// shape is a pod from its spec.
func shape(t *testing.T, uid, spec string) *pod.Spec {
	t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

const (
	guaranteed    = `{containers: [{name: a, resources: {requests: {cpu: 500m, memory: 64Mi}, limits: {cpu: 500m, memory: 64Mi}}}]}`
	burstablePod  = `{containers: [{name: a, resources: {requests: {cpu: 250m}, limits: {memory: 32Mi}}}]}`
	bestEffortPod = `{containers: [{name: a}]}`
)

// names lists the cgroups below root in every hierarchy; those missing in some hierarchies
// carry where they are.
func names(t *testing.T, root string) []string {
	t.Helper()
	where := map[string]int{}
	dirs := rootDirs(t, root)
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				where[strings.TrimPrefix(path, dir)]++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for name, n := range where {
		if n != len(dirs) {
			name = fmt.Sprintf("%s in %d", name, n)
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func put(t *testing.T, g *Cgroups, s *pod.Spec) string {
	t.Helper()
	parent, err := g.Ensure(s)
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// value reads a file of a cgroup in the first hierarchy that has it.
func value(t *testing.T, cgroup, file string) string {
	t.Helper()
	for _, m := range mounts(t) {
		if text, err := os.ReadFile(filepath.Join(m, cgroup, file)); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("no %s in %s", file, cgroup)
	return ""
}

// TestC_1_41_1_Tree: pods have the kubelet's cgroups, and after the last one no cgroup is
// left (I6).
//
// Shows: C-1.41.1, C-1.41
func TestC_1_41_1_Tree(t *testing.T) {
	g := cgroupsOf(t)
	root := g.cfg.Root
	a, b, c := shape(t, "aa-1", guaranteed), shape(t, "bb-2", burstablePod), shape(t, "cc-3", bestEffortPod)
	want(t, "none yet", g.Parent(a), "")
	want(t, "guaranteed", put(t, g, a), root+"/kubepods/podaa-1")
	want(t, "burstable", put(t, g, b), root+"/kubepods/burstable/podbb-2")
	want(t, "best effort", put(t, g, c), root+"/kubepods/besteffort/podcc-3")
	want(t, "parent", g.Parent(b), root+"/kubepods/burstable/podbb-2")
	want(t, "parent after a restart", again(g).Parent(c), root+"/kubepods/besteffort/podcc-3")
	want(t, "tree", names(t, root), []string{"", "/kubepods", "/kubepods/besteffort", "/kubepods/besteffort/podcc-3",
		"/kubepods/burstable", "/kubepods/burstable/podbb-2", "/kubepods/podaa-1"})
	for _, s := range []*pod.Spec{a, b, c, a} {
		if err := g.Destroy(s.UID()); err != nil {
			t.Fatal(err)
		}
		want(t, "parent of one that has gone", g.Parent(s), "")
	}
	want(t, "left", names(t, root), []string{})
}

// TestC_1_41_6_NodeAllocatable: all pods together get the node's allocatable resources.
//
// Shows: C-1.41.6
func TestC_1_41_6_NodeAllocatable(t *testing.T) {
	g := cgroupsOf(t)
	put(t, g, shape(t, "a", bestEffortPod))
	all := g.cfg.Root + "/kubepods"
	want(t, "shares of 1500m", value(t, all, "cpu.shares"), 1536)
	want(t, "memory", value(t, all, "memory.limit_in_bytes"), 1<<30)
	want(t, "processes", value(t, all, "pids.max"), 1000)
	want(t, "best effort", value(t, all+"/besteffort", "cpu.shares"), 2)
	want(t, "burstable", value(t, all+"/burstable", "cpu.shares"), 2)
}

// TestF34_CgroupWithoutOurMarkIsLeftAlone: a kubelet's tree with a pod in it does not
// change in any number.
//
// Shows: F34
func TestF34_CgroupWithoutOurMarkIsLeftAlone(t *testing.T) {
	g := cgroupsOf(t)
	for _, dir := range rootDirs(t, g.cfg.Root) {
		if err := os.MkdirAll(filepath.Join(dir, "kubepods/burstable/podother"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := snapshot(t, g.cfg.Root)
	s := shape(t, "mine", burstablePod)
	_, err := g.Ensure(s)
	var foreign *ForeignError
	if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "--cgroup-root /nodectl") || !strings.Contains(err.Error(), "stop the kubelet") ||
		!strings.Contains(err.Error(), "/kubepods") {
		t.Errorf("error %v", err)
	}
	for _, uid := range []string{"mine", "other"} {
		if err := g.Destroy(uid); err != nil {
			t.Error(err)
		}
	}
	removed, err := g.Sweep(nil)
	want(t, "swept", removed, []string{})
	want(t, "sweep", err, nil)
	unchanged(t, g.cfg.Root, before)
}

func unchanged(t *testing.T, root, before string) {
	t.Helper()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(snapshot(t, root), "\n")); diff != "" {
		t.Errorf("it was changed (-before +after):\n%s", diff)
	}
}

// snapshot is all readable data of a tree of cgroups, attributes included.
func snapshot(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range rootDirs(t, root) {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && path == dir {
				return nil
			}
			if err != nil {
				return err
			}
			if d.IsDir() {
				mark, _ := attributeOf(path, attribute)
				var s unix.Stat_t
				if err := unix.Lstat(path, &s); err != nil {
					return err
				}
				fmt.Fprintf(&b, "%s %q %d %o\n", path, mark, s.Ino, s.Mode)
				return nil
			}
			if strings.HasPrefix(filepath.Base(path), "cpuacct.") {
				return nil
			}
			switch filepath.Base(path) { // the kernel's own counts
			case "cpu.stat", "cpu.stat.local", "memory.stat", "memory.numa_stat", "cpu.pressure", "memory.pressure", "io.pressure", "cgroup.stat",
				"memory.usage_in_bytes", "memory.memsw.usage_in_bytes", "memory.kmem.usage_in_bytes",
				"memory.max_usage_in_bytes", "memory.memsw.max_usage_in_bytes", "memory.kmem.max_usage_in_bytes":
				return nil
			}
			text, _ := os.ReadFile(path)
			fmt.Fprintf(&b, "%s %q\n", path, text)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// inside starts a process in a cgroup of every hierarchy that has it, and kills it at the
// end of the test.
func inside(t *testing.T, cgroup string) (end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	for _, m := range mounts(t) {
		procs := filepath.Join(m, cgroup, "cgroup.procs")
		err := os.WriteFile(procs, fmt.Append(nil, cmd.Process.Pid), 0)
		if err != nil && !errors.Is(err, unix.ENOSPC) { // a cpuset without CPUs refuses it
			t.Error(err)
		}
	}
	return end
}
