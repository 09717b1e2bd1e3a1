package arm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/report"
)

// Window is one idle interval, its CPU times scaled to a minute.
type Window struct {
	AgentCPU, RuntimeCPU time.Duration // in ticks, reaped children included
	AgentExact           time.Duration // of its threads, to the nanosecond
	Anon, RSS            int64         // the largest seen, in bytes
	// Written and RuntimeWritten are how many bytes they have sent to a disk (not scaled).
	Written, RuntimeWritten int64
	Calls                   report.Calls // through the proxy
	Took                    time.Duration
}

// CallsPerSecond is how many calls the agent made.
func (w Window) CallsPerSecond() float64 { return float64(w.Calls.Total()) / w.Took.Seconds() }

// Window measures an agent (0: none), its calls through a proxy (nil: none) and containerd
// while nothing happens. At its end both must run, and as many containers as pods.
func (l *Lab) Window(ctx context.Context, pid int, front *criproxy.Proxy, length time.Duration, pods int) (w Window, err error) {
	daemon, err := Peer(l.Node.Endpoint)
	if err != nil {
		return w, err
	}
	var before report.Calls
	if front != nil {
		before = front.Counts()
	}
	begin, agent, exact, rt := time.Now(), Ticks(pid), CPU(pid), Ticks(daemon)
	written, rtWritten, err := writtenBy(pid, daemon)
	if err != nil {
		return w, err
	}
	for time.Since(begin) < length {
		if err := Pause(ctx, min(5*time.Second, time.Until(begin.Add(length)))); err != nil {
			return w, err
		}
		if pid != 0 {
			anon, rss := Memory(pid)
			w.Anon, w.RSS = max(w.Anon, anon), max(w.RSS, rss)
		}
	}
	w.Took = time.Since(begin)
	scale := float64(time.Minute) / float64(w.Took)
	w.AgentCPU = time.Duration(float64(Ticks(pid)-agent) * scale)
	w.AgentExact = time.Duration(float64(CPU(pid)-exact) * scale)
	w.RuntimeCPU = time.Duration(float64(Ticks(daemon)-rt) * scale)
	writtenNow, rtWrittenNow, err := writtenBy(pid, daemon)
	if err != nil {
		return w, fmt.Errorf("at the end of the window: %w", err)
	}
	w.Written, w.RuntimeWritten = writtenNow-written, rtWrittenNow-rtWritten
	if front != nil {
		w.Calls = report.Calls(front.Counts()).Since(before)
	}
	if ids, err := l.RunningContainers(ctx); err != nil || len(ids) != pods {
		return w, errors.Join(err, fmt.Errorf("%d containers run after the window, want %d", len(ids), pods))
	}
	return w, nil
}

// writtenBy returns Written of an agent (0: none) and of containerd.
func writtenBy(agent, daemon int) (a, d int64, err error) {
	if agent != 0 {
		if a, err = Written(agent); err != nil {
			return 0, 0, fmt.Errorf("agent: %w", err)
		}
	}
	if d, err = Written(daemon); err != nil {
		return 0, 0, fmt.Errorf("containerd: %w", err)
	}
	return a, d, nil
}
