package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
)

// measureCrash is measure 4: the process of a container is killed from outside, for the first
// time, and its replacement runs. The kill comes at a random moment, so that no period of the
// agent helps it.
func (b *bench) measureCrash(ctx context.Context) (err error) {
	m := b.measure(4, "first crash → replacement started",
		"SIGKILL of the container's process at a random moment; raw: STOPPED event, CreateContainer, StartContainer")
	b.noise(ctx, m)
	d, err := b.NewDirs("crash")
	if err != nil {
		return err
	}
	a, err := b.nodectl.Serve(d, b.socket)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, a.End(syscall.SIGTERM)) }()
	if err := b.nodectl.Settle(ctx, a); err != nil {
		return err
	}
	phase := rand.New(rand.NewPCG(1, 2))
	rounds := b.count(20, 3)
	for i := range rounds {
		wait := 500*time.Millisecond + time.Duration(phase.Int64N(int64(time.Second)))
		if err := b.crashRaw(ctx, m, i, wait); err != nil {
			return err
		}
		if err := b.crashAgent(ctx, m, d, i, wait); err != nil {
			return err
		}
		lab.Say("crash: %d/%d", i+1, rounds)
	}
	m.Ratio("nodectl / raw", "nodectl", "raw", 2)
	return nil
}

func (b *bench) crashRaw(ctx context.Context, m *result.Measure, i int, wait time.Duration) error {
	p, err := b.StartRaw(ctx, fmt.Sprintf("crash-raw-%02d", i), lab.RawShape{})
	if err != nil {
		return err
	}
	if err := lab.Pause(ctx, wait); err != nil {
		return err
	}
	mark := b.Events.Mark()
	killed, err := b.KillInit(ctx, p.Container)
	if err != nil {
		return err
	}
	e, err := b.Events.Await(ctx, mark, "end of the container", lab.Stopped(p.Container))
	if err != nil {
		return err
	}
	if err := b.StartRawContainer(ctx, p, 1); err != nil {
		return err
	}
	at, err := b.StartedAt(ctx, p.Container)
	if err != nil {
		return err
	}
	m.Arm("raw").Add(at.Sub(killed))
	m.Arm("kill → STOPPED event, raw").Add(e.At.Sub(killed))
	if err := b.RemoveSandbox(ctx, p.Sandbox); err != nil {
		return err
	}
	return lab.Rest(ctx, m, spacing)
}

func (b *bench) crashAgent(ctx context.Context, m *result.Measure, d lab.Dirs, i int, wait time.Duration) error {
	name := fmt.Sprintf("crash-%02d", i)
	mark := b.Events.Mark()
	if _, err := b.drop(d, name, lab.PodShape{}); err != nil {
		return err
	}
	up, err := b.Events.Await(ctx, mark, "start of "+name, lab.Started(name+"-"+lab.NodeName))
	if err != nil {
		return err
	}
	if err := lab.Pause(ctx, wait); err != nil {
		return err
	}
	mark = b.Events.Mark()
	killed, err := b.KillInit(ctx, up.ContainerId)
	if err != nil {
		return err
	}
	down, err := b.Events.Await(ctx, mark, "end of "+name, lab.Stopped(up.ContainerId))
	if err != nil {
		return err
	}
	again, err := b.Events.Await(ctx, mark, "replacement of "+name, lab.Started(name+"-"+lab.NodeName))
	if err != nil {
		return err
	}
	at, err := b.AwaitRunning(ctx, again.ContainerId)
	if err != nil {
		return err
	}
	m.Arm("nodectl").Add(at.Sub(killed))
	b.trace.add(killed, "> killed")
	b.trace.add(down.At, "STOPPED event")
	b.trace.add(at, "started again")
	m.Arm("kill → STOPPED event, nodectl").Add(down.At.Sub(killed))
	if _, err := d.Remove(name); err != nil {
		return err
	}
	if err := b.AwaitNoPods(ctx); err != nil {
		return err
	}
	return lab.Rest(ctx, m, spacing)
}
