package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/config"
)

// TestStartable_RequirementIsMissing_NamesTheValue: serve does not start on a machine that lacks a requirement, and
// the error has the value found.
func TestStartable_RequirementIsMissing_NamesTheValue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	says := func(err error, text string) {
		t.Helper()
		if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
	for name, value := range map[string]string{"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000"} {
		write(name, value+"\n")
	}
	says(kernelDefaults(dir), "")
	write("kernel/panic", "0\n")
	says(kernelDefaults(dir), "--protect-kernel-defaults: kernel.panic is 0, not 10")
	if err := os.Remove(filepath.Join(dir, "vm/panic_on_oom")); err != nil {
		t.Fatal(err)
	}
	says(kernelDefaults(dir), "vm.panic_on_oom cannot be read; kernel.panic is 0")

	const head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	says(noSwap(write("swaps", head)), "")
	says(noSwap(filepath.Join(dir, "none")), "")
	says(noSwap(dir), "--fail-swap-on: read ")
	says(noSwap(write("swaps", head+"/dev/sda2    partition 1 0 -2\n")), "--fail-swap-on: swap is on: /dev/sda2")

	says(cgroup2(dir), "has no cgroup v2")
	write("cgroup.controllers", "cpu")
	says(cgroup2(dir), "")

	root := config.Config{RootDir: t.TempDir()}
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root.RootDir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	says(ownRoot(root), "")
	touch("cpu_manager_state")
	says(ownRoot(root), "is a kubelet's: cpu_manager_state is there")
	touch("lock") // the file node-name of an agent was lost
	says(ownRoot(root), "")
}
