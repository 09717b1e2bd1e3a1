package pod

import (
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// CPUShares returns the shares of CPU time that cgroup v1 is given for so many
// thousandths of a CPU, within the kernel's bounds (C-1.22.14).
func CPUShares(milli int64) int64 {
	const least, most = 2, 262144
	return min(max(milli*1024/1000, least), most)
}

// HugePages returns what a list has of huge pages, in bytes, by size as PageSize
// names it.
func HugePages(list v1.ResourceList) map[string]int64 {
	all := map[string]int64{}
	for name, q := range list {
		if text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			if size, err := resource.ParseQuantity(text); err == nil {
				all[PageSize(size.Value())] = max(q.Value(), 0)
			}
		}
	}
	return all
}

// PageSize names a size of pages, in bytes, as the kernel's files do: "2MB", "1GB".
func PageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB"}
	i := 0
	for ; bytes > 0 && bytes%1024 == 0 && i < len(units)-1; i++ {
		bytes /= 1024
	}
	return strconv.FormatInt(bytes, 10) + units[i]
}
