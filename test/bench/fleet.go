package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/report"
)

const (
	fleetPods = 50
	mostPods  = 110
)

// nothing is a limit of bytes, in kB: a limit of 0 would be none.
const nothing = 0.0005

// fleet runs do with an agent behind a proxy that counts its calls, and with so many idle pods.
func (b *bench) fleet(ctx context.Context, name string, pods int, do func(*arm.Turn, *criproxy.Proxy) error) (err error) {
	front, err := criproxy.New(b.Node.Endpoint, filepath.Join(b.Dir, name+".sock"), criproxy.Hooks{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	return b.serve(ctx, name, front.Endpoint(), func(t *arm.Turn) error {
		arm.Say("starting %d pods", pods)
		for i := range pods {
			if _, err := t.DropPod(fmt.Sprintf("%s-%02d", name, i), arm.PodShape{}); err != nil {
				return err
			}
		}
		if err := b.AwaitRunningContainers(ctx, pods); err != nil {
			return err
		}
		if err := arm.Pause(ctx, 30*time.Second); err != nil { // containerd still writes about the pods that it has started
			return err
		}
		return do(t, front)
	})
}

// measureNode is measures 12, 5 and 6, on the same pods: the bytes that an idle agent writes to the
// disk, its cost, and how soon a starting agent knows all pods.
func (b *bench) measureNode(ctx context.Context) error {
	return b.fleet(ctx, "fleet", fleetPods, func(t *arm.Turn, front *criproxy.Proxy) error {
		if b.Wants("12") {
			if err := b.measureWrites(ctx, t); err != nil {
				return err
			}
		}
		if b.Wants("5") {
			if err := b.measureIdle(ctx, t, front); err != nil {
				return err
			}
		}
		if b.Wants("6") {
			return b.measureRestart(ctx, t)
		}
		return nil
	})
}

// measureWrites is measure 12. The agent's log is a file, and counts.
func (b *bench) measureWrites(ctx context.Context, t *arm.Turn) error {
	m := b.Begin(ctx, 12, fmt.Sprintf("disk writes at rest, %d pods", fleetPods), "one window of ten minutes, after the pods have run for half a minute; write_bytes of /proc/PID/io")
	w, err := b.Window(ctx, t.PID(), nil, b.Span(10*time.Minute, 2*time.Minute), fleetPods)
	if err != nil {
		return err
	}
	m.Arm("agent, kB").Value(float64(w.Written) / 1e3)
	m.Arm("containerd, kB").Value(float64(w.RuntimeWritten) / 1e3)
	m.Max("agent, kB", nothing, "kB")
	m.Max("containerd, kB", 64, "kB")
	return nil
}

// measureMost is measure 13: the agent's cost with the most pods of a node.
func (b *bench) measureMost(ctx context.Context) error {
	return b.fleet(ctx, "most", mostPods, func(t *arm.Turn, front *criproxy.Proxy) error {
		m := b.Begin(ctx, 13, fmt.Sprintf("%d idle pods", mostPods), "as measure 5")
		windows := b.Count(3, 1)
		for i := range windows {
			w, err := b.Window(ctx, t.PID(), front, time.Minute, mostPods)
			if err != nil {
				return err
			}
			m.Arm("agent, CPU a minute").Add(w.AgentExact)
			m.Arm("CRI calls a second").Value(w.CallsPerSecond())
			m.Note("window %d: calls %s", i+1, w.Calls)
			arm.Say("idle: %d/%d", i+1, windows)
		}
		m.Max("agent, CPU a minute", 60, "ms")
		m.Max("CRI calls a second", 0.15, "/s")
		return nil
	})
}

// measureIdle is measure 5. It leaves the agent running.
func (b *bench) measureIdle(ctx context.Context, t *arm.Turn, front *criproxy.Proxy) error {
	m := b.Begin(ctx, 5, fmt.Sprintf("%d idle pods", fleetPods),
		"windows of a minute, after the pods have run for half a minute; utime+stime with reaped children, the largest RssAnon and VmRSS, calls counted by a proxy on the socket")
	length, windows := b.Span(time.Minute, 15*time.Second), b.Count(3, 1)
	for i := range windows {
		w, err := b.Window(ctx, t.PID(), front, length, fleetPods)
		if err != nil {
			return err
		}
		m.Arm("agent, CPU a minute").Add(w.AgentCPU)
		m.Arm("agent, CPU a minute by schedstat").Add(w.AgentExact)
		m.Arm("containerd, CPU a minute").Add(w.RuntimeCPU)
		m.Arm("RssAnon, MB").Value(float64(w.Anon) / report.MB)
		m.Arm("VmRSS, MB").Value(float64(w.RSS) / report.MB)
		m.Arm("CRI calls a second").Value(w.CallsPerSecond())
		m.Note("window %d: calls %s", i+1, w.Calls)
		arm.Say("idle: %d/%d", i+1, windows)
	}
	m.Max("agent, CPU a minute", 150, "ms")
	m.Max("RssAnon, MB", 20, "MB")
	m.Max("VmRSS, MB", 45, "MB")
	m.Max("CRI calls a second", 0.5, "/s")
	if b.Quick {
		return nil
	}
	arm.Say("%d pods without an agent", fleetPods)
	if err := t.Finish(syscall.SIGTERM); err != nil {
		return err
	}
	w, err := b.Window(ctx, 0, nil, length, fleetPods)
	if err != nil {
		return err
	}
	m.Arm("containerd without an agent, CPU a minute").Add(w.RuntimeCPU)
	return t.Begin()
}

// measureRestart is measure 6: the agent is stopped, by SIGTERM and by SIGKILL in turn, and
// started again. It must find every pod, and touch none.
func (b *bench) measureRestart(ctx context.Context, t *arm.Turn) error {
	m := b.Begin(ctx, 6, fmt.Sprintf("restart of the agent at %d pods", fleetPods),
		"exec of serve → its line `Status of every pod is known`, after SIGTERM and SIGKILL in turn; get pods shows all Running right after, and every container is the one it was")
	rounds := b.Count(10, 3)
	for i := range rounds {
		if err := b.Restart(ctx, m, t, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2], b.Node.Endpoint, fleetPods); err != nil {
			return err
		}
		arm.Say("restart: %d/%d", i+1, rounds)
	}
	m.Max("nodectl", 1000, "ms")
	return nil
}
