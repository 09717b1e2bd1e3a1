package cri

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// thisMachine looks once at what the kernel has; what it does not say is not there.
func thisMachine() machine {
	const cgroup = "/sys/fs/cgroup"
	m := machine{memory: nodeMemory(), hugePages: hugePages("/sys/kernel/mm/hugepages")}
	var s unix.Statfs_t
	m.unified = unix.Statfs(cgroup, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
	limit := filepath.Join(cgroup, "memory/memory.memsw.limit_in_bytes")
	if m.unified {
		limit = filepath.Join(cgroup, ownCgroup(), "memory.swap.max") // the root has none
	}
	_, err := os.Stat(limit)
	m.swap = err == nil
	return m
}

// ownCgroup is where this process is on cgroup v2.
func ownCgroup() string {
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	return ""
}

// hugePages returns the sizes of huge pages that the kernel has, as its cgroup
// files name them, in the order of its directory: so does the kubelet.
func hugePages(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(0)
	var sizes []string
	for _, name := range names {
		text, ok := strings.CutPrefix(name, "hugepages-")
		kib, err := strconv.ParseInt(strings.TrimSuffix(text, "kB"), 10, 53)
		if ok && err == nil {
			sizes = append(sizes, pod.PageSize(kib<<10))
		}
	}
	return sizes
}

// nodeMemory is the machine's memory in bytes, 0 when the kernel does not say.
func nodeMemory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
