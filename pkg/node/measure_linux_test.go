package node

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestC_1_35_1_MemoryThatIsAvailable: memory that the kernel could reclaim at once counts as
// available, on both versions of cgroups.
//
// Shows: C-1.35.1
func TestC_1_35_1_MemoryThatIsAvailable(t *testing.T) {
	t.Parallel()
	const group = "sys/fs/cgroup/"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"v2, its root":  {map[string]string{group + "cgroup.controllers": "", group + "memory.stat": "anon 4096\nfile 8192\ninactive_file 2048\n"}, 16<<20 - 10240},
		"v2, within":    {map[string]string{group + "cgroup.controllers": "", group + "memory.current": "9000\n", group + "memory.stat": "anon 1\ninactive_file 1000\n"}, 16<<20 - 8000},
		"v1":            {map[string]string{group + "memory/memory.usage_in_bytes": "9000\n", group + "memory/memory.stat": "inactive_file 7\ntotal_inactive_file 1000\n"}, 16<<20 - 8000},
		"all inactive":  {map[string]string{group + "memory/memory.usage_in_bytes": "9000\n", group + "memory/memory.stat": "total_inactive_file 10000\n"}, 16 << 20},
		"none of these": {nil, 0},
	} {
		files := rich()
		maps.Copy(files, c.files)
		l, _, err := Meter{Root: machine(t, files)}.memory()
		if c.want == 0 {
			if err == nil || !strings.Contains(err.Error(), "memory.stat") {
				t.Errorf("%s: %v, %v", name, l, err)
			}
			continue
		}
		if err != nil || l != (Level{c.want, 16 << 20}) {
			t.Errorf("%s: %v, want %d (%v)", name, l, c.want, err)
		}
	}
}

