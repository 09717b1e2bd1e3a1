package stats

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// unlimited stands for no limit in both versions of cgroups. The files of v1 have a number near it.
const unlimited = math.MaxUint64

// group is the usage of one cgroup with all cgroups below it, read at one time. Values of missing files are
// zero.
type group struct {
	at      pod.Cgroup
	host    bool   // it is the machine
	process string // the ID of the process that it describes, in place of a cgroup; "": it describes a cgroup
	began   time.Time
	time    time.Time // when cpu and memory were read
	cpu     cpuUsage
	memory  memoryUsage
	rate    *uint64 // nanocores; nil: unknown
	devices []deviceUsage
	threads uint64
	// threadsMax is unlimited if there is no limit.
	threadsMax uint64
	processes  int
	pressure   map[string]*pressure // "cpu", "memory", "io"; only cgroup v2
}

// cpuUsage is in nanoseconds.
type cpuUsage struct {
	total, user, system         uint64
	periods, throttled, waiting uint64 // waiting is the time throttled
	bursts, burst               uint64 // burst is the time above the quota
	quota                       int64  // microseconds a period; -1: no limit
	period, shares              uint64 // period: microseconds
}

// memoryUsage is in bytes.
type memoryUsage struct {
	usage, workingSet, rss, cache, swap uint64
	mapped, kernel, active, inactive    uint64
	faults, majorFaults                 uint64
	ownFaults, ownMajorFaults           uint64 // without the cgroups below; cgroup v2 counts them together
	most                                uint64 // the maximum so far, 0: unknown
	limit, swapLimit, reservation       uint64 // unlimited: none
	failures                            uint64 // how often the limit was reached
	kills                               uint64 // OOM kills by the kernel
}

// deviceUsage is the I/O of one block device.
type deviceUsage struct {
	number                              string // "259:0"
	readBytes, writeBytes, reads, wrote uint64
	// bytes has the bytes of each kind of operation, such as "Read" and "Write", with cgroup v1 also "Sync".
	bytes map[string]uint64
	// cost has the times that the controller io.cost counts, in microseconds, by their names in io.stat.
	cost map[string]uint64
}

// pressure is the time that tasks waited.
type pressure struct{ some, full stalled }

type stalled struct {
	avg10, avg60, avg300 float64
	total                uint64 // microseconds
}

// cpuNow reads only the CPU time of a cgroup, in nanoseconds. measure needs two samples of it.
func cpuNow(at pod.Cgroup) (total uint64, ok bool) {
	if dir, unified := at.Dirs[""]; unified {
		usec, ok := keyed(dir, "cpu.stat")["usage_usec"]
		return usec * 1000, ok
	}
	return number(at.Dirs["cpuacct"], "cpuacct.usage")
}

// readGroup reads the CPU time and memory of a cgroup and, with full, all its other data. ok is false if the
// cgroup does not exist.
func readGroup(at pod.Cgroup, now time.Time, full bool) (g *group, ok bool) {
	g = &group{at: at, time: now, threadsMax: unlimited}
	_, unified := at.Dirs[""]
	if g.cpu.total, ok = cpuNow(at); !ok {
		return nil, false
	}
	if unified {
		g.readV2(full)
	} else {
		g.readV1(full)
	}
	g.memory.workingSet = g.memory.usage - min(g.memory.inactive, g.memory.usage)
	if full {
		g.processes = len(processesOf(at))
	}
	g.began = madeAt(someDir(at))
	return g, true
}

// madeAt returns when a cgroup was made. The time of its directory changes when a cgroup below is made.
// Therefore madeAt takes the earliest of the times of the directory and of some of its files.
func madeAt(dir string) (at time.Time) {
	for _, name := range []string{"", "cgroup.clone_children", "cgroup.events"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && (at.IsZero() || info.ModTime().Before(at)) {
			at = info.ModTime()
		}
	}
	return at
}

