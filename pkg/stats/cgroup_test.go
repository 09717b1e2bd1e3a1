package stats

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// write makes files in a directory, with the kernel's content.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// filesV2 are the files of a cgroup of a container with limits, from kernel 6.18.
var filesV2 = map[string]string{
	"cgroup.procs":        "4711\n4712\n",
	"cpu.stat":            "usage_usec 2500000\nuser_usec 1500000\nsystem_usec 1000000\nnice_usec 0\nnr_periods 40\nnr_throttled 3\nthrottled_usec 70000\nnr_bursts 6\nburst_usec 80000\n",
	"cpu.max":             "50000 100000\n",
	"cpu.weight":          "20\n",
	"cpu.pressure":        "some avg10=1.50 avg60=0.25 avg300=0.05 total=123456\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1000\n",
	"io.pressure":         "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
	"io.stat":             "259:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0 cost.usage=25\n8:0 \n",
	"memory.current":      "31457280\n",
	"memory.max":          "67108864\n",
	"memory.min":          "0\n",
	"memory.peak":         "41943040\n",
	"memory.swap.current": "1048576\n",
	"memory.swap.max":     "max\n",
	"memory.events":       "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\noom_group_kill 0\n",
	"memory.stat":         "anon 20971520\nfile 8388608\nkernel 1048576\nfile_mapped 4096\ninactive_anon 0\ninactive_file 6291456\nactive_file 2097152\npgfault 900\npgmajfault 9\n",
	"pids.current":        "5\n",
	"pids.max":            "100\n",
}

// TestC_1_40_7_EveryNumberOfCgroupV2: the files of version 2 give the same numbers; this
// machine has version 1.
//
// Shows: C-1.40.7
func TestC_1_40_7_EveryNumberOfCgroupV2(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "c")
	write(t, dir, filesV2)
	now := time.Unix(1e9, 0)
	g, ok := readGroup(pod.Cgroup{Path: "/c", Dirs: map[string]string{"": dir}}, now, true)
	if !ok {
		t.Fatal("not there")
	}
	if want := (cpuUsage{
		total: 2_500_000_000, user: 1_500_000_000, system: 1_000_000_000, periods: 40, throttled: 3, waiting: 70_000_000, bursts: 6, burst: 80_000_000,
		quota: 50000, period: 100000, shares: 500,
	}); g.cpu != want {
		t.Errorf("cpu %+v, want %+v", g.cpu, want)
	}
	if want := (memoryUsage{
		usage: 30 << 20, workingSet: 24 << 20, rss: 20 << 20, cache: 8 << 20, swap: 1 << 20, mapped: 4096, kernel: 1 << 20,
		active: 2 << 20, inactive: 6 << 20, faults: 900, majorFaults: 9, ownFaults: 900, ownMajorFaults: 9, most: 40 << 20, limit: 64 << 20, swapLimit: unlimited,
		reservation: 0, failures: 4, kills: 1,
	}); g.memory != want {
		t.Errorf("memory %+v, want %+v", g.memory, want)
	}
	if g.processes != 2 || g.threads != 5 || g.threadsMax != 100 || !g.time.Equal(now) {
		t.Errorf("%d processes, %d of %d threads at %s", g.processes, g.threads, g.threadsMax, g.time)
	}
	if want := []deviceUsage{{"259:0", 4096, 8192, 1, 2, map[string]uint64{"Read": 4096, "Write": 8192, "Discard": 0}, map[string]uint64{"usage": 25}}}; !reflect.DeepEqual(g.devices, want) {
		t.Errorf("devices %+v, want %+v", g.devices, want)
	}
	if want := (pressure{stalled{1.5, 0.25, 0.05, 123456}, stalled{0.5, 0, 0, 1000}}); len(g.pressure) != 2 || *g.pressure["cpu"] != want {
		t.Errorf("pressure %+v", g.pressure["cpu"])
	}
}

// filesV1 are the relevant files of a cgroup of version 1, from kernel 6.18.
var filesV1 = map[string]string{
	"cpuacct/cpuacct.usage": "2500000000\n", "cpuacct/cpuacct.usage_user": "1500000000\n", "cpuacct/cpuacct.usage_sys": "1000000000\n",
	"cpu/cpu.stat": "nr_periods 40\nnr_throttled 3\nthrottled_time 70000000\nnr_bursts 6\nburst_time 80000000\n", "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n",
	"cpu/cpu.shares": "512\n", "memory/cgroup.procs": "4711\n",
	"memory/memory.usage_in_bytes": "31457280\n", "memory/memory.limit_in_bytes": "9223372036854771712\n",
	"memory/memory.soft_limit_in_bytes": "9223372036854771712\n", "memory/memory.max_usage_in_bytes": "41943040\n", "memory/memory.failcnt": "4\n",
	"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
	"memory/memory.stat":        "rss 1\ncache 1\ntotal_cache 8388608\ntotal_rss 20971520\ntotal_inactive_file 6291456\ntotal_active_file 2097152\ntotal_mapped_file 4096\ntotal_pgfault 900\ntotal_pgmajfault 9\ntotal_swap 0\npgfault 800\npgmajfault 8\n",
	"pids/pids.current":         "5\n", "pids/pids.max": "max\n",
	"blkio/blkio.throttle.io_service_bytes_recursive": "259:0 Read 4096\n259:0 Write 8192\n259:0 Sync 1\n259:0 Total 12288\nTotal 12288\n",
	"blkio/blkio.throttle.io_serviced_recursive":      "259:0 Read 1\n259:0 Write 2\n259:0 Total 3\nTotal 3\n",
}

