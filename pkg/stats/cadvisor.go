package stats

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"
)

// Cadvisor returns the handler of /metrics/cadvisor (C-1.40.7). It serves the series that dashboards use,
// with the names and labels of the kubelet's cAdvisor. There are rows for the machine ("/"), all pods
// together, the QoS classes, each pod (container=""), its sandbox and each container. The row of the sandbox
// has the pod's network.
func (s *Stats) Cadvisor() http.Handler {
	return s.serve(func(ctx context.Context, out *series) {
		r, err := s.read(ctx, true)
		failed := 0.0
		if err != nil || r.failed != nil {
			failed = 1
		}
		out.gauge("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, failed)
		out.machine(s.machine())
		if err != nil {
			return
		}
		t := &table{series: out, devices: devicesOf(s.sys, r), files: newFileCounter(ctx, s.proc)}
		t.row(row{group: r.host, links: r.links, disks: s.hostDisks(ctx)})
		if r.all != nil {
			t.row(row{group: r.all})
			for _, g := range classesOf(r.all, s.now()) {
				t.row(row{group: g})
			}
		}
		for i := range r.pods {
			t.pod(&r.pods[i])
		}
	})
}

// table writes rows.
type table struct {
	*series
	devices map[string]string // "259:0" → "/dev/nvme0n1"
	files   *fileCounter
}

// row is one cgroup, or one container with an unknown cgroup.
type row struct {
	group                           *group
	id, name, image, namespace, pod string
	container                       string
	began                           time.Time
	links                           []link
	disks                           map[string]disk // by device; disk.used is the usage of this row
	ofContainer                     bool            // it is a container or a sandbox, which has a first process
}

func (t *table) pod(p *podReading) {
	of := row{namespace: p.pod.Namespace, pod: p.pod.Name, began: started(p.pod).Time}
	if p.group != nil {
		r := of
		r.group = p.group
		t.row(r)
	}
	if p.sandbox != nil {
		r := of
		r.group, r.name, r.links, r.ofContainer = p.sandbox, p.sandboxID, p.links, true
		t.row(r)
	}
	for i := range p.containers {
		c := &p.containers[i]
		r := of
		r.group, r.name, r.image, r.container, r.ofContainer = c.group, c.id, c.status.Image, c.status.Name, true
		r.began = c.status.State.Running.StartedAt.Time
		if p.sandbox == nil && i == 0 {
			r.links = p.links // only one row has the pod's network, since queries add the rows up
		}
		if u := c.usage; u != nil && u.Writable.Used != nil {
			d := disk{used: *u.Writable.Used}
			if size, err := readDisk(u.Writable.Mountpoint); err == nil {
				d.capacity, d.inodes, d.inodesFree = size.capacity, size.inodes, size.inodesFree
			}
			r.disks = map[string]disk{"": d}
		}
		if r.group == nil {
			r.group, r.id = fromRuntime(c), "/"+c.id
		}
		t.row(r)
	}
}

// fromRuntime returns a group with the runtime's data.
func fromRuntime(c *containerReading) *group {
	u := c.usage
	g := &group{time: u.At, began: c.status.State.Running.StartedAt.Time, threadsMax: unlimited}
	g.cpu.total, g.cpu.quota = ptr.Deref(u.CPUNanoseconds, 0), -1
	g.memory = memoryUsage{
		usage: ptr.Deref(u.MemoryUsage, 0), workingSet: ptr.Deref(u.MemoryWorkingSet, 0), rss: ptr.Deref(u.MemoryRSS, 0), swap: ptr.Deref(u.SwapUsage, 0),
		faults: ptr.Deref(u.PageFaults, 0), majorFaults: ptr.Deref(u.MajorPageFaults, 0), limit: unlimited, swapLimit: unlimited, reservation: unlimited,
	}
	return g
}

// devicesOf names the block devices of a reading.
func devicesOf(sys string, r *reading) map[string]string {
	names := map[string]string{}
	for g := range r.groups {
		for _, d := range g.devices {
			if _, ok := names[d.number]; !ok {
				names[d.number] = deviceByNumber(sys, d.number)
			}
		}
	}
	return names
}

// deviceByNumber returns the path of a block device, or its number if it has no path.
func deviceByNumber(sys, number string) string {
	to, err := os.Readlink(filepath.Join(sys, "dev/block", number))
	if err != nil || strings.Contains(number, "/") {
		return number
	}
	return "/dev/" + filepath.Base(to)
}

// classesOf returns the cgroups of the QoS classes Burstable and BestEffort.
func classesOf(all *group, now time.Time) (classes []*group) {
	entries, err := os.ReadDir(someDir(all.at))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".slice")
		if !strings.HasSuffix(name, "burstable") && !strings.HasSuffix(name, "besteffort") {
			continue
		}
		if g, ok := readGroup(below(all.at, e.Name()), now, true); ok {
			classes = append(classes, g)
		}
	}
	return classes
}

