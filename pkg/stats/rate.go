package stats

import (
	"context"
	"time"
)

const (
	// stale is how old the previous sample may be: a rate over a longer time says little about the
	// current usage.
	stale = 2 * time.Minute
	// window is the time between two samples if there is no previous one.
	window = 100 * time.Millisecond
)

// groups yields all groups of a reading.
func (r *reading) groups(yield func(*group) bool) {
	if !yield(r.host) {
		return
	}
	for _, g := range []*group{r.all, r.agent, r.runtime} {
		if g != nil && !yield(g) {
			return
		}
	}
	for _, p := range r.pods {
		for _, g := range []*group{p.group, p.sandbox} {
			if g != nil && !yield(g) {
				return
			}
		}
		for _, c := range p.containers {
			if c.group != nil && !yield(c.group) {
				return
			}
		}
	}
}

// rates sets the rates of a new reading's groups since the previous reading; the caller
// holds the turn.
func (s *Stats) rates(r *reading) {
	if s.last == nil || r.time.Sub(s.last.time) > stale {
		return
	}
	before := map[string]*group{}
	for g := range s.last.groups {
		before[g.at.Path] = g
	}
	for g := range r.groups {
		if old := before[g.at.Path]; old != nil {
			g.rate = rate(old.cpu.total, g.cpu.total, g.time.Sub(old.time))
		}
	}
}

// rate returns a CPU usage in nanocores; nil if the counter or the clock went back.
func rate(before, now uint64, took time.Duration) *uint64 {
	if took <= 0 || now < before {
		return nil
	}
	n := uint64(float64(now-before) / took.Seconds())
	return &n
}

// measure returns rates for the groups without one. It takes two samples of their CPU time, window apart.
func (s *Stats) measure(ctx context.Context, r *reading) (map[*group]*uint64, error) {
	type sample struct {
		cpu uint64
		at  time.Time
	}
	began := map[*group]sample{}
	for g := range r.groups {
		if g.rate == nil {
			if cpu, ok := s.cpuOf(g); ok {
				began[g] = sample{cpu, s.now()}
			}
		}
	}
	rates := map[*group]*uint64{}
	if len(began) == 0 {
		return rates, nil
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for g, first := range began {
		if cpu, ok := s.cpuOf(g); ok {
			rates[g] = rate(first.cpu, cpu, s.now().Sub(first.at))
		}
	}
	return rates, nil
}

func (s *Stats) cpuOf(g *group) (uint64, bool) {
	if g.process != "" {
		p, ok := readProcess(s.proc, g.process, g.began)
		return p.cpu, ok
	}
	if cpu, ok := cpuNow(g.at); ok && (cpu > 0 || !g.host) {
		return cpu, true
	}
	if !g.host {
		return 0, false
	}
	cpu, _, _, ok := hostCPU(s.proc)
	return cpu, ok
}
