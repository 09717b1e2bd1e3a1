package stats

import "github.com/prometheus/client_golang/prometheus"

// This file has the names and help texts of cAdvisor's series, which dashboards use.

var cpuMetrics = []struct {
	name, help  string
	labels      []string
	whenLimited bool // only with a quota
	value       func(*cpuUsage) float64
}{
	{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", []string{"cpu", "total"}, false,
		func(c *cpuUsage) float64 { return float64(c.total) * nanosecond }},
	{"container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", nil, false,
		func(c *cpuUsage) float64 { return float64(c.user) * nanosecond }},
	{"container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", nil, false,
		func(c *cpuUsage) float64 { return float64(c.system) * nanosecond }},
	{"container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", nil, true,
		func(c *cpuUsage) float64 { return float64(c.periods) }},
	{"container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", nil, true,
		func(c *cpuUsage) float64 { return float64(c.throttled) }},
	{"container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", nil, true,
		func(c *cpuUsage) float64 { return float64(c.waiting) * nanosecond }},
	{"container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", nil, true,
		func(c *cpuUsage) float64 { return float64(c.bursts) }},
	{"container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.", nil, true,
		func(c *cpuUsage) float64 { return float64(c.burst) * nanosecond }},
}

var memoryMetrics = []struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	value      func(*memoryUsage) float64
}{
	{"container_memory_cache", "Number of bytes of page cache memory.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.cache) }},
	{"container_memory_rss", "Size of RSS in bytes.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.rss) }},
	{"container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.kernel) }},
	{"container_memory_mapped_file", "Size of memory mapped files in bytes.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.mapped) }},
	{"container_memory_swap", "Container swap usage in bytes.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.swap) }},
	{"container_memory_failcnt", "Number of memory usage hits limits", prometheus.CounterValue, nil,
		func(m *memoryUsage) float64 { return float64(m.failures) }},
	{"container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.usage) }},
	{"container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.most) }},
	{"container_memory_working_set_bytes", "Current working set in bytes.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.workingSet) }},
	{"container_memory_total_active_file_bytes", "Current total active file in bytes.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.active) }},
	{"container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", prometheus.GaugeValue, nil,
		func(m *memoryUsage) float64 { return float64(m.inactive) }},
	{"container_memory_failures_total", "Cumulative count of memory allocation failures.", prometheus.CounterValue,
		[]string{"failure_type", "pgfault", "scope", "container"}, func(m *memoryUsage) float64 { return float64(m.ownFaults) }},
	{"container_memory_failures_total", "Cumulative count of memory allocation failures.", prometheus.CounterValue,
		[]string{"failure_type", "pgmajfault", "scope", "container"}, func(m *memoryUsage) float64 { return float64(m.ownMajorFaults) }},
	{"container_memory_failures_total", "Cumulative count of memory allocation failures.", prometheus.CounterValue,
		[]string{"failure_type", "pgfault", "scope", "hierarchy"}, func(m *memoryUsage) float64 { return float64(m.faults) }},
	{"container_memory_failures_total", "Cumulative count of memory allocation failures.", prometheus.CounterValue,
		[]string{"failure_type", "pgmajfault", "scope", "hierarchy"}, func(m *memoryUsage) float64 { return float64(m.majorFaults) }},
}

// pressureMetrics has the resources for which the kernel measures pressure.
var pressureMetrics = []struct{ of, word string }{{"cpu", "CPU"}, {"memory", "memory"}, {"io", "IO"}}

// deviceMetrics has the I/O of devices that a cgroup counts. For the machine's disks, trafficMetrics replaces
// some of them by the counts of the kernel.
var deviceMetrics = []struct {
	name, help string
	ofDisks    bool // trafficMetrics has this metric for the machine's disks
	value      func(deviceUsage) uint64
}{
	{"container_fs_reads_bytes_total", "Cumulative count of bytes read", false, func(d deviceUsage) uint64 { return d.readBytes }},
	{"container_fs_reads_total", "Cumulative count of reads completed", true, func(d deviceUsage) uint64 { return d.reads }},
	{"container_fs_writes_bytes_total", "Cumulative count of bytes written", false, func(d deviceUsage) uint64 { return d.writeBytes }},
	{"container_fs_writes_total", "Cumulative count of writes completed", true, func(d deviceUsage) uint64 { return d.wrote }},
}

var diskMetrics = []struct {
	name, help string
	value      func(disk) uint64
}{
	{"container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", func(d disk) uint64 { return d.used }},
	{"container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", func(d disk) uint64 { return d.capacity }},
	{"container_fs_inodes_free", "Number of available Inodes", func(d disk) uint64 { return d.inodesFree }},
	{"container_fs_inodes_total", "Number of Inodes", func(d disk) uint64 { return d.inodes }},
}

// costMetrics has the times that the controller io.cost counts, in microseconds.
var costMetrics = []struct{ name, help, of string }{
	{"container_fs_io_cost_usage_seconds_total", "Cumulative IOCost usage in seconds", "usage"},
	{"container_fs_io_cost_wait_seconds_total", "Cumulative IOCost wait in seconds", "wait"},
	{"container_fs_io_cost_indebt_seconds_total", "Cumulative IOCost debt in seconds", "indebt"},
	{"container_fs_io_cost_indelay_seconds_total", "Cumulative IOCost delay in seconds", "indelay"},
}

// trafficMetrics has the I/O of the machine's disks, which the kernel counts since the boot. Unlike cAdvisor,
// which divides milliseconds by 1e9, it has seconds, as the names of the series say.
var trafficMetrics = []struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*diskTraffic) float64
}{
	{"container_fs_reads_total", "Cumulative count of reads completed", prometheus.CounterValue, func(d *diskTraffic) float64 { return float64(d.reads) }},
	{"container_fs_reads_merged_total", "Cumulative count of reads merged", prometheus.CounterValue, func(d *diskTraffic) float64 { return float64(d.readsMerged) }},
	{"container_fs_sector_reads_total", "Cumulative count of sector reads completed", prometheus.CounterValue, func(d *diskTraffic) float64 { return float64(d.sectorsRead) }},
	{"container_fs_read_seconds_total", "Cumulative count of seconds spent reading", prometheus.CounterValue, func(d *diskTraffic) float64 { return d.reading.Seconds() }},
	{"container_fs_writes_total", "Cumulative count of writes completed", prometheus.CounterValue, func(d *diskTraffic) float64 { return float64(d.writes) }},
	{"container_fs_writes_merged_total", "Cumulative count of writes merged", prometheus.CounterValue, func(d *diskTraffic) float64 { return float64(d.writesMerged) }},
	{"container_fs_sector_writes_total", "Cumulative count of sector writes completed", prometheus.CounterValue, func(d *diskTraffic) float64 { return float64(d.sectorsWritten) }},
	{"container_fs_write_seconds_total", "Cumulative count of seconds spent writing", prometheus.CounterValue, func(d *diskTraffic) float64 { return d.writing.Seconds() }},
	{"container_fs_io_current", "Number of I/Os currently in progress", prometheus.GaugeValue, func(d *diskTraffic) float64 { return float64(d.current) }},
	{"container_fs_io_time_seconds_total", "Cumulative count of seconds spent doing I/Os", prometheus.CounterValue, func(d *diskTraffic) float64 { return d.busy.Seconds() }},
	{"container_fs_io_time_weighted_seconds_total", "Cumulative weighted I/O time in seconds", prometheus.CounterValue, func(d *diskTraffic) float64 { return d.weighted.Seconds() }},
}

var linkMetrics = []struct {
	name, help string
	value      func(link) uint64
}{
	{"container_network_receive_bytes_total", "Cumulative count of bytes received", func(l link) uint64 { return l.received.bytes }},
	{"container_network_receive_packets_total", "Cumulative count of packets received", func(l link) uint64 { return l.received.packets }},
	{"container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", func(l link) uint64 { return l.received.dropped }},
	{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", func(l link) uint64 { return l.received.errors }},
	{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", func(l link) uint64 { return l.sent.bytes }},
	{"container_network_transmit_packets_total", "Cumulative count of packets transmitted", func(l link) uint64 { return l.sent.packets }},
	{"container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", func(l link) uint64 { return l.sent.dropped }},
	{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", func(l link) uint64 { return l.sent.errors }},
}
