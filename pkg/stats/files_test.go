package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodectl/nodectl/pkg/pod"
)

// fakeProc makes a /proc whose processes, by ID, have these parents and open files.
func fakeProc(t *testing.T, parents map[string]string, open map[string][]string) string {
	t.Helper()
	proc := t.TempDir()
	for pid, parent := range parents {
		write(t, filepath.Join(proc, pid), map[string]string{
			"stat":   pid + " (a ) b) S " + parent + " 1 1 0 -1\n",
			"limits": "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 524288               files     \n",
		})
		dir := filepath.Join(proc, pid, "fd")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for i, target := range open[pid] {
			if err := os.Symlink(target, filepath.Join(dir, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return proc
}

// TestCount_Processes_DescriptorsAndSockets: all open files of a cgroup's processes count, and those
// of a process that has ended do not.
//
// Shows: C-1.40.7
func TestCount_Processes_DescriptorsAndSockets(t *testing.T) {
	t.Parallel()
	proc := fakeProc(t, map[string]string{"10": "1", "11": "10"}, map[string][]string{
		"10": {"/dev/null", "pipe:[5]", "socket:[17]"}, "11": {"socket:[18]", "/socket:"},
	})
	f := newFileCounter(t.Context(), proc)
	if got, ok := f.count([]string{"10", "11", "12"}); !ok || got != (openFiles{descriptors: 5, sockets: 2}) {
		t.Errorf("%+v, %t", got, ok)
	}
	if spent := maxFilesOfAnswer - f.left; spent != 8 {
		t.Errorf("counted as %d files and processes, want 8", spent)
	}
}

// TestCount_MoreThanTheLimit_IsNotCounted: a cgroup with more files than the limit has no count and
// costs no more than the limit. The next cgroup is counted. An answer that has reached its own limit
// counts no more.
func TestCount_MoreThanTheLimit_IsNotCounted(t *testing.T) {
	t.Parallel()
	proc := fakeProc(t, map[string]string{"10": "1"}, map[string][]string{"10": {"/dev/null"}})
	f := newFileCounter(t.Context(), proc)
	if got, ok := f.count(slices.Repeat([]string{"10"}, maxFilesOfGroup/2+1)); ok {
		t.Errorf("counted %+v", got)
	}
	if spent := maxFilesOfAnswer - f.left; spent != maxFilesOfGroup {
		t.Errorf("counted as %d files and processes, want %d", spent, maxFilesOfGroup)
	}
	if _, ok := f.count([]string{"10"}); !ok {
		t.Error("the next cgroup is not counted")
	}
	f.left = 1
	for range 2 {
		if got, ok := f.count([]string{"10"}); ok || f.left != 0 {
			t.Errorf("counted %+v, %d left", got, f.left)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got, ok := newFileCounter(ended, proc).count([]string{"10"}); ok {
		t.Errorf("counted %+v for a caller that has left", got)
	}
}

// TestFirstProcess_ProcessOfAnExec_IsNotTheFirst: the limits are those of the process that the others
// descend from, even if its ID is not the lowest.
func TestFirstProcess_ProcessOfAnExec_IsNotTheFirst(t *testing.T) {
	t.Parallel()
	proc := fakeProc(t, map[string]string{"9": "30", "30": "40", "40": "1"}, nil)
	first := firstProcess(proc, []string{"9", "30", "40"})
	if first != "40" {
		t.Errorf("first process %q, want 40", first)
	}
	if soft, ok := maxOpenFiles(proc, first); !ok || soft != 1024 {
		t.Errorf("limit %v, %t", soft, ok)
	}
	if got := firstProcess(proc, []string{"77"}); got != "77" {
		t.Errorf("first process %q, want 77", got)
	}
	if _, ok := maxOpenFiles(proc, "77"); ok {
		t.Error("a process that has ended has a limit")
	}
}

// TestTraffic_Diskstats_IsInSeconds: the kernel's milliseconds are seconds in the series.
//
// Shows: C-1.40.7
func TestTraffic_Diskstats_IsInSeconds(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	write(t, proc, map[string]string{"diskstats": " 259       0 nvme0n1 1 2 3 4000 5 6 7 8000 9 10000 11000 1 2 3 4 5 6\n 8 0 short\n"})
	all := readTraffic(proc)
	want := diskTraffic{
		reads: 1, readsMerged: 2, sectorsRead: 3, reading: 4 * time.Second, writes: 5, writesMerged: 6, sectorsWritten: 7, writing: 8 * time.Second,
		current: 9, busy: 10 * time.Second, weighted: 11 * time.Second,
	}
	if len(all) != 1 || *all["259:0"] != want {
		t.Errorf("%+v, want %+v", all["259:0"], want)
	}
	values := map[string]float64{}
	for _, m := range trafficMetrics {
		values[m.name] = m.value(all["259:0"])
	}
	if values["container_fs_read_seconds_total"] != 4 || values["container_fs_io_time_weighted_seconds_total"] != 11 || values["container_fs_io_current"] != 9 {
		t.Errorf("%v", values)
	}
}

// TestDiskMounts_Filesystems_OneMountOfEachOnADisk: a file system that is mounted twice is one, and
// those that are not on a disk are none. Their number is bounded.
func TestDiskMounts_Filesystems_OneMountOfEachOnADisk(t *testing.T) {
	t.Parallel()
	const mounts = `22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 259:1 /var/lib /bind rw - ext4 /dev/nvme0n1p1 rw
25 22 8:16 / /data rw shared:2 - xfs /dev/sdb rw
26 22 0:40 / /pool rw - btrfs /dev/sdc rw
27 22 0:41 / /nfs rw - nfs4 server:/x rw
28 22 0:42 / /fuse rw - fuse.sshfs x rw
29 22 8:32 / /with\040space rw - ext4 /dev/sdd rw
broken
`
	if got, want := diskMounts(mounts), []string{"/", "/data", "/pool"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var many strings.Builder
	for i := range 2 * maxDisks {
		fmt.Fprintf(&many, "%d 1 7:%d / /loop%d rw - ext4 /dev/loop%d rw\n", i, i, i, i)
	}
	if got := diskMounts(many.String()); len(got) != maxDisks {
		t.Errorf("%d file systems, want %d", len(got), maxDisks)
	}
}

// TestStorage_DiskOfTheMachine_IsCountedOnce: a registry rejects an answer that has a series twice.
// The kernel's count of a disk replaces that of the cgroup; bytes by operation stay the cgroup's.
func TestStorage_DiskOfTheMachine_IsCountedOnce(t *testing.T) {
	t.Parallel()
	got := map[string]float64{}
	now := func(name, _ string, _ prometheus.ValueType, v float64, more ...string) {
		key := name + " " + strings.Join(more, " ")
		if _, twice := got[key]; twice {
			t.Errorf("%s twice", key)
		}
		got[key] = v
	}
	g := &group{devices: []deviceUsage{{number: "259:0", reads: 1, wrote: 2, bytes: map[string]uint64{"Sync": 7}, cost: map[string]uint64{"wait": 5e6}}}}
	table := &table{devices: map[string]string{"259:0": "/dev/x"}}
	table.storage(now, row{group: g, disks: map[string]disk{"/dev/x": {capacity: 9, traffic: &diskTraffic{reads: 11, writes: 12}}}})
	for key, want := range map[string]float64{
		"container_fs_reads_total device /dev/x": 11, "container_fs_writes_total device /dev/x": 12, "container_fs_limit_bytes device /dev/x": 9,
		"container_blkio_device_usage_total device /dev/x major 259 minor 0 operation Sync": 7, "container_fs_io_cost_wait_seconds_total device /dev/x": 5,
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s: %v, want %v", key, v, want)
		}
	}
	clear(got)
	table.storage(now, row{group: g}) // of a container
	if got["container_fs_reads_total device /dev/x"] != 1 || got["container_fs_writes_total device /dev/x"] != 2 {
		t.Errorf("%v", got)
	}
}

// TestClassesOf_Cgroups_AreThoseOfTheClasses: with both drivers, and without the pods beside them.
func TestClassesOf_Cgroups_AreThoseOfTheClasses(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	for _, name := range []string{"burstable", "kubepods-besteffort.slice", "podx"} {
		write(t, filepath.Join(top, name), filesV2)
	}
	write(t, top, filesV2)
	var got []string
	for _, g := range classesOf(&group{at: pod.Cgroup{Path: "/kubepods", Dirs: map[string]string{"": top}}}, time.Now()) {
		got = append(got, g.at.Path)
	}
	if want := []string{"/kubepods/burstable", "/kubepods/kubepods-besteffort.slice"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReadSystem_ProcessInAUnit_HasTheUnitsPressure: with cgroup v2 the pressure on the agent is that on
// its cgroup.
//
// Shows: C-1.40.7
func TestReadSystem_ProcessInAUnit_HasTheUnitsPressure(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	s.proc, s.sys = t.TempDir(), t.TempDir()
	stat := "9 (x) S" + strings.Repeat(" 7", 40) + "\n"
	write(t, s.proc, map[string]string{"9/stat": stat, "9/cgroup": "0::/system.slice/nodectl.service\n", "9/status": "VmSwap:\t 4 kB\n"})
	write(t, filepath.Join(s.sys, "fs/cgroup/system.slice/nodectl.service"), map[string]string{"cpu.pressure": filesV2["cpu.pressure"]})
	g := s.readSystem(9, true)
	if g == nil || g.pressure["cpu"] == nil || g.pressure["cpu"].some.total != 123456 || g.memory.swap != 4096 || g.memory.faults != 7 {
		t.Fatalf("%+v", g)
	}
	if s.readSystem(10, true) != nil || s.readSystem(0, true) != nil {
		t.Error("a process that is not there is reported")
	}
	if g := s.readSystem(9, false); g == nil || g.pressure != nil {
		t.Errorf("%+v", g)
	}
}

// TestDistribution_OSRelease_IsItsPrettyName: the name is that of the file, without quotes.
func TestDistribution_OSRelease_IsItsPrettyName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"os-release": "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"})
	if got := distribution(filepath.Join(dir, "os-release")); got != "Debian GNU/Linux 12" {
		t.Errorf("%q", got)
	}
	if got := distribution(filepath.Join(dir, "none")); got != "Unknown" {
		t.Errorf("%q", got)
	}
}