func (g *group) readV2(full bool) {
	dir, m := g.at.Dirs[""], &g.memory
	m.usage, _ = number(dir, "memory.current")
	m.swap, _ = number(dir, "memory.swap.current")
	m.limit, m.swapLimit = limit(dir, "memory.max"), limit(dir, "memory.swap.max")
	stat := keyed(dir, "memory.stat")
	m.rss, m.cache, m.inactive, m.active = stat["anon"], stat["file"], stat["inactive_file"], stat["active_file"]
	m.faults, m.majorFaults = stat["pgfault"], stat["pgmajfault"]
	m.ownFaults, m.ownMajorFaults = m.faults, m.majorFaults
	m.mapped, m.kernel = stat["file_mapped"], stat["kernel"]
	g.threads, _ = number(dir, "pids.current")
	if !full {
		return
	}
	m.reservation = limit(dir, "memory.min")
	m.most, _ = number(dir, "memory.peak")
	events := keyed(dir, "memory.events")
	m.failures, m.kills = events["max"], events["oom_kill"]
	c := keyed(dir, "cpu.stat")
	g.cpu.user, g.cpu.system = c["user_usec"]*1000, c["system_usec"]*1000
	g.cpu.periods, g.cpu.throttled, g.cpu.waiting = c["nr_periods"], c["nr_throttled"], c["throttled_usec"]*1000
	g.cpu.bursts, g.cpu.burst = c["nr_bursts"], c["burst_usec"]*1000
	g.cpu.quota = -1
	if words := strings.Fields(text(dir, "cpu.max")); len(words) == 2 {
		if n, err := strconv.ParseInt(words[0], 10, 64); err == nil {
			g.cpu.quota = n
		}
		g.cpu.period, _ = strconv.ParseUint(words[1], 10, 64)
	}
	if weight, ok := number(dir, "cpu.weight"); ok && weight > 0 {
		g.cpu.shares = 2 + (weight-1)*262142/9999 // the kubelet's own inverse
	}
	g.threadsMax = limit(dir, "pids.max")
	g.devices = devicesV2(text(dir, "io.stat"))
	g.readPressure(dir)
}

// readPressure reads the pressure on a cgroup of cgroup v2. It leaves out resources for which the kernel does
// not measure it.
func (g *group) readPressure(dir string) {
	for _, what := range []string{"cpu", "memory", "io"} {
		if p := pressureOf(text(dir, what+".pressure")); p != nil {
			if g.pressure == nil {
				g.pressure = map[string]*pressure{}
			}
			g.pressure[what] = p
		}
	}
}

func (g *group) readV1(full bool) {
	dir, m := g.at.Dirs["memory"], &g.memory
	m.usage, _ = number(dir, "memory.usage_in_bytes")
	m.limit = limit(dir, "memory.limit_in_bytes")
	stat := keyed(dir, "memory.stat")
	m.rss, m.cache, m.swap = stat["total_rss"], stat["total_cache"], stat["total_swap"]
	m.inactive, m.active, m.mapped = stat["total_inactive_file"], stat["total_active_file"], stat["total_mapped_file"]
	m.faults, m.majorFaults = stat["total_pgfault"], stat["total_pgmajfault"]
	m.ownFaults, m.ownMajorFaults = stat["pgfault"], stat["pgmajfault"]
	g.threads, _ = number(g.at.Dirs["pids"], "pids.current")
	m.swapLimit = limit(dir, "memory.memsw.limit_in_bytes")
	if m.swapLimit != unlimited {
		m.swapLimit -= min(m.limit, m.swapLimit) // v1 limits memory and swap together
	}
	if !full {
		return
	}
	m.reservation = limit(dir, "memory.soft_limit_in_bytes")
	m.most, _ = number(dir, "memory.max_usage_in_bytes")
	m.failures, _ = number(dir, "memory.failcnt")
	m.kernel, _ = number(dir, "memory.kmem.usage_in_bytes")
	m.kills = keyed(dir, "memory.oom_control")["oom_kill"]
	account, cpu := g.at.Dirs["cpuacct"], g.at.Dirs["cpu"]
	g.cpu.user, _ = number(account, "cpuacct.usage_user")
	g.cpu.system, _ = number(account, "cpuacct.usage_sys")
	c := keyed(cpu, "cpu.stat")
	g.cpu.periods, g.cpu.throttled, g.cpu.waiting = c["nr_periods"], c["nr_throttled"], c["throttled_time"]
	g.cpu.bursts, g.cpu.burst = c["nr_bursts"], c["burst_time"]
	g.cpu.quota = -1
	if n, err := strconv.ParseInt(strings.TrimSpace(text(cpu, "cpu.cfs_quota_us")), 10, 64); err == nil {
		g.cpu.quota = n
	}
	g.cpu.period, _ = number(cpu, "cpu.cfs_period_us")
	g.cpu.shares, _ = number(cpu, "cpu.shares")
	g.threadsMax = limit(g.at.Dirs["pids"], "pids.max")
	g.devices = devicesV1(text(g.at.Dirs["blkio"], "blkio.throttle.io_service_bytes_recursive"),
		text(g.at.Dirs["blkio"], "blkio.throttle.io_serviced_recursive"))
}

