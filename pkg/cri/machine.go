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

// thisMachine reads the kernel's features once; a feature that the kernel does not report counts as
// missing.
func thisMachine() machine {
	const cgroup = "/sys/fs/cgroup"
	m := machine{memory: meminfo("MemTotal"), swapBytes: meminfo("SwapTotal"), pageSize: int64(os.Getpagesize()), hugePages: hugePages("/sys/kernel/mm/hugepages")}
	var s unix.Statfs_t
	m.unified = unix.Statfs(cgroup, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
	limit := filepath.Join(cgroup, "memory/memory.memsw.limit_in_bytes")
	if m.unified {
		limit = filepath.Join(cgroup, ownCgroup(), "memory.swap.max") // the root cgroup has none
	}
	_, err := os.Stat(limit)
	m.swap = err == nil
	return m
}

// ownCgroup is the cgroup v2 path of this process.
func ownCgroup() string {
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	return ""
}

// hugePages returns the kernel's sizes of huge pages, as its cgroup files name them. The
// order is that of its directory, as in the kubelet.
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

// meminfo is a number of /proc/meminfo in bytes, 0 if the kernel does not report it.
func meminfo(name string) int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
