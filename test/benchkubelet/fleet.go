package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/criproxy"
)

// fleets are the numbers of idle pods of the idle measures.
var fleets = []int{0, 50, 110}

// fleet is M6 to M9: the cost of an idle agent, and how soon a starting one knows all pods.
type fleet struct {
	*bench
	cpu, memory, calls, restart *result.Measure
}

func (b *bench) measureFleet(ctx context.Context) error {
	f := &fleet{bench: b, cpu: &result.Measure{}, memory: &result.Measure{}, calls: &result.Measure{}, restart: &result.Measure{}}
	length := b.window(fleets[1])
	if b.wants(6) {
		f.cpu = b.begin(6, "idle CPU a minute", fmt.Sprintf("windows of %s: CPU time of the agent's threads, and of containerd beside it", length))
	}
	if b.wants(7) {
		f.memory = b.begin(7, "memory", "the largest RssAnon and VmRSS in the same windows")
	}
	if b.wants(8) {
		f.calls = b.begin(8, "CRI calls a second, idle", "counted by a proxy on the socket in the same windows; a stream counts once")
	}
	if b.wants(9) {
		f.restart = b.begin(9, "restart of the agent → all reported right", fmt.Sprintf("%d pods, SIGKILL and SIGTERM in turn, exec → kubelet: /healthz is ok and /pods shows all Running; nodectl: its line `All pods reported`, and get pods shows all Running right after; every container is the one it was", fleets[2]))
	}
	return b.take(ctx, f.cpu, b.count(2, 1), each(b.agents, func(a agent, round int) error { return f.turn(ctx, a, round) })...)
}

// window is how long an agent is measured with so many pods.
func (b *bench) window(pods int) time.Duration {
	if pods == 0 {
		return b.span(20*time.Second, 10*time.Second)
	}
	return b.span(time.Minute, 10*time.Second)
}

func (f *fleet) turn(ctx context.Context, a agent, round int) (err error) {
	front, err := criproxy.New(f.Node.Endpoint, filepath.Join(f.Dir, "fleet.sock"), criproxy.Hooks{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	return f.bench.turn(ctx, a, fmt.Sprintf("fleet-%d", round), front.Endpoint(), nil, func(r *running) error {
		if err := lab.Pause(ctx, settled); err != nil {
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
		return f.restarts(ctx, r, have)
	})
}

// idle is one window.
func (f *fleet) idle(ctx context.Context, r *running, front *criproxy.Proxy, pods int) error {
	if f.cpu.ID+f.memory.ID+f.calls.ID == 0 {
		return nil
	}
	// Both agents look at new containers again, and write status.
	if err := lab.Pause(ctx, f.span(8*time.Second, 2*time.Second)); err != nil {
		return err
	}
	before, begin := result.Calls(front.Counts()), time.Now()
	w, err := f.Window(ctx, r.PID(), f.window(pods))
	if err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	calls := result.Calls(front.Counts()).Since(before)
	arm := fmt.Sprintf("%s, %d pods", r.name(), pods)
	f.cpu.Arm(arm).Add(w.AgentExact)
	f.cpu.Arm(arm + ", by ticks").Add(w.AgentCPU)
	f.cpu.Arm(arm + ", containerd").Add(w.RuntimeCPU)
	f.memory.Arm(arm + ", RssAnon").Value(float64(w.Anon) / result.MB)
	f.memory.Arm(arm + ", VmRSS").Value(float64(w.RSS) / result.MB)
	f.calls.Arm(arm).Value(float64(calls.Total()) / took)
	f.calls.Note("%s: %s in %.0f s", arm, calls, took)
	if ids, err := f.RunningContainers(ctx); err != nil || len(ids) != pods {
		return errors.Join(err, fmt.Errorf("%d containers run after the window, want %d", len(ids), pods))
	}
	lab.Say("%s: idle", arm)
	return nil
}

// restarts ends the agent and starts it again, several times, on the same pods.
func (f *fleet) restarts(ctx context.Context, r *running, pods int) error {
	before, err := f.everything(ctx)
	if err != nil {
		return err
	}
	for i := range f.count(3, 2) {
		if err := r.end([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i%2]); err != nil {
			return err
		}
		if err := lab.Rest(ctx, f.restart, time.Second); err != nil {
			return err
		}
		if err := r.begin(f.Node.Endpoint); err != nil {
			return err
		}
		at, flips, err := r.reported(ctx, r.Process, r.dirs, pods)
		if err != nil {
			return err
		}
		f.restart.Arm(r.name()).Add(at.Sub(r.Exec))
		f.restart.Arm(r.name() + ", its CPU until then").Add(lab.CPU(r.PID()))
		f.restart.Arm(r.name() + ", pods that were said not to be Ready").Value(float64(flips))
		if err := lab.Rest(ctx, f.restart, settled); err != nil {
			return err
		}
		after, err := f.everything(ctx)
		if err != nil {
			return err
		}
		if !maps.Equal(before, after) {
			return fmt.Errorf("a restart changed containers: there were %d, there are %d", len(before), len(after))
		}
	}
	return nil
}

// everything returns every sandbox and container with its state.
func (b *bench) everything(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	s, err := b.Node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, i := range s.Items {
		all[i.Id] = i.State.String()
	}
	c, err := b.Node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	for _, i := range c.Containers {
		all[i.Id] = i.State.String()
	}
	return all, nil
}

// measureSize is M15.
func (b *bench) measureSize(ctx context.Context) error {
	m := b.begin(15, "size of the program", "as built for this run, without symbols; nodectl without the container runtime it can carry")
	for _, p := range []struct{ arm, file string }{{"kubelet", b.kubelet}, {"nodectl", b.nodectl.Binary}} {
		s, err := os.Stat(p.file)
		if err != nil {
			return err
		}
		m.Arm(p.arm + ", MB").Value(float64(s.Size()) / result.MB)
	}
	return nil
}
