package stats

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// rateOf returns the CPU usage of a group in nanocores; nil if it is unknown.
func (a *answer) rateOf(g *group) *uint64 {
	if g.rate != nil {
		return g.rate
	}
	return a.rates[g]
}

func (a *answer) cpu(g *group) *api.CPUStats {
	return &api.CPUStats{
		Time: metav1.NewTime(g.time), UsageNanoCores: a.rateOf(g), UsageCoreNanoSeconds: &g.cpu.total, PSI: a.psi(g, "cpu"),
	}
}

func (a *answer) memory(g *group) *api.MemoryStats {
	m := &g.memory
	s := &api.MemoryStats{
		Time: metav1.NewTime(g.time), UsageBytes: &m.usage, WorkingSetBytes: &m.workingSet, RSSBytes: &m.rss,
		PageFaults: &m.faults, MajorPageFaults: &m.majorFaults, PSI: a.psi(g, "memory"),
	}
	if m.limit < unlimited && m.limit > 0 {
		left := m.limit - min(m.workingSet, m.limit)
		s.AvailableBytes = &left
	}
	return s
}

func (a *answer) swap(g *group) *api.SwapStats {
	s := &api.SwapStats{Time: metav1.NewTime(g.time), SwapUsageBytes: &g.memory.swap}
	if g.memory.swapLimit < unlimited {
		left := g.memory.swapLimit - min(g.memory.swap, g.memory.swapLimit)
		s.SwapAvailableBytes = &left
	}
	return s
}

// io returns the I/O of a group, which is only its pressure; nil for a reading without pressure.
func (a *answer) io(g *group) *api.IOStats {
	if p := a.psi(g, "io"); p != nil {
		return &api.IOStats{Time: metav1.NewTime(g.time), PSI: p}
	}
	return nil
}

// psi returns the pressure on a group. As in the kubelet, it is zero if the kernel does not measure it. It is
// nil for a reading without pressure.
func (a *answer) psi(g *group, what string) *api.PSIStats {
	if !a.full {
		return nil
	}
	p := g.pressure[what]
	if p == nil {
		return &api.PSIStats{}
	}
	of := func(s stalled) api.PSIData {
		return api.PSIData{Total: s.total * uint64(time.Microsecond), Avg10: s.avg10, Avg60: s.avg60, Avg300: s.avg300}
	}
	return &api.PSIStats{Full: of(p.full), Some: of(p.some)}
}

// runtimeStats returns the data from the runtime, for a container whose cgroup is not known.
func runtimeStats(u *pod.ContainerUsage) (*api.CPUStats, *api.MemoryStats, *api.SwapStats) {
	at := metav1.NewTime(u.At)
	cpu := &api.CPUStats{Time: at, UsageNanoCores: u.CPURate, UsageCoreNanoSeconds: u.CPUNanoseconds}
	memory := &api.MemoryStats{
		Time: at, AvailableBytes: u.MemoryAvailable, UsageBytes: u.MemoryUsage, WorkingSetBytes: u.MemoryWorkingSet,
		RSSBytes: u.MemoryRSS, PageFaults: u.PageFaults, MajorPageFaults: u.MajorPageFaults,
	}
	if u.SwapUsage == nil {
		return cpu, memory, nil
	}
	return cpu, memory, &api.SwapStats{Time: at, SwapUsageBytes: u.SwapUsage, SwapAvailableBytes: u.SwapAvailable}
}
