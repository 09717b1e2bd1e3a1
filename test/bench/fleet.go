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

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/criproxy"
)

const fleetPods = 50

// result.MB is the unit of memory limits.

// measureNode is measures 5 and 6, on the same pods: the cost of an idle agent, and how soon
// a starting one knows all pods.
func (b *bench) measureNode(ctx context.Context) (err error) {
	d, err := b.NewDirs("fleet")
	if err != nil {
		return err
	}
	front, err := criproxy.New(b.Node.Endpoint, filepath.Join(b.Dir, "fleet.sock"), criproxy.Hooks{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	a, err := b.nodectl.Serve(d, front.Endpoint())
	if err != nil {
		return err
	}
	running := true
	defer func() {
		if running {
			err = errors.Join(err, a.End(syscall.SIGTERM))
		}
	}()
	if err := b.nodectl.Settle(ctx, a); err != nil {
		return err
	}
	lab.Say("starting %d pods", fleetPods)
	for i := range fleetPods {
		if _, err := b.drop(d, fmt.Sprintf("fleet-%02d", i), lab.PodShape{}); err != nil {
			return err
		}
	}
	if err := b.AwaitRunningContainers(ctx, fleetPods); err != nil {
		return err
	}
	if b.wants(5) {
		if err := b.measureIdle(ctx, a, front); err != nil {
			return err
		}
	}
	running = false
	if err := a.End(syscall.SIGTERM); err != nil {
		return err
	}
	if b.wants(5) && !b.quick {
		lab.Say("%d pods without an agent", fleetPods)
		w, err := b.Window(ctx, 0, b.windowLength())
		if err != nil {
			return err
		}
		b.report.Find(5).Arm("containerd without an agent, CPU a minute").Add(w.RuntimeCPU)
	}
	if b.wants(6) {
		return b.measureRestart(ctx, d)
	}
	return nil
}

// windowLength is the length of one idle window.
func (b *bench) windowLength() time.Duration {
	if b.quick {
		return 15 * time.Second
	}
	return time.Minute
}

// measureIdle is measure 5.
func (b *bench) measureIdle(ctx context.Context, a *lab.Process, front *criproxy.Proxy) error {
	m := b.measure(5, fmt.Sprintf("%d idle pods", fleetPods),
		"windows of a minute, after the pods have run for half a minute; utime+stime with reaped children, the largest RssAnon and VmRSS, calls counted by a proxy on the socket")
	settle, windows := 30*time.Second, b.count(3, 1)
	if b.quick {
		settle = 5 * time.Second
	}
	if err := lab.Pause(ctx, settle); err != nil {
		return err
	}
	b.noise(ctx, m)
	for i := range windows {
		before, begin := result.Calls(front.Counts()), time.Now()
		w, err := b.Window(ctx, a.PID(), b.windowLength())
		if err != nil {
			return err
		}
		calls := result.Calls(front.Counts()).Since(before)
		m.Arm("agent, CPU a minute").Add(w.AgentCPU)
		m.Arm("agent, CPU a minute by schedstat").Add(w.AgentExact)
		m.Arm("containerd, CPU a minute").Add(w.RuntimeCPU)
		m.Arm("RssAnon, MB").Value(float64(w.Anon) / result.MB)
		m.Arm("VmRSS, MB").Value(float64(w.RSS) / result.MB)
		m.Arm("CRI calls a second").Value(float64(calls.Total()) / time.Since(begin).Seconds())
		m.Note("window %d: calls %s", i+1, calls)
		lab.Say("idle: %d/%d", i+1, windows)
	}
	if ids, err := b.RunningContainers(ctx); err != nil || len(ids) != fleetPods {
		return errors.Join(err, fmt.Errorf("%d containers run after the windows, want %d", len(ids), fleetPods))
	}
	m.Max("agent, CPU a minute", 150, "ms")
	m.Max("RssAnon, MB", 20, "MB")
	m.Max("VmRSS, MB", 45, "MB")
	m.Max("CRI calls a second", 0.5, "/s")
	return nil
}

// measureRestart is measure 6: the agent is stopped, by SIGTERM and by SIGKILL in turn, and
// started again. It must find every pod, and touch none.
func (b *bench) measureRestart(ctx context.Context, d lab.Dirs) error {
	m := b.measure(6, fmt.Sprintf("restart of the agent at %d pods", fleetPods),
		"exec of serve → its line `All pods reported`, after SIGTERM and SIGKILL in turn; get pods shows all Running right after, and every container is the one it was")
	b.noise(ctx, m)
	before, err := b.RunningContainers(ctx)
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
		after, err := b.RunningContainers(ctx)
		if err != nil {
			return err
		}
		if !maps.Equal(before, after) {
			return fmt.Errorf("a restart of the agent changed containers: %d ran, %d run", len(before), len(after))
		}
		lab.Say("restart: %d/%d", i+1, rounds)
	}
	m.Max("nodectl", 1000, "ms")
	return nil
}

func (b *bench) sampleRestart(ctx context.Context, m *result.Measure, d lab.Dirs, signal syscall.Signal) (err error) {
	a, err := b.nodectl.Serve(d, b.Node.Endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.End(signal)) }()
	l, err := a.Await(ctx, "All pods reported", fmt.Sprintf("pods=%d", fleetPods))
	if err != nil {
		return err
	}
	cpu := lab.CPU(a.PID())
	begin := time.Now()
	out, _, err := b.nodectl.Run(ctx, b.nodectl.Args(d, b.Node.Endpoint, "get", "pods", "-o", "json")...)
	if err != nil {
		return err
	}
	m.Arm("get pods -o json, right after").Add(time.Since(begin))
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
	m.Arm("nodectl").Add(l.At.Sub(a.Exec))
	m.Arm("agent's CPU until then").Add(cpu)
	return nil
}