// TestC_1_35_2_EverySignal: every signal of a threshold is measured. A failed measurement is named,
// and does not affect the others.
//
// Shows: C-1.35.2
func TestC_1_35_2_EverySignal(t *testing.T) {
	t.Parallel()
	files := rich()
	maps.Copy(files, map[string]string{
		"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/memory.stat": "anon 4096\nfile 0\n", "proc/loadavg": "0.20 0.18 0.12 1/80 11206\n",
		"pods/memory.max": "8192\n", "pods/memory.current": "5000\n", "pods/memory.stat": "inactive_file 1000\n",
	})
	root, dir := machine(t, files), t.TempDir()
	at := Meter{Root: root, NodeFs: dir, ImageFs: dir, PodsGroup: filepath.Join(root, "pods"), PIDs: 3000}
	levels, err := at.Read()
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]Level{
		"memory.available": {16<<20 - 4096, 16 << 20}, "pid.available": {2920, 3000}, "allocatableMemory.available": {4192, 8192},
	}; !maps.Equal(levels.By, want) {
		t.Errorf("levels %v, want %v", levels.By, want)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	if len(levels.Disks) != 1 || !levels.Disks[0].Data || !levels.Disks[0].Images || !levels.Disks[0].Writable {
		t.Fatalf("one file system for all is %+v", levels.Disks)
	}
	if l := levels.Disks[0].Bytes; l.Capacity != int64(s.Blocks)*int64(s.Frsize) || l.Available <= 0 || l.Available > l.Capacity {
		t.Errorf("nodefs %v of %+v", l, s)
	}
	at.LayerFs = "/proc"
	if levels, err = at.Read(); err != nil || len(levels.Disks) != 2 || levels.Disks[0].Writable || levels.Disks[1].Images || !levels.Disks[1].Writable {
		t.Errorf("layers on a file system of their own: %+v, %v", levels.Disks, err)
	}
	if err := os.WriteFile(filepath.Join(root, "pods/memory.max"), []byte("max\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := at.podsMemory(10000); err != nil || l != (Level{6000, 10000}) {
		t.Errorf("without a limit: %v, %v", l, err)
	}
	at.NodeFs, at.LayerFs, at.PodsGroup = filepath.Join(dir, "none"), "", filepath.Join(dir, "none")
	levels, err = at.Read()
	if err == nil || !strings.Contains(err.Error(), "nodefs.available") || strings.Contains(err.Error(), "allocatableMemory.available") {
		t.Errorf("error %v", err)
	}
	if _, ok := levels.By["memory.available"]; !ok || len(levels.By) != 2 || len(levels.Disks) != 1 || levels.Disks[0].Data {
		t.Errorf("levels %v", levels)
	}
	at.PodsGroup = dir
	if levels, err = at.Read(); err == nil || !strings.Contains(err.Error(), "allocatableMemory.available") || len(levels.By) != 2 {
		t.Errorf("a cgroup without files: %v, %v", levels, err)
	}
	at.PodsGroup = filepath.Join(root, "pods")
	if err := os.Remove(filepath.Join(at.Root, "proc/meminfo")); err != nil {
		t.Fatal(err)
	}
	if levels, err = at.Read(); err == nil || len(levels.By) != 1 {
		t.Errorf("without the machine's memory: %v, %v", levels, err)
	}
}

// TestC_1_25_2_Identity: from the same files as the kubelet's.
//
// Shows: C-1.25.2
func TestC_1_25_2_Identity(t *testing.T) {
	t.Parallel()
	files := rich()
	maps.Copy(files, map[string]string{
		"etc/machine-id": "abc\n", "proc/sys/kernel/random/boot_id": "b-1\n", "etc/os-release": "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n",
		"proc/meminfo": "MemTotal: 16384 kB\nSwapTotal: 1024 kB\n",
	})
	f, err := read(machine(t, files), t.TempDir())
	if err != nil || f.MachineID != "abc" || f.SystemUUID != "abc" || f.BootID != "b-1" || f.OSImage != "Debian GNU/Linux 13 (trixie)" || f.Swap != 1<<20 {
		t.Errorf("%+v, %v", f, err)
	}
	files["sys/class/dmi/id/product_uuid"], files["etc/os-release"] = "4C4C\n", "NAME=x\n"
	if f, err = read(machine(t, files), t.TempDir()); err != nil || f.SystemUUID != "4C4C" || f.OSImage != "Linux" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err = read(machine(t, rich()), t.TempDir()); err != nil || f.MachineID != "" || f.OSImage != "Unknown" || f.Swap != 0 {
		t.Errorf("a machine without these files: %+v, %v", f, err)
	}
}

// TestC_1_25_2_Addresses: given ones have to be the machine's, others are found.
//
// Shows: C-1.25.2
func TestC_1_25_2_Addresses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	own, err := ownIPs()
	if err != nil || len(own) == 0 {
		t.Fatalf("this machine has no addresses: %v", err)
	}
	for _, given := range [][]string{nil, {"0.0.0.0"}, {"::"}, {own[0].String()}} {
		got, err := HostIPs(ctx, "no-such-name.invalid", given)
		if err != nil || len(got) != 1 || !slices.Contains(own, netip.MustParseAddr(got[0])) || !allOwn(got) {
			t.Errorf("%v: %v, %v", given, got, err)
		}
	}
	for _, given := range []string{"192.0.2.1", "127.0.0.1", "web"} {
		if got, err := HostIPs(ctx, "n", []string{given}); err == nil || !strings.Contains(err.Error(), given) {
			t.Errorf("%s: %v, %v", given, got, err)
		}
	}
	if allOwn([]string{"192.0.2.1"}) {
		t.Error("a foreign address counts as our own")
	}
	ips := []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")}
	if ip, ok := prefer(ips, netip.IPv4Unspecified()); !ok || ip != ips[1] {
		t.Errorf("preferred %v", ip)
	}
	if ip, ok := prefer(ips[:1], netip.IPv4Unspecified()); !ok || ip != ips[0] {
		t.Errorf("preferred %v", ip)
	}
}
