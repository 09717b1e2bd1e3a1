package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cgroups "github.com/opencontainers/cgroups"
)

// TestFits_LimitBelowUsage_IsRefused: page cache that the kernel can reclaim does not count.
//
// Shows: C-1.34.4
func TestFits_LimitBelowUsage_IsRefused(t *testing.T) {
	cgroups.TestMode = true // makes the library read plain files
	defer func() { cgroups.TestMode = false }()
	for name, unified := range map[string]bool{"v1": false, "v2": true} {
		dir := t.TempDir()
		h := &host{unified: unified, roots: map[string]string{"": dir, "memory": dir}}
		if err := h.fits("/", 1); err != nil {
			t.Errorf("%s: usage cannot be read: %v", name, err)
		}
		for file, text := range map[string]string{
			"memory.current": "1000\n", "memory.usage_in_bytes": "1000\n", "memory.stat": "inactive_file 300\ntotal_inactive_file 300\nactive_file 5\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.fits("/", 701); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := h.fits("/", 700); err == nil || !strings.Contains(err.Error(), "pod memory limit (700) below current usage (700)") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
