package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const fleetPods = 50

// mb is what the limits count memory in.
const mb = 1e6

// measureNode is measures 5 and 6, on the same pods: what an agent costs that
// has nothing to do, and how soon one that starts knows them all.
func (b *bench) measureNode(ctx context.Context) (err error) {
	d, err := b.newDirs("fleet")
	if err != nil {
		return err
	}
	front, err := newProxy(b.node.Endpoint, filepath.Join(b.scratch, "fleet.sock"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.close()) }()
	a, err := b.serve(d, front.endpoint())
	if err != nil {
		return err
	}
	running := true
	defer func() {
		if running {
			err = errors.Join(err, a.end(syscall.SIGTERM))
		}
	}()
	if err := b.settle(ctx, a); err != nil {
		return err
	}
	b.say("starting %d pods", fleetPods)
	for i := range fleetPods {
		if _, err := d.drop(fmt.Sprintf("fleet-%02d", i), false); err != nil {
			return err
		}
	}
	if err := b.awaitFleet(ctx); err != nil {
		return err
	}
	if b.wants(5) {
		if err := b.measureIdle(ctx, a, front); err != nil {
			return err
		}
	}
	running = false
	if err := a.end(syscall.SIGTERM); err != nil {
		return err
	}
	if b.wants(5) && !b.quick {
		b.say("%d pods without an agent", fleetPods)
		w, err := b.window(ctx, 0)
		if err != nil {
			return err
		}
		b.report.find(5).arm("containerd without an agent, CPU a minute").add(w.runtimeCPU)
	}
	if b.wants(6) {
		return b.measureRestart(ctx, d)
	}
	return nil
}

