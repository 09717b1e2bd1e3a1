package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
)

// podGroup returns the cgroup that a pod of a class must be in.
func (s *stage) podGroup(class v1.PodQOSClass, name string) string {
	s.Helper()
	tier := s.tier(class)
	return tier + "/pod" + s.sandbox(name).Metadata.Uid
}

// tier returns the cgroup above the pods of a class.
func (s *stage) tier(class v1.PodQOSClass) string {
	all := s.cgroupRoot() + "/kubepods"
	if class == v1.PodQOSGuaranteed {
		return all
	}
	return all + "/" + strings.ToLower(string(class))
}

// limits are the limits of a cgroup: cpu shares, CPU time in a tenth of a second, bytes,
// processes. -1 is no limit.
type limits struct{ shares, quota, memory, pids int64 }

// limitsOf reads them from the kernel.
func limitsOf(group string) (l limits, err error) {
	number := func(v1File, v2File string, field int) int64 {
		path := filepath.Join("/sys/fs/cgroup", filepath.Dir(v1File), group, filepath.Base(v1File))
		if unified() {
			path = filepath.Join("/sys/fs/cgroup", group, v2File)
		}
		text, e := os.ReadFile(path)
		f := strings.Fields(string(text))
		if e != nil || len(f) <= field {
			err = fmt.Errorf("%s: %q, %v", path, text, e)
			return 0
		}
		n, e := strconv.ParseInt(f[field], 10, 64)
		if f[field] == "max" || n > 1<<60 { // version 1 has the largest number of pages
			return -1
		}
		if e != nil {
			err = e
		}
		return n
	}
	return limits{
		number("cpu/cpu.shares", "cpu.weight", 0), number("cpu/cpu.cfs_quota_us", "cpu.max", 0),
		number("memory/memory.limit_in_bytes", "memory.max", 0), number("pids/pids.max", "pids.max", 0),
	}, err
}

// awaitLimits returns when a cgroup has these limits.
func (s *stage) awaitLimits(group string, want limits) {
	s.Helper()
	if unified() {
		want.shares = int64(cgroups.ConvertCPUSharesToCgroupV2Value(uint64(want.shares)))
	}
	s.eventually(func() error {
		got, err := limitsOf(group)
		if err == nil && got != want {
			err = fmt.Errorf("%s has %+v, want %+v", group, got, want)
		}
		return err
	})
}

// resources is additional YAML for container.
func resources(requests, limits string) string {
	return "resources: {requests: {" + requests + "}, limits: {" + limits + "}}"
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

// podGroups returns the cgroups of pods below the stage's, in every hierarchy.
func (s *stage) podGroups() (all []string) {
	for _, g := range s.node.Cgroups() {
		if strings.Contains(g, s.cgroupRoot()+"/") && strings.HasPrefix(filepath.Base(g), "pod") {
			all = append(all, g)
		}
	}
	return all
}
