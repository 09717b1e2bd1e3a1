package stats

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Summary returns the kubelet's /stats/summary (C-1.40.7). With onlyCPUAndMemory, it has no disks and no
// networks, as for only_cpu_and_memory=true. Rates (usageNanoCores) are those since the last reading. If
// that is older than two minutes, or there is none, they are over a tenth of a second. Values that cannot be
// read are left out. An error says that ctx has ended.
func (s *Stats) Summary(ctx context.Context, onlyCPUAndMemory bool) (*api.Summary, error) {
	r, err := s.read(ctx, !onlyCPUAndMemory)
	if err != nil {
		return nil, err
	}
	rates, err := s.measure(ctx, r)
	if err != nil {
		return nil, err
	}
	a := &answer{Stats: s, reading: r, rates: rates}
	if !onlyCPUAndMemory {
		if a.measured, err = s.disks(ctx, r, true, func(*v1.Pod) bool { return true }); err != nil {
			return nil, err
		}
		a.filesystems(ctx)
	}
	return a.summary(), nil
}

func (a *answer) summary() *api.Summary {
	sum := &api.Summary{Node: a.node(), Pods: make([]api.PodStats, 0, len(a.pods))}
	for i := range a.pods {
		sum.Pods = append(sum.Pods, a.pod(&a.pods[i]))
	}
	return sum
}

// answer is a summary that is being built.
type answer struct {
	*Stats
	*reading
	rates    map[*group]*uint64
	measured map[string]measured // nil: without disks

	images, containers api.FsStats
	known              bool // the runtime has reported images and containers
}

// filesystems reads the file systems of images and of containers.
func (a *answer) filesystems(ctx context.Context) {
	images, containers, err := a.cfg.Runtime.Filesystems(ctx)
	if err != nil {
		a.cfg.Log.Warn("Failed to read image file system from runtime", "error", err)
		return
	}
	a.images, a.containers, a.known = a.filesystem(images), a.filesystem(containers), true
}

// filesystem returns a file system of the runtime, with its size from the kernel and its usage from the
// runtime.
func (a *answer) filesystem(f pod.Filesystem) api.FsStats {
	out := api.FsStats{Time: metav1.NewTime(a.now())}
	if f.Mountpoint != "" {
		if d, err := readDisk(f.Mountpoint); err == nil {
			out = a.ofDisk(d)
			out.InodesUsed = &d.inodesUsed
		}
	}
	if !f.At.IsZero() {
		out.Time = metav1.NewTime(f.At)
	}
	out.UsedBytes = f.Used
	if f.InodesUsed != nil && *f.InodesUsed > 0 {
		out.InodesUsed = f.InodesUsed
	}
	return out
}

// ofDisk returns the size of a disk, without usage.
func (a *answer) ofDisk(d disk) api.FsStats {
	return api.FsStats{
		Time:           metav1.NewTime(a.now()),
		AvailableBytes: &d.available, CapacityBytes: &d.capacity,
		Inodes: &d.inodes, InodesFree: &d.inodesFree,
	}
}

func (a *answer) node() api.NodeStats {
	m := a.machine()
	n := api.NodeStats{
		NodeName:         a.cfg.Node,
		StartTime:        metav1.NewTime(m.booted),
		CPU:              a.cpu(a.host),
		Memory:           a.memory(a.host),
		Swap:             a.swap(a.host),
		SystemContainers: a.system(),
	}
	if a.measured == nil {
		return n
	}
	n.IO = a.io(a.host)
	n.Network = network(a.links, "eth0", a.reading.time) // like the kubelet, even if the default route has another device
	if d, err := readDisk(a.cfg.RootDir); err == nil {
		fs := a.ofDisk(d)
		fs.UsedBytes, fs.InodesUsed = &d.used, &d.inodesUsed
		n.Fs = &fs
	}
	if a.known {
		n.Runtime = &api.RuntimeStats{ImageFs: &a.images, ContainerFs: &a.containers}
	}
	n.Rlimit = &api.RlimitStats{Time: metav1.NewTime(a.now()), MaxPID: &m.maxPIDs}
	if threads, ok := threadsNow(a.proc); ok {
		n.Rlimit.NumOfRunningProcesses = &threads
	}
	return n
}

// system returns the usage of the agent, the runtime and all pods.
func (a *answer) system() []api.ContainerStats {
	var all []api.ContainerStats
	add := func(name string, g *group) {
		if g == nil {
			return
		}
		c := api.ContainerStats{Name: name, StartTime: metav1.NewTime(g.began), CPU: a.cpu(g), Memory: a.memory(g), Swap: a.swap(g)}
		if a.measured != nil {
			c.IO = a.io(g)
		}
		all = append(all, c)
	}
	add(api.SystemContainerKubelet, a.agent)
	add(api.SystemContainerRuntime, a.runtime)
	add(api.SystemContainerPods, a.reading.all)
	return all
}

