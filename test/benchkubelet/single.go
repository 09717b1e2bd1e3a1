package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// The shapes S0 and S2: both on the machine's network, so that CNI does not hide the agent's cost.
var (
	s0 = arm.PodShape{HostNetwork: true}
	s2 = arm.PodShape{HostNetwork: true, EmptyDir: true}
)

var shapes = []struct {
	name string
	pod  arm.PodShape
}{{"S0", s0}, {"S2", s2}}

// single is M1, M4 and M16 in one run of each agent: it starts with one manifest, gets others
// one at a time, and their containers are killed.
type single struct {
	*bench
	start, crash, cold *report.Measure
	perRound           int
	phase              *rand.Rand // when containers are killed
}

func (b *bench) measureSingle(ctx context.Context) error {
	s := &single{bench: b, perRound: b.Count(4, 2), phase: rand.New(rand.NewPCG(1, 2))}
	s.start, s.crash, s.cold = &report.Measure{}, &report.Measure{}, &report.Measure{}
	if b.Wants("1") {
		s.start = b.Begin(ctx, 1, "single start", "rename of a manifest → started_at, on the machine's network, image present; S0 without a volume, S2 with an emptyDir; raw: RunPodSandbox, CreateContainer, StartContainer")
	}
	if b.Wants("4") {
		s.crash = b.Begin(ctx, 4, "crash → replacement, first crash", "SIGKILL of the container's process at a random moment → started_at of the next; raw: STOPPED event, CreateContainer, StartContainer")
	}
	if b.Wants("16") {
		s.cold = b.Begin(ctx, 16, "cold start → first container", "exec of the agent, one manifest (S0) there, a fresh root directory → started_at")
	}
	arms := append(program.Each(b.latencyAgents, func(a *arm.Agent, round int) error {
		return b.Turn(ctx, a, fmt.Sprintf("single-%d", round), b.Node.Endpoint, s.first, func(r *arm.Turn) error { return s.agent(ctx, r) })
	}), func(round int) error { return s.raw(ctx, round) })
	return b.Take(ctx, s.noisy(), b.Count(8, 2), arms...)
}

// noisy is the measure that records the noise between the rounds.
func (s *single) noisy() *report.Measure {
	for _, m := range []*report.Measure{s.start, s.crash, s.cold} {
		if m.ID != 0 {
			return m
		}
	}
	return s.start
}

func (s *single) first(r *arm.Turn) error {
	_, err := r.DropPod("first", s0)
	return err
}

// agent is an agent's turn: it has just been started, with one manifest.
func (s *single) agent(ctx context.Context, r *arm.Turn) error {
	e, err := s.Events.Await(ctx, 0, "start of the first pod", after(r.Exec, arm.Started(arm.FullName("first"))))
	if err != nil {
		return err
	}
	at, err := s.AwaitRunning(ctx, e.ContainerId)
	if err != nil {
		return err
	}
	s.cold.Arm(r.Name).Add(at.Sub(r.Exec))
	s.cold.Arm(r.Name + ", its CPU until then").Add(arm.CPU(r.PID()))
	if err := arm.Pause(ctx, arm.Settled); err != nil {
		return err
	}
	var victims []string
	for i := range s.perRound {
		for _, shape := range shapes {
			name := fmt.Sprintf("%s-%d", map[string]string{"S0": "bare", "S2": "dir"}[shape.name], i)
			begin, e, err := s.Start(ctx, r.Place, name, shape.pod)
			if err != nil {
				return err
			}
			if err := s.started(ctx, r.Name, shape.name, begin, e.ContainerId); err != nil {
				return err
			}
			if shape.name == "S0" {
				victims = append(victims, name, e.ContainerId)
			}
		}
	}
	for i := 0; i < len(victims) && s.crash.ID != 0; i += 2 {
		if _, err := s.CrashPod(ctx, s.crash, r.Name, victims[i], victims[i+1], s.wait()); err != nil {
			return err
		}
	}
	return nil
}

// after accepts the same values as match, after a moment.
func after(t time.Time, match func(arm.Seen) bool) func(arm.Seen) bool {
	return func(e arm.Seen) bool { return e.At.After(t) && match(e) }
}

func (s *single) started(ctx context.Context, as, shape string, begin time.Time, id string) error {
	if _, err := s.NoteStart(ctx, s.start, as+", "+shape, begin, id); err != nil {
		return err
	}
	return arm.Rest(ctx, s.start, arm.Spacing)
}

// wait is how long to wait until a container is killed: at a random moment.
func (s *single) wait() time.Duration {
	return 200*time.Millisecond + time.Duration(s.phase.Int64N(int64(time.Second)))
}

// raw is the raw arm's turn.
func (s *single) raw(ctx context.Context, round int) error {
	var victims []*arm.RawPod
	for i := range s.perRound {
		for _, shape := range shapes {
			name := fmt.Sprintf("raw-%d-%d-%s", round, i, shape.name)
			raw := arm.RawShape{HostNetwork: true}
			if shape.pod.EmptyDir {
				raw.Dir = filepath.Join(s.Dir, "turn", name)
			}
			begin := time.Now()
			p, err := s.StartRaw(ctx, name, raw)
			if err != nil {
				return err
			}
			if err := s.started(ctx, "raw", shape.name, begin, p.Container); err != nil {
				return err
			}
			if shape.name == "S0" {
				victims = append(victims, p)
			}
		}
	}
	for _, p := range victims {
		if s.crash.ID == 0 {
			break
		}
		if err := s.CrashRaw(ctx, s.crash, p, s.wait()); err != nil {
			return err
		}
	}
	return s.Empty()
}
