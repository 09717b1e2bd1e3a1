package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/opencontainers/cgroups/systemd"
	v1 "k8s.io/api/core/v1"
)

// LimitReserved sets the limits of a cgroup of the machine to its reservation (C-1.41.11). With
// compressible, it sets only the CPU shares. The cgroup has to exist. It needs no mark, because the
// configuration names it. On a machine with systemd, a name that ends in .slice is a slice of systemd.
// LimitReserved then sets the properties of the slice, so that systemd does not undo the limits.
func (c *Cgroups) LimitReserved(cgroup string, list v1.ResourceList, compressible bool) error {
	h, err := c.host()
	if err != nil {
		return err
	}
	slice := strings.HasSuffix(cgroup, sliceSuffix) && systemd.IsRunningSystemd()
	n, err := parseRoot(cgroup, slice)
	if err != nil {
		return fmt.Errorf("limit cgroup %s: %w", cgroup, err)
	}
	l := c.cfg.ofReserved(list, compressible, h.sizes)
	for controller, dir := range h.paths(n.path(slice)) {
		if !l.needs(controller) && !h.unified {
			continue
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("limit cgroup %s: %s does not exist", cgroup, dir)
		}
	}
	return c.set(&tree{host: h, systemd: slice}, n, l)
}

// ofReserved returns the limits of a cgroup with the reservation list. With memory QoS, its memory is
// also protected.
func (c Config) ofReserved(list v1.ResourceList, compressible bool, sizes []string) limits {
	l := ofNode(list, sizes)
	if compressible {
		return limits{shares: l.shares}
	}
	if c.Enforce.MemoryQoS != nil && l.memory > 0 {
		l.guard = guard(memoryMin, l.memory)
	}
	return l
}

// needs reports whether a limit belongs to a controller of cgroup v1.
func (l limits) needs(controller string) bool {
	switch controller {
	case "cpu":
		return l.shares != 0
	case "memory":
		return l.memory != 0
	case "pids":
		return l.pids != 0
	case "hugetlb":
		return len(l.pages) > 0
	}
	return false
}