func (a *answer) pod(r *podReading) api.PodStats {
	p := api.PodStats{
		PodRef:     api.PodReference{Name: r.pod.Name, Namespace: r.pod.Namespace, UID: string(r.pod.UID)},
		StartTime:  started(r.pod),
		Containers: make([]api.ContainerStats, 0, len(r.containers)),
	}
	disks := a.measured[string(r.pod.UID)]
	processes := uint64(0)
	for i := range r.containers {
		c := a.container(&r.containers[i], &disks)
		p.Containers = append(p.Containers, c)
		if g := r.containers[i].group; g != nil {
			processes += uint64(g.processes)
		}
	}
	if r.group != nil {
		p.CPU, p.Memory, p.Swap = a.cpu(r.group), a.memory(r.group), a.swap(r.group)
	} else {
		a.total(&p)
	}
	if a.measured == nil {
		return p
	}
	if r.group != nil {
		p.IO = a.io(r.group)
		p.ProcessStats = &api.ProcessStats{ProcessCount: &processes} // of its containers, like the kubelet
	}
	p.Network = network(r.links, "eth0", a.reading.time)
	a.storage(&p, r.pod, &disks)
	return p
}

// started returns when the node first acknowledged a pod.
func started(p *v1.Pod) metav1.Time {
	if p.Status.StartTime != nil {
		return *p.Status.StartTime
	}
	return p.CreationTimestamp
}

func (a *answer) container(r *containerReading, disks *measured) api.ContainerStats {
	c := api.ContainerStats{Name: r.status.Name, StartTime: r.status.State.Running.StartedAt}
	if r.group != nil {
		c.CPU, c.Memory, c.Swap = a.cpu(r.group), a.memory(r.group), a.swap(r.group)
	} else {
		c.CPU, c.Memory, c.Swap = runtimeStats(r.usage)
	}
	if a.measured == nil {
		return c
	}
	if r.group != nil {
		c.IO = a.io(r.group)
	}
	if r.usage != nil {
		fs := a.filesystem(r.usage.Writable)
		fs.InodesUsed = r.usage.Writable.InodesUsed // not those of the disk
		if fs.CapacityBytes == nil {
			size := a.containers
			size.Time, size.UsedBytes, size.InodesUsed = fs.Time, fs.UsedBytes, fs.InodesUsed
			fs = size
		}
		c.Rootfs = &fs
	}
	if logs, ok := disks.logs[r.status.Name]; ok && disks.logDisk != nil {
		fs := a.ofDisk(*disks.logDisk)
		fs.Time, fs.UsedBytes, fs.InodesUsed = metav1.NewTime(disks.at), &logs.bytes, &logs.inodes
		c.Logs = &fs
	}
	return c
}

// total adds up the usage of the containers of a pod without a cgroup.
func (a *answer) total(p *api.PodStats) {
	cpu, working, usage := uint64(0), uint64(0), uint64(0)
	var at metav1.Time
	for _, c := range p.Containers {
		if c.CPU == nil || c.CPU.UsageCoreNanoSeconds == nil || c.Memory == nil || c.Memory.WorkingSetBytes == nil {
			return
		}
		at = c.CPU.Time
		cpu += *c.CPU.UsageCoreNanoSeconds
		working += *c.Memory.WorkingSetBytes
		if c.Memory.UsageBytes != nil {
			usage += *c.Memory.UsageBytes
		}
	}
	p.CPU = &api.CPUStats{Time: at, UsageCoreNanoSeconds: &cpu}
	p.Memory = &api.MemoryStats{Time: at, WorkingSetBytes: &working, UsageBytes: &usage}
}

// storage adds the pod's disk usage: its volumes, and its ephemeral storage.
func (a *answer) storage(p *api.PodStats, of *v1.Pod, disks *measured) {
	var used, inodes uint64
	add := func(bytes, files *uint64) {
		if bytes != nil {
			used += *bytes
		}
		if files != nil {
			inodes += *files
		}
	}
	for _, c := range p.Containers {
		for _, fs := range []*api.FsStats{c.Rootfs, c.Logs} {
			if fs != nil {
				add(fs.UsedBytes, fs.InodesUsed)
			}
		}
	}
	add(&disks.own.bytes, &disks.own.inodes)
	for i := range disks.volumes {
		v := &disks.volumes[i]
		fs := a.ofDisk(v.disk)
		fs.Time, fs.UsedBytes, fs.InodesUsed = metav1.NewTime(disks.at), &v.taken.bytes, &v.taken.inodes
		out := api.VolumeStats{Name: v.name, FsStats: fs}
		if v.claim != "" {
			out.PVCRef = &api.PVCReference{Name: v.claim, Namespace: of.Namespace}
		}
		if v.health.Known {
			out.VolumeHealthStats = &api.VolumeHealthStats{Abnormal: v.health.Abnormal}
		}
		p.VolumeStats = append(p.VolumeStats, out)
		if v.ephemeral {
			add(&v.taken.bytes, &v.taken.inodes)
		}
	}
	if d, err := readDisk(a.cfg.RootDir); err == nil {
		fs := a.ofDisk(d)
		fs.UsedBytes, fs.InodesUsed = &used, &inodes
		p.EphemeralStorage = &fs
	}
}

// network converts links to the kubelet's type; nil if there are none. first is the name of the main device.
func network(links []link, first string, at time.Time) *api.NetworkStats {
	if len(links) == 0 {
		return nil
	}
	n := &api.NetworkStats{Time: metav1.NewTime(at)}
	for i := range links {
		l := &links[i]
		stats := api.InterfaceStats{
			Name: l.name, RxBytes: &l.received.bytes, RxErrors: &l.received.errors,
			TxBytes: &l.sent.bytes, TxErrors: &l.sent.errors,
		}
		if l.name == first {
			n.InterfaceStats = stats
		}
		n.Interfaces = append(n.Interfaces, stats)
	}
	return n
}
