package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/node"
)

// Shows: C-1.46.2
func TestReadCPUs_ReservedCPUIsOffline_IsRefusedWithTheDefaultPolicies(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{}
	for _, file := range []string{"core_id", "physical_package_id"} {
		sys["devices/system/cpu/cpu0/topology/"+file] = &fstest.MapFile{Data: []byte("0\n")}
	}
	for reserved, want := range map[string]string{"": "", "0": "", "0-1": "--reserved-cpus: reserved CPUs 1 are not online on this machine, which has 0"} {
		cfg := Config{Config: readonly.Config{Config: config.Default()}}
		cfg.ReservedCPUs = reserved
		a, err := readCPUs(cfg, node.Facts{}, sys)
		if a != nil || want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("reserved %q: %v, %v", reserved, a, err)
		}
	}
}

// An agent that was killed while it wrote leaves one file, which the next one replaces.
//
// Shows: C-1.46.8
func TestSaveCPUs_WriterWasKilled_LeavesOneFileAtMost(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cpu_manager_state.tmp"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := saveCPUs(root)(map[string][]byte{"cpu_manager_state": []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 || entries[0].Name() != "cpu_manager_state" {
		t.Errorf("%v, %v", entries, err)
	}
}

// Shows: C-1.46.8
func TestSaveCPUs_PolicyAllocatesNothing_FileIsRemoved(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	save := saveCPUs(root)
	for _, names := range [][]string{{"cpu_manager_state", "memory_manager_state"}, {"memory_manager_state"}, nil, nil} {
		files := map[string][]byte{}
		for _, name := range names {
			files[name] = []byte("{}")
		}
		if err := save(files); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if !slices.Equal(got, names) {
			t.Errorf("%s, want %s", fmt.Sprint(got), fmt.Sprint(names))
		}
	}
}
