package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	cgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/manager"
)

// host has the cgroup hierarchies of this machine.
type host struct {
	unified bool // only cgroup v2
	// roots has the mount point of each controller's hierarchy; "" is the hierarchy of cgroup v2.
	roots map[string]string
	// sizes are the sizes of huge pages, if they can be limited.
	sizes []string
	pids  bool // processes can be limited
}

// findHost reads this machine's hierarchies.
func findHost() (*host, error) {
	h := &host{unified: cgroups.IsCgroup2UnifiedMode(), roots: map[string]string{}}
	var have []string
	if h.unified {
		const root = "/sys/fs/cgroup"
		text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("look for cgroups: %w", err)
		}
		h.roots[""] = root
		have = strings.Fields(string(text))
	} else {
		const probe = "/x"
		m, err := fs.NewManager(&cgroups.Cgroup{Path: probe, Resources: &cgroups.Resources{SkipDevices: true}}, nil)
		if err != nil {
			return nil, fmt.Errorf("look for cgroups: %w", err)
		}
		for controller, dir := range m.GetPaths() {
			h.roots[controller] = strings.TrimSuffix(dir, probe)
			have = append(have, controller)
		}
	}
	for _, needed := range []string{"cpu", "memory"} {
		if !slices.Contains(have, needed) {
			return nil, fmt.Errorf("the kernel's %s cgroup controller is missing: mount or enable it", needed)
		}
	}
	h.pids = slices.Contains(have, "pids")
	if slices.Contains(have, "hugetlb") {
		h.sizes = cgroups.HugePageSizes()
	}
	return h, nil
}

// paths returns the directories of a cgroup, by controller.
func (h *host) paths(cgroup string) map[string]string {
	all := make(map[string]string, len(h.roots))
	for controller, root := range h.roots {
		all[controller] = filepath.Join(root, cgroup)
	}
	return all
}

// dirs returns the directories of a cgroup, sorted, each once: a hierarchy may have several controllers.
func (h *host) dirs(cgroup string) []string {
	var all []string
	for _, root := range h.roots {
		all = append(all, filepath.Join(root, cgroup))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// manager returns the library's manager of a cgroup. If only is not nil, it manages only these
// directories.
func (h *host) manager(n name, systemd bool, only []string) (cgroups.Manager, error) {
	at := n.path(systemd)
	c := &cgroups.Cgroup{Systemd: systemd, Path: at, Resources: &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true}}
	if systemd {
		c.Path, c.Name, c.Parent = "", path.Base(at), path.Base(path.Dir(at))
		if c.Parent == "/" {
			c.Parent = "-.slice"
		}
	}
	paths := h.paths(at)
	for controller, dir := range paths {
		if only != nil && !slices.Contains(only, dir) {
			delete(paths, controller)
		}
	}
	return manager.NewWithPaths(c, paths)
}

// has returns the current limits of a cgroup. A number that is missing or too large counts as unlimited,
// so that beyond returns no growth for it.
func (h *host) has(cgroup string) (limits, error) {
	paths := h.paths(cgroup)
	if h.unified {
		return readV2(paths[""])
	}
	return readV1(paths["cpu"], paths["memory"])
}

func readV1(cpu, memory string) (l limits, err error) {
	l.shares = uint64(number(cpu, "cpu.shares", &err))
	l.quota = number(cpu, "cpu.cfs_quota_us", &err)
	l.period = number(cpu, "cpu.cfs_period_us", &err)
	l.memory = number(memory, "memory.limit_in_bytes", &err)
	return l, err
}

// readV2 converts cgroup v2's weight to the smallest shares that give this weight.
func readV2(dir string) (l limits, err error) {
	l.shares = uint64(number(dir, "cpu.weight", &err))
	l.shares = minShares + ((l.shares-1)*(maxShares-minShares)+maxWeight-2)/(maxWeight-1)
	l.quota, l.period = quotaV2(dir, &err)
	l.memory = number(dir, "memory.max", &err)
	return l, err
}

// quotaV2 reads "50000 100000", or "max 100000".
func quotaV2(dir string, failed *error) (quota, period int64) {
	text, err := cgroups.ReadFile(dir, "cpu.max")
	if err != nil {
		*failed = errors.Join(*failed, err)
	}
	if _, err := fmt.Sscan(text, &quota, &period); err != nil {
		return unlimited, 0
	}
	return quota, period
}

// guarded returns the protected memory of a cgroup of cgroup v2, in bytes.
func guarded(dir string) int64 {
	var failed error
	return max(number(dir, memoryMin, &failed), number(dir, memoryLow, &failed), 0)
}

// fits returns an error if a cgroup uses limit bytes of memory or more. Page cache that the kernel can
// reclaim does not count. If the usage cannot be read, fits returns nil, and the kernel decides.
func (h *host) fits(cgroup string, limit int64) error {
	dir, usage, idle := h.paths(cgroup)["memory"], "memory.usage_in_bytes", "total_inactive_file "
	if h.unified {
		dir, usage, idle = h.paths(cgroup)[""], "memory.current", "inactive_file "
	}
	var failed error
	used := number(dir, usage, &failed)
	stat, _ := cgroups.ReadFile(dir, "memory.stat")
	for line := range strings.Lines(stat) {
		if text, ok := strings.CutPrefix(line, idle); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			used -= n
		}
	}
	if failed != nil || used < limit {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)", limit, used)
}

// number returns the first number in a cgroup's file, unlimited for "max". It adds an error to failed.
func number(dir, file string, failed *error) int64 {
	text, err := cgroups.ReadFile(dir, file)
	if err != nil {
		*failed = errors.Join(*failed, err)
		return unlimited
	}
	var n int64
	if _, err := fmt.Sscan(text, &n); err != nil {
		return unlimited // "max", or more than any machine has
	}
	return n
}
