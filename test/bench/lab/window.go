package lab

import (
	"context"
	"time"
)

// Window is one idle interval, its CPU times scaled to a minute.
type Window struct {
	AgentCPU, RuntimeCPU time.Duration // in ticks, reaped children included
	AgentExact           time.Duration // of its threads, to the nanosecond
	Anon, RSS            int64         // the largest seen, in bytes
}

// Window measures an agent (0: none) and containerd while nothing happens.
func (l *Lab) Window(ctx context.Context, pid int, length time.Duration) (Window, error) {
	daemon, err := Peer(l.Node.Endpoint)
	if err != nil {
		return Window{}, err
	}
	var w Window
	begin, agent, exact, rt := time.Now(), Ticks(pid), CPU(pid), Ticks(daemon)
	for time.Since(begin) < length {
		if err := Pause(ctx, min(5*time.Second, time.Until(begin.Add(length)))); err != nil {
			return w, err
		}
		if pid != 0 {
			anon, rss := Memory(pid)
			w.Anon, w.RSS = max(w.Anon, anon), max(w.RSS, rss)
		}
	}
	scale := float64(time.Minute) / float64(time.Since(begin))
	w.AgentCPU = time.Duration(float64(Ticks(pid)-agent) * scale)
	w.AgentExact = time.Duration(float64(CPU(pid)-exact) * scale)
	w.RuntimeCPU = time.Duration(float64(Ticks(daemon)-rt) * scale)
	return w, nil
}
