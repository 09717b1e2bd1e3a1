package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// podGroups returns the cgroups of pods below the stage's, in every hierarchy.
func (s *stage) podGroups() (all []string) {
	for _, g := range s.node.Cgroups() {
		if strings.Contains(g, s.cgroupRoot()+"/") && strings.HasPrefix(filepath.Base(g), "pod") {
			all = append(all, g)
		}
	}
	return all
}