// awaitFleet returns when every container of the fleet runs.
func (b *bench) awaitFleet(ctx context.Context) error {
	const limit = 2 * time.Minute
	for deadline := time.Now().Add(limit); ; {
		ids, err := b.runningContainers(ctx)
		if err != nil {
			return err
		}
		if len(ids) == fleetPods {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d containers run after %s, want %d", len(ids), limit, fleetPods)
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// runningContainers returns the IDs of what runs.
func (b *bench) runningContainers(ctx context.Context) (map[string]bool, error) {
	r, err := b.node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	ids := make(map[string]bool, len(r.Containers))
	for _, c := range r.Containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			ids[c.Id] = true
		}
	}
	return ids, nil
}

// window is one stretch of idleness, its CPU times scaled to a minute.
type window struct {
	agentCPU, runtimeCPU time.Duration // in ticks, reaped children included
	agentExact           time.Duration // of its threads, to the nanosecond
	anon, rss            int64         // the largest seen, in bytes
}

// window looks at an agent (0: none) and at containerd while nothing happens.
func (b *bench) window(ctx context.Context, pid int) (window, error) {
	length := 60 * time.Second
	if b.quick {
		length = 15 * time.Second
	}
	daemon, err := peer(b.node.Endpoint)
	if err != nil {
		return window{}, err
	}
	var w window
	begin, agent, exact, rt := time.Now(), ticksOf(pid), cpuOf(pid), ticksOf(daemon)
	for time.Since(begin) < length {
		if err := pause(ctx, min(5*time.Second, time.Until(begin.Add(length)))); err != nil {
			return w, err
		}
		if pid != 0 {
			anon, rss := memoryOf(pid)
			w.anon, w.rss = max(w.anon, anon), max(w.rss, rss)
		}
	}
	perMinute := float64(time.Minute) / float64(time.Since(begin))
	w.agentCPU = time.Duration(float64(ticksOf(pid)-agent) * perMinute)
	w.agentExact = time.Duration(float64(cpuOf(pid)-exact) * perMinute)
	w.runtimeCPU = time.Duration(float64(ticksOf(daemon)-rt) * perMinute)
	return w, nil
}

// measureIdle is measure 5.
func (b *bench) measureIdle(ctx context.Context, a *agent, front *proxy) error {
	m := b.report.measure(5, fmt.Sprintf("%d idle pods", fleetPods),
		"windows of a minute, after the pods have run for half a minute; utime+stime with reaped children, the largest RssAnon and VmRSS, calls counted by a proxy on the socket")
	settle, windows := 30*time.Second, b.count(3, 1)
	if b.quick {
		settle = 5 * time.Second
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	b.noise(ctx, m)
	for i := range windows {
		before, begin := front.calls(), time.Now()
		w, err := b.window(ctx, a.pid())
		if err != nil {
			return err
		}
		calls := since(front.calls(), before)
		m.arm("agent, CPU a minute").add(w.agentCPU)
		m.arm("agent, CPU a minute by schedstat").add(w.agentExact)
		m.arm("containerd, CPU a minute").add(w.runtimeCPU)
		m.arm("RssAnon, MB").value(float64(w.anon) / mb)
		m.arm("VmRSS, MB").value(float64(w.rss) / mb)
		m.arm("CRI calls a second").value(float64(total(calls)) / time.Since(begin).Seconds())
		m.note("window %d: calls %s", i+1, describe(calls))
		b.say("idle: %d/%d", i+1, windows)
	}
	if ids, err := b.runningContainers(ctx); err != nil || len(ids) != fleetPods {
		return errors.Join(err, fmt.Errorf("%d containers run after the windows, want %d", len(ids), fleetPods))
	}
	m.limit("agent, CPU a minute", 150, "ms")
	m.limit("RssAnon, MB", 20, "MB")
	m.limit("VmRSS, MB", 45, "MB")
	m.limit("CRI calls a second", 0.5, "/s")
	return nil
}

// measureRestart is measure 6: the agent is ended, by SIGTERM and by SIGKILL in
// turn, and started again. It must find every pod, and touch none.
func (b *bench) measureRestart(ctx context.Context, d agentDirs) error {
	m := b.report.measure(6, fmt.Sprintf("restart of the agent at %d pods", fleetPods),
		"exec of serve → its line `All pods reported`, after SIGTERM and SIGKILL in turn; get pods shows all Running right after, and every container is the one it was")
	b.noise(ctx, m)
	before, err := b.runningContainers(ctx)
	if err != nil {
		return err
	}
	rounds := b.count(10, 3)
	for i := range rounds {
		signal := syscall.SIGTERM
		if i%2 == 1 {
			signal = syscall.SIGKILL
		}
		if err := b.sampleRestart(ctx, m, d, signal); err != nil {
			return err
		}
		after, err := b.runningContainers(ctx)
		if err != nil {
			return err
		}
		if !maps.Equal(before, after) {
			return fmt.Errorf("a restart of the agent changed containers: %d ran, %d run", len(before), len(after))
		}
		b.say("restart: %d/%d", i+1, rounds)
	}
	m.limit("nodectl", 1000, "ms")
	return nil
}

func (b *bench) sampleRestart(ctx context.Context, m *measure, d agentDirs, signal syscall.Signal) (err error) {
	a, err := b.serve(d, b.node.Endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.end(signal)) }()
	l, err := a.await(ctx, "All pods reported", fmt.Sprintf("pods=%d", fleetPods))
	if err != nil {
		return err
	}
	cpu := cpuOf(a.pid())
	begin := time.Now()
	out, _, err := b.nodectl(ctx, b.args(d, b.node.Endpoint, "get", "pods", "-o", "json")...)
	if err != nil {
		return err
	}
	m.arm("get pods -o json, right after").add(time.Since(begin))
	var list struct {
		Items []struct{ Status struct{ Phase string } }
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return fmt.Errorf("get pods -o json: %w", err)
	}
	running := 0
	for _, p := range list.Items {
		if p.Status.Phase == "Running" {
			running++
		}
	}
	if running != fleetPods || len(list.Items) != fleetPods {
		return fmt.Errorf("get pods shows %d pods, %d of them Running, right after all were reported; want %d", len(list.Items), running, fleetPods)
	}
	m.arm("nodectl").add(l.at.Sub(a.exec))
	m.arm("agent's CPU until then").add(cpu)
	return nil
}