func (s *series) machine(m machine) {
	s.gauge("cadvisor_version_info", "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.",
		labels{"cadvisorRevision", "", "cadvisorVersion", "", "dockerVersion", "", "kernelVersion", m.kernel, "osVersion", m.os}, 1)
	failed := 0.0
	if m.cores == 0 || m.memory == 0 {
		failed = 1
	}
	s.gauge("machine_scrape_error", "1 if there was an error while getting machine metrics, 0 otherwise.", nil, failed)
	of := labels{"boot_id", m.boot, "machine_id", m.id, "system_uuid", m.sys}
	s.gauge("machine_cpu_cores", "Number of logical CPU cores.", of, float64(m.cores))
	s.gauge("machine_cpu_physical_cores", "Number of physical CPU cores.", of, float64(m.physical))
	s.gauge("machine_cpu_sockets", "Number of CPU sockets.", of, float64(m.sockets))
	s.gauge("machine_cpu_books", "Number of CPU books.", of, float64(m.books))
	s.gauge("machine_cpu_drawers", "Number of CPU drawers.", of, float64(m.drawers))
	s.gauge("machine_memory_bytes", "Amount of memory installed on the machine.", of, float64(m.memory))
	s.gauge("machine_swap_bytes", "Amount of swap memory available on the machine.", of, float64(m.swap))
}

// limited returns a limit in cAdvisor's form, in which 0 is no limit.
func limited(n uint64) float64 {
	if n == unlimited {
		return 0
	}
	return float64(n)
}

const nanosecond = 1 / float64(time.Second)

// row writes all series of one row.
func (t *table) row(r row) {
	g := r.group
	if r.id == "" {
		r.id = g.at.Path
	}
	if r.began.IsZero() {
		r.began = g.began
	}
	of := labels{"container", r.container, "id", r.id, "image", r.image, "name", r.name, "namespace", r.namespace, "pod", r.pod}
	t.spec(of, r)
	now := func(name, help string, kind prometheus.ValueType, v float64, more ...string) {
		t.put(name, help, kind, of.with(more...), v, g.time)
	}
	t.put("container_last_seen", "Last time a container was seen by the exporter", prometheus.GaugeValue, of, float64(g.time.Unix()), g.time)
	for _, m := range cpuMetrics {
		if !m.whenLimited || g.cpu.quota > 0 {
			now(m.name, m.help, prometheus.CounterValue, m.value(&g.cpu), m.labels...)
		}
	}
	for _, m := range memoryMetrics {
		now(m.name, m.help, m.kind, m.value(&g.memory), m.labels...)
	}
	now("container_oom_events_total", "Count of out of memory events observed for the container", prometheus.CounterValue, float64(g.memory.kills))
	now("container_processes", "Number of processes running inside the container.", prometheus.GaugeValue, float64(g.processes))
	now("container_threads", "Number of threads running inside the container", prometheus.GaugeValue, float64(g.threads))
	now("container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", prometheus.GaugeValue, limited(g.threadsMax))
	t.openFiles(now, r)
	t.storage(now, r)
	for _, l := range r.links {
		for _, m := range linkMetrics {
			now(m.name, m.help, prometheus.CounterValue, float64(m.value(l)), "interface", l.name)
		}
	}
	for _, p := range pressureMetrics {
		if of := g.pressure[p.of]; of != nil {
			now("container_pressure_"+p.of+"_waiting_seconds_total", "Total time duration tasks in the container have waited due to "+p.word+" congestion.",
				prometheus.CounterValue, float64(of.some.total)/1e6)
			now("container_pressure_"+p.of+"_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to "+p.word+" congestion.",
				prometheus.CounterValue, float64(of.full.total)/1e6)
		}
	}
}

