package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// overmounted reports whether path has another file system than its parent directory.
func overmounted(path string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Lstat(path, &here); err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Lstat(filepath.Dir(path), &above); err != nil {
		return false, &os.PathError{Op: "stat", Path: filepath.Dir(path), Err: err}
	}
	return here.Dev != above.Dev, nil
}

// mountMemory mounts a tmpfs on path, unless there is one. size is in bytes, 0 for the
// kernel's default. It disables swap for it if the kernel supports that (C-1.37.10).
func (v *Volumes) mountMemory(path string, size int64) (made bool, err error) {
	if mounted, err := overmounted(path); err != nil || mounted {
		return false, err
	}
	limit := ""
	if size > 0 {
		limit = fmt.Sprintf("size=%d", size)
	}
	err = unix.Mount("tmpfs", path, "tmpfs", 0, strings.TrimPrefix(limit+",noswap", ","))
	if err != nil {
		err = unix.Mount("tmpfs", path, "tmpfs", 0, limit)
		if err == nil && swapIsOn() {
			v.log.Warn("A volume in memory may be written to swap", "path", path)
		}
	}
	if err != nil {
		return false, fmt.Errorf("mount a tmpfs on %s: %w", path, err)
	}
	return true, nil
}

// swapIsOn reports whether the node uses swap.
func swapIsOn() bool {
	text, err := os.ReadFile("/proc/swaps")
	return err == nil && strings.Count(strings.TrimSpace(string(text)), "\n") > 0
}

// memorySize returns the size limit of a volume in memory, 0 for none: the smallest of the node's
// allocatable memory, the pod's limit and the volume's limit (C-1.37.10).
func (s *setting) memorySize(limit *resource.Quantity) int64 {
	size := s.cfg.Allocatable.Memory().Value()
	smaller := func(n int64) {
		if n > 0 && (size <= 0 || n < size) {
			size = n
		}
	}
	smaller(memoryLimit(s.want.Pod))
	if limit != nil {
		smaller(limit.Value())
	}
	return max(size, 0)
}

// memoryLimit returns the memory limit of the pod's cgroup, 0 for none: the pod's own, or the
// sum of its containers' limits if each has one.
func memoryLimit(p *v1.Pod) int64 {
	overhead := p.Spec.Overhead.Memory().Value()
	if p.Spec.Resources != nil && p.Spec.Resources.Limits.Memory().Value() > 0 {
		return p.Spec.Resources.Limits.Memory().Value() + overhead
	}
	var sidecars, peak int64
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		n := c.Resources.Limits.Memory().Value()
		if n <= 0 {
			return 0
		}
		peak = max(peak, sidecars+n)
		if pod.Restartable(c) {
			sidecars += n
		}
	}
	sum := sidecars
	for i := range p.Spec.Containers {
		n := p.Spec.Containers[i].Resources.Limits.Memory().Value()
		if n <= 0 {
			return 0
		}
		sum += n
	}
	return max(sum, peak) + overhead
}

// mountHugePages mounts huge pages of one size on path, unless they are mounted.
func mountHugePages(path, size string) (made bool, err error) {
	if mounted, err := overmounted(path); err != nil || mounted {
		return false, err
	}
	if err := unix.Mount("nodev", path, "hugetlbfs", 0, "pagesize="+size); err != nil {
		return false, fmt.Errorf("mount huge pages of %s on %s: %w", size, path, err)
	}
	return true, nil
}

// hugePageSize returns the page size of a medium. "HugePages" means the only size that the pod
// requests. "HugePages-<size>" means that size, which the pod has to request.
func hugePageSize(p *v1.Pod, medium string) (string, error) {
	var size *resource.Quantity
	if text, ok := strings.CutPrefix(medium, string(v1.StorageMediumHugePagesPrefix)); ok {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return "", fmt.Errorf("medium %s: %w", medium, err)
		}
		size = &q
	}
	lists := []v1.ResourceList{}
	if p.Spec.Resources != nil {
		lists = append(lists, p.Spec.Resources.Requests)
	}
	for _, c := range append(append([]v1.Container{}, p.Spec.Containers...), p.Spec.InitContainers...) {
		lists = append(lists, c.Resources.Requests)
	}
	var found *resource.Quantity
	for _, list := range lists {
		for name := range list {
			text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
			if !ok {
				continue
			}
			q, err := resource.ParseQuantity(text)
			switch {
			case err != nil:
				return "", fmt.Errorf("resource %s: %w", name, err)
			case size != nil && size.Cmp(q) != 0:
			case found != nil && found.Cmp(q) != 0:
				return "", fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium)
			default:
				found = &q
			}
		}
	}
	if found == nil {
		return "", fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
	}
	return found.String(), nil
}
