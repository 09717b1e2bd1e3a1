package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// measureCrash is measure 4: the process of a container is killed from outside,
// for the first time in the pod's life, and its replacement runs. The kill comes
// at a random moment, so that a period of the agent's does not help it.
func (b *bench) measureCrash(ctx context.Context) (err error) {
	m := b.report.measure(4, "first crash → replacement started",
		"SIGKILL of the container's process at a random moment; raw: STOPPED event, CreateContainer, StartContainer")
	b.noise(ctx, m)
	d, err := b.newDirs("crash")
	if err != nil {
		return err
	}
	a, err := b.serve(d, b.socket)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, a.end(syscall.SIGTERM)) }()
	if err := b.settle(ctx, a); err != nil {
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
		b.say("crash: %d/%d", i+1, rounds)
	}
	m.ratio("nodectl / raw", "nodectl", "raw", 2)
	return nil
}

func (b *bench) crashRaw(ctx context.Context, m *measure, i int, wait time.Duration) error {
	p, err := b.startRaw(ctx, fmt.Sprintf("crash-raw-%02d", i), rawShape{})
	if err != nil {
		return err
	}
	if err := pause(ctx, wait); err != nil {
		return err
	}
	mark := b.events.mark()
	killed, err := b.killInit(ctx, p.container)
	if err != nil {
		return err
	}
	e, err := b.events.await(ctx, mark, "end of the container", stopped(p.container))
	if err != nil {
		return err
	}
	if err := b.startRawContainer(ctx, p, 1); err != nil {
		return err
	}
	at, err := b.startedAt(ctx, p.container)
	if err != nil {
		return err
	}
	m.arm("raw").add(at.Sub(killed))
	m.arm("kill → STOPPED event, raw").add(e.at.Sub(killed))
	if err := b.removeSandbox(ctx, p.sandbox); err != nil {
		return err
	}
	return m.rest(ctx, spacing)
}

func (b *bench) crashAgent(ctx context.Context, m *measure, d agentDirs, i int, wait time.Duration) error {
	name := fmt.Sprintf("crash-%02d", i)
	mark := b.events.mark()
	if _, err := d.drop(name, false); err != nil {
		return err
	}
	up, err := b.events.await(ctx, mark, "start of "+name, started(name+"-"+nodeName))
	if err != nil {
		return err
	}
	if err := pause(ctx, wait); err != nil {
		return err
	}
	mark = b.events.mark()
	killed, err := b.killInit(ctx, up.ContainerId)
	if err != nil {
		return err
	}
	down, err := b.events.await(ctx, mark, "end of "+name, stopped(up.ContainerId))
	if err != nil {
		return err
	}
	again, err := b.events.await(ctx, mark, "replacement of "+name, started(name+"-"+nodeName))
	if err != nil {
		return err
	}
	at, err := b.awaitRunning(ctx, again.ContainerId)
	if err != nil {
		return err
	}
	m.arm("nodectl").add(at.Sub(killed))
	b.trace.add(killed, "> killed")
	b.trace.add(down.at, "STOPPED event")
	b.trace.add(at, "started again")
	m.arm("kill → STOPPED event, nodectl").add(down.at.Sub(killed))
	if err := d.remove(name); err != nil {
		return err
	}
	if err := b.awaitNoPods(ctx); err != nil {
		return err
	}
	return m.rest(ctx, spacing)
}
