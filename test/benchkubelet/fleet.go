package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// fleets are the numbers of idle pods of the idle measures.
var fleets = []int{0, 50, 110}

// fleet is M6 to M9: the cost of an idle agent, and how soon a starting one knows all pods.
type fleet struct {
	*bench
	cpu, memory, calls, restart *report.Measure
}

func (b *bench) measureFleet(ctx context.Context) error {
	f := &fleet{bench: b, cpu: &report.Measure{}, memory: &report.Measure{}, calls: &report.Measure{}, restart: &report.Measure{}}
	length := b.window(fleets[1])
	if b.Wants("6") {
		f.cpu = b.Begin(ctx, 6, "idle CPU a minute", fmt.Sprintf("windows of %s: CPU time of the agent's threads, and of containerd beside it", length))
	}
	if b.Wants("7") {
		f.memory = b.Begin(ctx, 7, "memory", "the largest RssAnon and VmRSS in the same windows")
	}
	if b.Wants("8") {
		f.calls = b.Begin(ctx, 8, "CRI calls a second, idle", "counted by a proxy on the socket in the same windows; a stream counts once")
	}
	if b.Wants("9") {
		f.restart = b.Begin(ctx, 9, "restart of the agent → all reported right", fmt.Sprintf("%d pods, SIGKILL and SIGTERM in turn, exec → kubelet: /healthz is ok and /pods shows all Running; nodectl: its line `Status of every pod is known`, and get pods shows all Running right after; every container is the one it was", fleets[2]))
	}
	return b.Take(ctx, f.cpu, b.Count(2, 1), program.Each(b.Agents, func(a *arm.Agent, round int) error { return f.turn(ctx, a, round) })...)
}

// window is how long an agent is measured with so many pods.
func (b *bench) window(pods int) time.Duration {
	if pods == 0 {
		return b.Span(20*time.Second, 10*time.Second)
	}
	return b.Span(time.Minute, 10*time.Second)
}

func (f *fleet) turn(ctx context.Context, a *arm.Agent, round int) (err error) {
	front, err := criproxy.New(f.Node.Endpoint, filepath.Join(f.Dir, "fleet.sock"), criproxy.Hooks{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	return f.Turn(ctx, a, fmt.Sprintf("fleet-%d", round), front.Endpoint(), nil, func(r *arm.Turn) error {
		if err := arm.Pause(ctx, arm.Settled); err != nil {
			return err
		}
		have := 0
		for _, pods := range fleets {
			if _, err := f.dropMany(ctx, r, have, pods); err != nil {
				return err
			}
			have = pods
			if pods == 0 && round > 0 {
				continue // it is not in the table
			}
			if err := f.idle(ctx, r, front, pods); err != nil {
				return err
			}
		}
		if f.restart.ID == 0 {
			return nil
		}
		for i := range f.Count(3, 2) {
			if err := f.Restart(ctx, f.restart, r, []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i%2], f.Node.Endpoint, have); err != nil {
				return err
			}
		}
		return nil
	})
}

// idle is one window.
func (f *fleet) idle(ctx context.Context, r *arm.Turn, front *criproxy.Proxy, pods int) error {
	if f.cpu.ID+f.memory.ID+f.calls.ID == 0 {
		return nil
	}
	// Both agents look at new containers again, and write status.
	if err := arm.Pause(ctx, f.Span(8*time.Second, 2*time.Second)); err != nil {
		return err
	}
	w, err := f.Window(ctx, r.PID(), front, f.window(pods), pods)
	if err != nil {
		return err
	}
	as := fmt.Sprintf("%s, %d pods", r.Name, pods)
	f.cpu.Arm(as).Add(w.AgentExact)
	f.cpu.Arm(as + ", by ticks").Add(w.AgentCPU)
	f.cpu.Arm(as + ", containerd").Add(w.RuntimeCPU)
	f.memory.Arm(as + ", RssAnon").Value(float64(w.Anon) / report.MB)
	f.memory.Arm(as + ", VmRSS").Value(float64(w.RSS) / report.MB)
	f.calls.Arm(as).Value(w.CallsPerSecond())
	f.calls.Note("%s: %s in %.0f s", as, w.Calls, w.Took.Seconds())
	arm.Say("%s: idle", as)
	return nil
}

// measureSize is M15.
func (b *bench) measureSize(ctx context.Context) error {
	m := b.Begin(ctx, 15, "size of the program", "as built for this run, without symbols; nodectl without the container runtime it can carry")
	for _, a := range b.Agents {
		s, err := os.Stat(a.Binary)
		if err != nil {
			return err
		}
		m.Arm(a.Name + ", MB").Value(float64(s.Size()) / report.MB)
	}
	return nil
}
