package stats

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticks is USER_HZ, which is 100 on every Linux that Go supports.
const ticks = 100

// machine is the data that does not change while the machine runs.
type machine struct {
	booted        time.Time
	memory, swap  uint64
	cores         int
	physical      int
	sockets       int
	books         int // only on s390x, like drawers
	drawers       int
	kernel, os    string // the release of the kernel, the name of the distribution
	id, boot, sys string // the machine ID, the boot ID, the UUID of the hardware
	maxPIDs       int64
}

func lookAtMachine(proc, sys string) machine {
	m := machine{
		id:      strings.TrimSpace(text("/etc", "machine-id")),
		boot:    strings.TrimSpace(text(proc, "sys/kernel/random/boot_id")),
		sys:     strings.TrimSpace(text(sys, "class/dmi/id/product_uuid")),
		maxPIDs: math.MaxInt64,
	}
	for line := range strings.Lines(text(proc, "stat")) {
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "btime":
			n, _ := strconv.ParseInt(words[1], 10, 64)
			m.booted = time.Unix(n, 0)
		case len(words) > 0 && strings.HasPrefix(words[0], "cpu") && words[0] != "cpu":
			m.cores++
		}
	}
	info := meminfo(proc)
	m.memory, m.swap = info["MemTotal"], info["SwapTotal"]
	m.physical, m.sockets, m.books, m.drawers = topology(sys)
	m.kernel, m.os = strings.TrimSpace(text(proc, "sys/kernel/osrelease")), distribution("/etc/os-release")
	for _, name := range []string{"pid_max", "threads-max"} {
		if n, ok := number(filepath.Join(proc, "sys/kernel"), name); ok {
			m.maxPIDs = min(m.maxPIDs, int64(min(n, math.MaxInt64)))
		}
	}
	return m
}

// distribution returns the name in an os-release file, "Unknown" if there is none.
func distribution(file string) string {
	for line := range strings.Lines(text(filepath.Dir(file), filepath.Base(file))) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"'`)
		}
	}
	return "Unknown"
}

// topology counts cores, sockets, books and drawers.
func topology(sys string) (physical, sockets, books, drawers int) {
	cores, packages, others := map[string]bool{}, map[string]bool{}, map[string]map[string]bool{"book_id": {}, "drawer_id": {}}
	dirs, _ := filepath.Glob(filepath.Join(sys, "devices/system/cpu/cpu[0-9]*/topology"))
	for _, dir := range dirs {
		p := strings.TrimSpace(text(dir, "physical_package_id"))
		packages[p], cores[p+"/"+strings.TrimSpace(text(dir, "core_id"))] = true, true
		for file, ids := range others {
			if id := strings.TrimSpace(text(dir, file)); id != "" {
				ids[id] = true
			}
		}
	}
	return len(cores), len(packages), len(others["book_id"]), len(others["drawer_id"])
}

// meminfo reads /proc/meminfo, in bytes.
func meminfo(proc string) map[string]uint64 {
	m := map[string]uint64{}
	for line := range strings.Lines(text(proc, "meminfo")) {
		words := strings.Fields(line)
		if len(words) == 3 && words[2] == "kB" {
			n, _ := strconv.ParseUint(words[1], 10, 54)
			m[strings.TrimSuffix(words[0], ":")] = n << 10
		}
	}
	return m
}

// hostCPU returns the time that the machine's processors were busy, in nanoseconds, from /proc/stat.
func hostCPU(proc string) (total, user, system uint64, ok bool) {
	for line := range strings.Lines(text(proc, "stat")) {
		words := strings.Fields(line)
		if len(words) < 8 || words[0] != "cpu" {
			continue
		}
		var n [7]uint64
		for i := range n {
			n[i], _ = strconv.ParseUint(words[i+1], 10, 64)
		}
		const tick = uint64(time.Second) / ticks
		user, system = (n[0]+n[1])*tick, (n[2]+n[5]+n[6])*tick
		return user + system, user, system, true
	}
	return 0, 0, 0, false
}

// threadsNow counts the tasks of the machine.
func threadsNow(proc string) (int64, bool) {
	words := strings.Fields(text(proc, "loadavg"))
	if len(words) < 4 {
		return 0, false
	}
	_, all, _ := strings.Cut(words[3], "/")
	n, err := strconv.ParseInt(all, 10, 64)
	return n, err == nil
}

// process is the usage of one process.
type process struct {
	began time.Time
	cpu   uint64 // nanoseconds
	rss   uint64
	swap  uint64

	faults, majorFaults uint64
}

// readProcess reads the usage of a process from /proc/<pid>. The process's name in it may contain any
// characters.
func readProcess(proc, pid string, booted time.Time) (process, bool) {
	line := text(filepath.Join(proc, pid), "stat")
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return process{}, false
	}
	words := strings.Fields(line[end+1:])
	if len(words) < 22 {
		return process{}, false
	}
	at := func(field int) uint64 { n, _ := strconv.ParseUint(words[field-3], 10, 64); return n } // fields are counted as in proc(5)
	const tick = uint64(time.Second) / ticks
	p := process{
		began:  booted.Add(time.Duration(at(22) * tick)),
		cpu:    (at(14) + at(15)) * tick,
		rss:    at(24) * uint64(os.Getpagesize()),
		faults: at(10), majorFaults: at(12),
	}
	for line := range strings.Lines(text(filepath.Join(proc, pid), "status")) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "VmSwap:" {
			kib, _ := strconv.ParseUint(words[1], 10, 54)
			p.swap = kib << 10
		}
	}
	return p, true
}

// link is the traffic of one network device.
type link struct {
	name           string
	received, sent traffic
}

type traffic struct{ bytes, packets, errors, dropped uint64 }

// linksOf returns the network devices in a process's network namespace. Like cAdvisor, it leaves out the
// loopback device, bridges of docker, and the host's ends of pods' devices.
func linksOf(proc, pid string) (all []link) {
	for line := range strings.Lines(text(filepath.Join(proc, pid, "net"), "dev")) {
		name, rest, ok := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if !ok || len(words) < 12 {
			continue
		}
		name = strings.TrimSpace(name)
		if name == "lo" || strings.HasPrefix(name, "veth") || strings.HasPrefix(name, "docker") {
			continue
		}
		at := func(i int) uint64 { n, _ := strconv.ParseUint(words[i], 10, 64); return n }
		all = append(all, link{name, traffic{at(0), at(1), at(2), at(3)}, traffic{at(8), at(9), at(10), at(11)}})
	}
	return all
}

// disk is the size of a file system, from the kernel.
type disk struct {
	capacity, available, used      uint64 // bytes
	inodes, inodesFree, inodesUsed uint64
	device                         string // the number of its device, such as "259:0"
	traffic                        *diskTraffic
}

func readDisk(dir string) (disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return disk{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return disk{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	size := uint64(s.Bsize)
	if s.Frsize > 0 {
		size = uint64(s.Frsize)
	}
	return disk{
		capacity: s.Blocks * size, available: s.Bavail * size, used: (s.Blocks - s.Bfree) * size,
		inodes: s.Files, inodesFree: s.Ffree, inodesUsed: s.Files - s.Ffree,
		device: fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)),
	}, nil
}