// someDir returns one of a cgroup's directories, always the same one; "" if it has none.
func someDir(at pod.Cgroup) string {
	for _, controller := range []string{"", "memory", "cpu"} {
		if dir := at.Dirs[controller]; dir != "" {
			return dir
		}
	}
	return ""
}

// below returns the child of a cgroup with this name.
func below(at pod.Cgroup, name string) pod.Cgroup {
	c := pod.Cgroup{Path: filepath.Join(at.Path, name), Dirs: make(map[string]string, len(at.Dirs))}
	for controller, dir := range at.Dirs {
		c.Dirs[controller] = filepath.Join(dir, name)
	}
	return c
}

// processesOf returns the IDs of the processes in a cgroup, without those in cgroups below.
func processesOf(at pod.Cgroup) []string { return strings.Fields(text(someDir(at), "cgroup.procs")) }

// text returns the content of a file; "" if it cannot be read, such as when its cgroup was removed.
func text(dir, file string) string {
	if dir == "" {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	return string(b)
}

func number(dir, file string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(text(dir, file)), 10, 64)
	return n, err == nil
}

// limit reads a limit; unlimited for "max" and for numbers that are too large.
func limit(dir, file string) uint64 {
	n, ok := number(dir, file)
	if !ok || n >= 1<<62 {
		return unlimited
	}
	return n
}

// keyed reads a file of lines "key number".
func keyed(dir, file string) map[string]uint64 {
	m := map[string]uint64{}
	for line := range strings.Lines(text(dir, file)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); ok && err == nil {
			m[key] = n
		}
	}
	return m
}

// devicesV2 parses lines such as "259:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0". If the controller
// io.cost is on, they also have fields such as cost.usage.
func devicesV2(lines string) (all []deviceUsage) {
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		d := deviceUsage{number: words[0]}
		kinds := map[string]string{"rbytes": "Read", "wbytes": "Write", "dbytes": "Discard"}
		into := map[string]*uint64{"rbytes": &d.readBytes, "wbytes": &d.writeBytes, "rios": &d.reads, "wios": &d.wrote}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			if to := into[key]; to != nil {
				*to = n
			}
			if kind := kinds[key]; kind != "" {
				set(&d.bytes, kind, n)
			}
			if kind, ok := strings.CutPrefix(key, "cost."); ok {
				set(&d.cost, kind, n)
			}
		}
		all = append(all, d)
	}
	return all
}

// devicesV1 parses lines such as "259:0 Read 1" of two files.
func devicesV1(bytes, operations string) []deviceUsage {
	var all []deviceUsage
	at := map[string]int{}
	add := func(lines string, of func(d *deviceUsage, kind string, n uint64)) {
		for line := range strings.Lines(lines) {
			words := strings.Fields(line)
			if len(words) != 3 {
				continue // "Total 3"
			}
			i, ok := at[words[0]]
			if !ok {
				i = len(all)
				at[words[0]], all = i, append(all, deviceUsage{number: words[0]})
			}
			if n, err := strconv.ParseUint(words[2], 10, 64); err == nil {
				of(&all[i], words[1], n)
			}
		}
	}
	add(bytes, func(d *deviceUsage, kind string, n uint64) { set(&d.bytes, kind, n) })
	add(operations, func(d *deviceUsage, kind string, n uint64) {
		switch kind {
		case "Read":
			d.reads = n
		case "Write":
			d.wrote = n
		}
	})
	for i := range all {
		all[i].readBytes, all[i].writeBytes = all[i].bytes["Read"], all[i].bytes["Write"]
	}
	return all
}

func set(m *map[string]uint64, key string, n uint64) {
	if *m == nil {
		*m = map[string]uint64{}
	}
	(*m)[key] = n
}

// pressureOf parses lines such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", for some and full. It
// returns nil if there are none: the kernel does not measure the pressure.
func pressureOf(lines string) *pressure {
	var p *pressure
	for scan := bufio.NewScanner(bytes.NewReader([]byte(lines))); scan.Scan(); {
		words := strings.Fields(scan.Text())
		if len(words) != 5 {
			continue
		}
		if p == nil {
			p = &pressure{}
		}
		to := &p.some
		if words[0] == "full" {
			to = &p.full
		}
		value := func(i int) string { _, v, _ := strings.Cut(words[i], "="); return v }
		to.avg10, _ = strconv.ParseFloat(value(1), 64)
		to.avg60, _ = strconv.ParseFloat(value(2), 64)
		to.avg300, _ = strconv.ParseFloat(value(3), 64)
		to.total, _ = strconv.ParseUint(value(4), 10, 64)
	}
	return p
}
