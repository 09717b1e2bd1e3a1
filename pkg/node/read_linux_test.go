package node

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// TestThisMachine compares the facts with the output of the system's own programs.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	says := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return strings.TrimSpace(string(out))
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if f.OS != "linux" || f.Arch != runtime.GOARCH {
		t.Errorf("system %s/%s", f.OS, f.Arch)
	}
	if want := says("uname", "-r"); f.Kernel != want {
		t.Errorf("kernel %q, uname says %q", f.Kernel, want)
	}
	if want := min(number(says("sysctl", "-n", "kernel.pid_max")), number(says("sysctl", "-n", "kernel.threads-max"))); f.PIDs != want {
		t.Errorf("%d processes, want %d", f.PIDs, want)
	}
	blocks := strings.Fields(says("df", "--block-size=1", "--output=size", dir))
	for name, want := range map[v1.ResourceName]int64{
		v1.ResourceCPU:              number(says("getconf", "_NPROCESSORS_ONLN")),
		v1.ResourceMemory:           number(says("getconf", "_PHYS_PAGES")) * int64(os.Getpagesize()),
		v1.ResourceEphemeralStorage: number(blocks[len(blocks)-1]),
	} {
		if q := f.Capacity[name]; q.Value() != want || want <= 0 {
			t.Errorf("%s: %s, want %d", name, &q, want)
		}
	}
}

// machine writes the files of a machine.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func rich() map[string]string {
	return map[string]string{
		"proc/sys/kernel/osrelease":                                "5.15.0-1084-gcp\n",
		"proc/sys/kernel/pid_max":                                  "4194304\n",
		"proc/sys/kernel/threads-max":                              "3000\n",
		"proc/meminfo":                                             "MemFree:        19927204 kB\nMemTotal:       16384 kB\n",
		"sys/devices/system/cpu/online":                            "0-3,8,10-11\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "3\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
		"sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages":      "1\n",
	}
}

func TestAnotherMachine(t *testing.T) {
	t.Parallel()
	root := machine(t, rich())
	f, err := read(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	delete(f.Capacity, v1.ResourceEphemeralStorage)
	want := map[string]string{"cpu": "7", "memory": "16Mi", "hugepages-2Mi": "6Mi", "hugepages-1Gi": "0", "hugepages-64Ki": "64Ki"}
	if diff := cmp.Diff(want, texts(f.Capacity)); diff != "" {
		t.Error(diff)
	}
	if f.PIDs != 3000 {
		t.Errorf("%d processes, want the lesser limit", f.PIDs)
	}
	if f.Kernel != "5.15.0-1084-gcp" {
		t.Errorf("kernel %q", f.Kernel)
	}
}

// TestC_1_31_AppArmor: it is there where a runtime would use it.
//
// Shows: C-1.31
func TestC_1_31_AppArmor(t *testing.T) {
	t.Parallel()
	const enabled, mounted = "sys/module/apparmor/parameters/enabled", "sys/kernel/security/apparmor/profiles"
	for _, c := range []struct {
		files map[string]string
		want  bool
	}{
		{nil, false},
		{map[string]string{enabled: "Y\n", mounted: ""}, true},
		{map[string]string{enabled: "N\n", mounted: ""}, false},
		{map[string]string{enabled: "Y\n"}, false},
		{map[string]string{mounted: ""}, false},
	} {
		files := rich()
		maps.Copy(files, c.files)
		root := machine(t, files)
		if f, err := read(root, t.TempDir()); err != nil || f.AppArmor != c.want {
			t.Errorf("%v: %v, %v", c.files, f.AppArmor, err)
		}
	}
}

// TestMachineWithFewerFiles: no huge pages and no list of processors are no
// errors.
func TestMachineWithFewerFiles(t *testing.T) {
	t.Parallel()
	root := machine(t, map[string]string{"proc/sys/kernel/osrelease": "5.0\n", "proc/meminfo": "MemTotal: 16384 kB\n"})
	f, err := read(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if cpu := f.Capacity[v1.ResourceCPU]; cpu.Value() != int64(runtime.NumCPU()) || len(f.Capacity) != 3 || f.PIDs != 0 {
		t.Errorf("capacity %v", texts(f.Capacity))
	}
}

// TestWhatCannotBeReadIsNamed: each mistake names its file.
func TestWhatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, text, says string }{
		{"proc/sys/kernel/osrelease", "", "osrelease"}, // missing
		{"proc/meminfo", "MemFree: 1 kB\n", "meminfo: no MemTotal"},
		{"proc/meminfo", "MemTotal: much kB\n", "meminfo"},
		{"sys/devices/system/cpu/online", "0-\n", "online"},
		{"sys/devices/system/cpu/online", "3-1\n", `"3-1" is not a range`},
		{"proc/sys/kernel/pid_max", "many", "pid_max"},
		{"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "x", "hugepages-2048kB"},
	} {
		files := rich()
		if files[c.file] = c.text; c.text == "" {
			delete(files, c.file)
		}
		root := machine(t, files)
		if _, err := read(root, t.TempDir()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %q: %v", c.file, c.text, err)
		}
	}
	root := machine(t, rich())
	if _, err := read(root, filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no directory: %v", err)
	}
}
