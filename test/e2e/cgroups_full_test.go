//go:build full

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// TestForeignCgroups: where a kubepods cgroup of another program stands below the root, the
// agent puts no pod into it, reports that the cgroup is not its own, and leaves it unchanged.
//
// Shows: F34
func TestForeignCgroups(t *testing.T) {
	s := parallelStage(t)
	group := s.cgroupRoot() + "/kubepods/burstable/pod0f4e7a52-0000-4000-8000-000000000001"
	var theirs []string
	for _, controller := range []string{"cpu", "memory", "pids"} {
		dir := filepath.Join("/sys/fs/cgroup", controller, group)
		if unified() {
			dir = filepath.Join("/sys/fs/cgroup", group)
		}
		s.must(os.MkdirAll(dir, 0o755))
		theirs = append(theirs, dir)
	}
	before, err := limitsOf(s.cgroupRoot() + "/kubepods")
	s.must(err)
	s.write("web.yaml", manifest("web", []string{container("main", "forever", resources("cpu: 100m", "memory: 32Mi"))}))
	s.serve()
	words := []string{s.cgroupRoot() + "/kubepods is not nodectl's", filepath.Base(group), "--cgroup-root"}
	s.awaitStatus("web", "refused", func(st v1.PodStatus) bool { return holds(waiting(st, "main").Message, words) })
	if n := len(s.sandboxes()); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
	if after, err := limitsOf(s.cgroupRoot() + "/kubepods"); err != nil || after != before {
		t.Errorf("their group had %+v, has %+v (%v)", before, after, err)
	}
	for _, dir := range theirs { // they leave
		for range strings.Count(group, "/") - strings.Count(s.cgroupRoot(), "/") {
			s.must(os.Remove(dir))
			dir = filepath.Dir(dir)
		}
		if unified() {
			break
		}
	}
	s.awaitRunning("web", "main")
}

// TestC_1_34_ResizeOrder: on an increase, a running pod's cgroup grows before the
// container's; on a decrease, it shrinks after. It is never smaller than the container's.
//
// Shows: C-1.34
func TestC_1_34_ResizeOrder(t *testing.T) {
	s := parallelStage(t)
	var group string
	seen := make(chan limits, 10)
	s.through(criproxy.Hooks{Before: func(c criproxy.Call) {
		if c.Method == "UpdateContainerResources" {
			if l, err := limitsOf(group); err == nil {
				seen <- l
			}
		}
	}})
	text := func(cpu, memory string) string {
		both := "cpu: " + cpu + ", memory: " + memory
		return manifest("web", []string{container("main", "forever", resources(both, both))})
	}
	s.write("web.yaml", text("100m", "32Mi"))
	s.serve()
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	group = s.podGroup(v1.PodQOSGuaranteed, "web")
	s.awaitLimits(group, limits{102, 10000, 32 << 20, -1})
	for _, step := range []struct {
		cpu, memory  string
		during, then limits // of the pod
	}{
		{"200m", "64Mi", limits{204, 20000, 64 << 20, -1}, limits{204, 20000, 64 << 20, -1}},
		{"100m", "32Mi", limits{204, 20000, 64 << 20, -1}, limits{102, 10000, 32 << 20, -1}},
	} {
		s.write("web.yaml", text(step.cpu, step.memory))
		got := wait.Receive(t, "the call that gives the container "+step.memory, seen)
		if got.memory < step.during.memory || got.quota < step.during.quota {
			t.Errorf("while the container was given %s: %+v, want %+v", step.memory, got, step.during)
		}
		s.awaitLimits(group, step.then)
		s.awaitStatus("web", "resized", func(st v1.PodStatus) bool {
			c := containerStatus(st, "main")
			return resizeWord(st) == "" && c.Resources != nil && c.Resources.Limits.Memory().String() == step.memory
		})
	}
	s.untouched("web", was)
}

// TestC_1_34_CgroupTree: pods of the three classes and their containers are in the kubelet's
// cgroup tree, with its values. The class's CPU share follows its pods. When the pods are
// removed, so are their cgroups.
//
// Shows: C-1.34
func TestC_1_34_CgroupTree(t *testing.T) {
	s := parallelStage(t)
	same := resources("cpu: 200m, memory: 64Mi", "cpu: 200m, memory: 64Mi")
	s.write("g.yaml", manifest("g", []string{container("main", "forever", same)}))
	s.write("b.yaml", manifest("b", []string{
		container("main", "forever", resources("cpu: 100m, memory: 16Mi", "memory: 32Mi")),
		container("side", "forever", resources("cpu: 50m", "cpu: 300m, memory: 16Mi")),
	}))
	s.write("e.yaml", manifest("e", []string{container("main", "forever")}))
	s.serve("--pod-pids-limit", "123")
	classes := map[string]v1.PodQOSClass{"g": v1.PodQOSGuaranteed, "b": v1.PodQOSBurstable, "e": v1.PodQOSBestEffort}
	groups := make(map[string]string)
	for name, class := range classes {
		containers := []string{"main"}
		if name == "b" {
			containers = []string{"main", "side"}
		}
		now := s.awaitRunning(name, containers...)
		groups[name] = s.podGroup(class, name)
		for _, c := range containers {
			inside := false
			for _, g := range s.node.Processes(now[c].id)[0].Cgroups {
				inside = inside || filepath.Dir(g) == groups[name]
			}
			if !inside {
				t.Errorf("%s/%s is in %v, want one in %s", name, c, s.node.Processes(now[c].id)[0].Cgroups, groups[name])
			}
		}
		if st := s.awaitReady(name, true); st.QOSClass != class {
			t.Errorf("%s is reported as %s", name, st.QOSClass)
		}
	}
	s.awaitLimits(groups["g"], limits{204, 20000, 64 << 20, 123})
	s.awaitLimits(groups["b"], limits{153, -1, 48 << 20, 123})
	s.awaitLimits(groups["e"], limits{2, -1, -1, 123})
	tier := func(class v1.PodQOSClass, shares int64) {
		t.Helper()
		s.awaitLimits(s.tier(class), limits{shares, -1, -1, -1})
	}
	tier(v1.PodQOSBurstable, 153)
	tier(v1.PodQOSBestEffort, 2)
	for _, name := range []string{"g", "b", "e"} {
		s.remove(name + ".yaml")
		s.awaitGone(name)
		if left := s.podGroups(); strings.Contains(strings.Join(left, "\n"), groups[name]) {
			t.Errorf("%s is gone, and left %v", name, left)
		}
		if name == "b" {
			tier(v1.PodQOSBurstable, 2)
		}
	}
	s.eventually(func() error { // after the last pod, the cgroups above it
		all, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", s.cgroupRoot(), "kubepods"))
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("cgroups are left: %v", all)
		}
		return err
	})
	s.nothingLeft()
}