// valueWriter writes one value of a row, with labels of its own.
type valueWriter func(name, help string, kind prometheus.ValueType, v float64, more ...string)

// openFiles writes how many files and sockets the processes of a row have open. If there are more than the
// counter reads, the row has no such series, since a lower number would be wrong.
func (t *table) openFiles(now valueWriter, r row) {
	pids := processesOf(r.group.at)
	if o, ok := t.files.count(pids); ok {
		now("container_file_descriptors", "Number of open file descriptors for the container.", prometheus.GaugeValue, float64(o.descriptors))
		now("container_sockets", "Number of open sockets for the container.", prometheus.GaugeValue, float64(o.sockets))
	}
	if !r.ofContainer || len(pids) == 0 {
		return
	}
	if soft, ok := maxOpenFiles(t.files.proc, firstProcess(t.files.proc, pids)); ok {
		now("container_ulimits_soft", "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
			prometheus.GaugeValue, soft, "ulimit", "max_open_files")
	}
}

// storage writes the I/O of a row's devices, and its file systems.
func (t *table) storage(now valueWriter, r row) {
	for _, d := range r.group.devices {
		device := t.devices[d.number]
		for _, m := range deviceMetrics {
			if disk, ok := r.disks[device]; !ok || disk.traffic == nil || !m.ofDisks {
				now(m.name, m.help, prometheus.CounterValue, float64(m.value(d)), "device", device)
			}
		}
		major, minor, _ := strings.Cut(d.number, ":")
		for kind, n := range d.bytes {
			now("container_blkio_device_usage_total", "Blkio Device bytes usage", prometheus.CounterValue, float64(n),
				"device", device, "major", major, "minor", minor, "operation", kind)
		}
		for _, m := range costMetrics {
			if n, ok := d.cost[m.of]; ok {
				now(m.name, m.help, prometheus.CounterValue, float64(n)/1e6, "device", device)
			}
		}
	}
	for device, d := range r.disks {
		for _, m := range diskMetrics {
			now(m.name, m.help, prometheus.GaugeValue, float64(m.value(d)), "device", device)
		}
		if d.traffic == nil {
			continue
		}
		for _, m := range trafficMetrics {
			now(m.name, m.help, m.kind, m.value(d.traffic), "device", device)
		}
	}
}

// spec writes the limits of a row.
func (t *table) spec(of labels, r row) {
	g := r.group
	t.gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", of, float64(r.began.Unix()))
	t.gauge("container_spec_cpu_period", "CPU period of the container.", of, float64(g.cpu.period))
	t.gauge("container_spec_cpu_shares", "CPU share of the container.", of, float64(g.cpu.shares))
	if g.cpu.quota > 0 {
		t.gauge("container_spec_cpu_quota", "CPU quota of the container.", of, float64(g.cpu.quota))
	}
	t.gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", of, limited(g.memory.limit))
	t.gauge("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", of, limited(g.memory.swapLimit))
	t.gauge("container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", of, limited(g.memory.reservation))
}
