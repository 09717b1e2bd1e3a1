package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/report"
)

// measureCrash is measure 4: the process of a container is killed from outside, for the first
// time, and its replacement runs. The kill comes at a random moment, so that no period of the
// agent helps it.
func (b *bench) measureCrash(ctx context.Context) error {
	m := b.Begin(ctx, 4, "first crash → replacement started",
		"SIGKILL of the container's process at a random moment; raw: STOPPED event, CreateContainer, StartContainer")
	phase := rand.New(rand.NewPCG(1, 2))
	rounds := b.Count(20, 3)
	err := b.serve(ctx, "crash", b.socket, func(t *arm.Turn) error {
		for i := range rounds {
			wait := 500*time.Millisecond + time.Duration(phase.Int64N(int64(time.Second)))
			p, err := b.StartRaw(ctx, fmt.Sprintf("crash-raw-%02d", i), arm.RawShape{})
			if err != nil {
				return err
			}
			if err := b.CrashRaw(ctx, m, p, wait); err != nil {
				return err
			}
			if err := b.RemoveSandbox(ctx, p.Sandbox); err != nil {
				return err
			}
			if err := b.crashAgent(ctx, m, t, fmt.Sprintf("crash-%02d", i), wait); err != nil {
				return err
			}
			arm.Say("crash: %d/%d", i+1, rounds)
		}
		return nil
	})
	if err != nil {
		return err
	}
	m.Ratio("nodectl / raw", "nodectl", "raw", 2)
	return nil
}

func (b *bench) crashAgent(ctx context.Context, m *report.Measure, t *arm.Turn, name string, wait time.Duration) error {
	_, up, err := b.Start(ctx, t.Place, name, arm.PodShape{})
	if err != nil {
		return err
	}
	c, err := b.CrashPod(ctx, m, "nodectl", name, up.ContainerId, wait)
	if err != nil {
		return err
	}
	b.trace.add(c.Killed, "> killed")
	b.trace.add(c.Stopped, "STOPPED event")
	b.trace.add(c.Again, "started again")
	return b.removed(ctx, t, name)
}
