package node

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Read looks at the machine. The disk is the one that holds dir, which has to be
// there.
func Read(dir string) (Facts, error) { return read("/", dir) }

func read(root, dir string) (Facts, error) {
	proc, sys := filepath.Join(root, "proc"), filepath.Join(root, "sys")
	f := Facts{OS: runtime.GOOS, Arch: runtime.GOARCH, Capacity: v1.ResourceList{}}
	var err error
	count := func(name v1.ResourceName, format resource.Format, n int64, e error) {
		f.Capacity[name] = *resource.NewQuantity(n, format)
		err = cmp.Or(err, e)
	}
	f.Kernel, err = kernel(proc)
	f.AppArmor = appArmor(sys)
	n, e := processors(sys)
	count(v1.ResourceCPU, resource.DecimalSI, n, e)
	n, e = memory(proc, "MemTotal")
	count(v1.ResourceMemory, resource.BinarySI, n, e)
	n, e = disk(dir)
	count(v1.ResourceEphemeralStorage, resource.BinarySI, n, e)
	f.PIDs, e = processIDs(proc)
	f.Swap, _ = memory(proc, "SwapTotal") // no line is no swap
	identify(root, &f)
	if err = cmp.Or(err, e, hugePages(sys, f.Capacity)); err != nil {
		return Facts{}, fmt.Errorf("read facts of this machine: %w", err)
	}
	return f, nil
}

func kernel(proc string) (string, error) {
	data, err := os.ReadFile(filepath.Join(proc, "sys/kernel/osrelease"))
	return strings.TrimSpace(string(data)), err
}

// appArmor uses the check of container runtimes: it reports false where they would not use
// AppArmor. Where it cannot be asked, it is not there either.
func appArmor(sys string) bool {
	if _, err := os.Stat(filepath.Join(sys, "kernel/security/apparmor")); err != nil {
		return false
	}
	data, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	return err == nil && bytes.HasPrefix(data, []byte("Y"))
}

// processors counts those that are online, whichever of them this process may
// use: a pinned agent does not shrink the node. Where the kernel does not list
// them, those of this process count.
func processors(sys string) (int64, error) {
	path := filepath.Join(sys, "devices/system/cpu/online")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return int64(runtime.NumCPU()), nil
	}
	if err != nil {
		return 0, err
	}
	var n int64
	for span := range strings.SplitSeq(strings.TrimSpace(string(data)), ",") { // 0-3,8,10-11
		first, last, ok := strings.Cut(span, "-")
		if !ok {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		b, err := strconv.ParseUint(last, 10, 31)
		if err != nil || b < a {
			return 0, fmt.Errorf("%s: %q is not a range of processors", path, span)
		}
		n += int64(b - a + 1)
	}
	return n, nil
}

// memory returns a line of meminfo, in bytes.
func memory(proc, line string) (int64, error) {
	path := filepath.Join(proc, "meminfo")
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) == 3 && words[0] == line+":" && words[2] == "kB" {
			kib, err := strconv.ParseInt(words[1], 10, 53)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s: no %s", path, line)
}

// processIDs returns the lesser of the kernel's two limits, 0 where it has none.
func processIDs(proc string) (least int64, err error) {
	for _, name := range []string{"pid_max", "threads-max"} {
		path := filepath.Join(proc, "sys/kernel", name)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return least, nil
}

// hugePages adds each size that the kernel has; a kernel without any has no
// directory.
func hugePages(sys string, to v1.ResourceList) error {
	sizes, err := filepath.Glob(filepath.Join(sys, "kernel/mm/hugepages/hugepages-*kB"))
	if err != nil {
		return err
	}
	for _, dir := range sizes {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB")
		kib, err := strconv.ParseInt(text, 10, 53)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "nr_hugepages"))
		if err != nil {
			return err
		}
		pages, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		size := resource.NewQuantity(kib<<10, resource.BinarySI)
		to[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(pages*kib<<10, resource.BinarySI)
	}
	return nil
}

// disk returns the size of the file system that holds dir, in bytes.
func disk(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(s.Blocks) * cmp.Or(int64(s.Frsize), int64(s.Bsize)), nil
}