// TestC_1_40_7_EveryNumberOfCgroupV1 is the same for version 1.
//
// Shows: C-1.40.7
func TestC_1_40_7_EveryNumberOfCgroupV1(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, top, filesV1)
	dirs := map[string]string{}
	for _, c := range []string{"cpu", "cpuacct", "memory", "pids", "blkio"} {
		dirs[c] = filepath.Join(top, c)
	}
	g, ok := readGroup(pod.Cgroup{Path: "/c", Dirs: dirs}, time.Now(), true)
	if !ok {
		t.Fatal("not there")
	}
	if want := (cpuUsage{
		total: 2_500_000_000, user: 1_500_000_000, system: 1_000_000_000, periods: 40, throttled: 3, waiting: 70_000_000, bursts: 6, burst: 80_000_000,
		quota: -1, period: 100000, shares: 512,
	}); g.cpu != want {
		t.Errorf("cpu %+v, want %+v", g.cpu, want)
	}
	if want := (memoryUsage{
		usage: 30 << 20, workingSet: 24 << 20, rss: 20 << 20, cache: 8 << 20, mapped: 4096, active: 2 << 20, inactive: 6 << 20,
		faults: 900, majorFaults: 9, ownFaults: 800, ownMajorFaults: 8, most: 40 << 20, limit: unlimited, swapLimit: unlimited, reservation: unlimited, failures: 4, kills: 1,
	}); g.memory != want {
		t.Errorf("memory %+v, want %+v", g.memory, want)
	}
	if want := []deviceUsage{{"259:0", 4096, 8192, 1, 2, map[string]uint64{"Read": 4096, "Write": 8192, "Sync": 1, "Total": 12288}, nil}}; !reflect.DeepEqual(g.devices, want) || g.processes != 1 || g.threadsMax != unlimited {
		t.Errorf("%+v", g)
	}
}

// TestGroupThatWentIsNone: a cgroup may be removed between reads of two files.
func TestGroupThatWentIsNone(t *testing.T) {
	t.Parallel()
	for _, dirs := range []map[string]string{{"": "/nowhere"}, {"cpuacct": "/nowhere", "memory": "/nowhere"}, {}} {
		if _, ok := readGroup(pod.Cgroup{Dirs: dirs}, time.Now(), true); ok {
			t.Errorf("%v is there", dirs)
		}
	}
}

// TestRatesAreNeverNegative: counters and clocks may go back.
func TestRatesAreNeverNegative(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, now uint64
		took        time.Duration
		want        int64 // -1: none
	}{
		{0, 1e9, time.Second, 1e9},
		{1e9, 2e9, 2 * time.Second, 5e8},
		{5, 5, time.Second, 0},
		{2e9, 1e9, time.Second, -1},
		{1, 2, 0, -1},
		{1, 2, -time.Second, -1},
	} {
		got := int64(-1)
		if r := rate(c.before, c.now, c.took); r != nil {
			got = int64(*r)
		}
		if got != c.want {
			t.Errorf("rate(%d, %d, %s) = %d, want %d", c.before, c.now, c.took, got, c.want)
		}
	}
}

// TestHostileNamesInProc: a process chooses the text between the parentheses.
func TestHostileNamesInProc(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	write(t, proc, map[string]string{
		"7/stat":   "7 (a) R 1 2 (x)) S 1 7 7 0 -1 4194304 100 0 5 0 250 150 0 0 20 0 1 0 1000 4096 3 18446744073709551615 0 0 0\n",
		"7/status": "Name:\ta\nVmSwap:\t      12 kB\n",
	})
	p, ok := readProcess(proc, "7", time.Unix(1000, 0))
	if !ok || p.cpu != 4_000_000_000 || p.rss != 3*uint64(os.Getpagesize()) || !p.began.Equal(time.Unix(1010, 0)) || p.faults != 100 || p.majorFaults != 5 || p.swap != 12<<10 {
		t.Errorf("%+v %v", p, ok)
	}
}

// TestTreesAreMeasuredAsDuDoes: in blocks, each file once, without following links or
// entering directories that are too deep.
func TestTreesAreMeasuredAsDuDoes(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, outside, map[string]string{"large": string(make([]byte, 1<<20))})
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": string(make([]byte, 8192)), "sub/b": string(make([]byte, 4096))})
	for _, err := range []error{
		os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "sub", "again")),
		os.Symlink(outside, filepath.Join(dir, "out")),
		os.Symlink(filepath.Join(outside, "large"), filepath.Join(dir, "file")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := measureTree(t.Context(), dir, new(largest))
	if err != nil || got.inodes != 6 || got.bytes < 12288 || got.bytes > 64<<10 {
		t.Errorf("%+v %v", got, err)
	}
	deep := filepath.Join(t.TempDir(), "d")
	at := deep
	for range deepest + 2 {
		at = filepath.Join(at, "d")
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := measureTree(t.Context(), deep, new(largest)); err == nil {
		t.Error("a tree without end is measured")
	}
	if _, err := measureTree(t.Context(), filepath.Join(dir, "out"), new(largest)); err == nil {
		t.Error("a link is followed")
	}
}
