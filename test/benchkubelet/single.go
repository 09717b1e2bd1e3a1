package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/bench/result"
)

// The shapes S0 and S2: both on the machine's network, so that CNI does not cover
// what the agent costs.
var (
	s0 = lab.PodShape{HostNetwork: true}
	s2 = lab.PodShape{HostNetwork: true, EmptyDir: true}
)

var shapes = []struct {
	name string
	pod  lab.PodShape
}{{"S0", s0}, {"S2", s2}}

// spacing separates two samples, so that the end of one does not disturb the next.
const spacing = 400 * time.Millisecond

// single is M1, M4 and M16 in one run of each agent: it starts with one manifest, gets others
// one at a time, and their containers are killed.
type single struct {
	*bench
	start, crash, cold *result.Measure
	perRound           int
	phase              *rand.Rand // when containers are killed
}

func (b *bench) measureSingle(ctx context.Context) error {
	s := &single{bench: b, perRound: b.count(4, 2), phase: rand.New(rand.NewPCG(1, 2))}
	s.start, s.crash, s.cold = &result.Measure{}, &result.Measure{}, &result.Measure{}
	if b.wants(1) {
		s.start = b.begin(1, "single start", "rename of a manifest → started_at, on the machine's network, image present; S0 without a volume, S2 with an emptyDir; raw: RunPodSandbox, CreateContainer, StartContainer")
	}
	if b.wants(4) {
		s.crash = b.begin(4, "crash → replacement, first crash", "SIGKILL of the container's process at a random moment → started_at of the next; raw: STOPPED event, CreateContainer, StartContainer")
	}
	if b.wants(16) {
		s.cold = b.begin(16, "cold start → first container", "exec of the agent, one manifest (S0) there, a fresh root directory → started_at")
	}
	arms := append(each(b.latencyAgents(), func(a agent, round int) error {
		return b.turn(ctx, a, fmt.Sprintf("single-%d", round), b.Node.Endpoint, s.first, func(r *running) error { return s.agent(ctx, r) })
	}), func(round int) error { return s.raw(ctx, round) })
	return b.take(ctx, s.noisy(), b.count(8, 2), arms...)
}

// noisy is the measure that records the noise between the rounds.
func (s *single) noisy() *result.Measure {
	for _, m := range []*result.Measure{s.start, s.crash, s.cold} {
		if m.ID != 0 {
			return m
		}
	}
	return s.start
}

func (s *single) first(r *running) error {
	_, err := r.drop("first", s0)
	return err
}

// agent is an agent's turn: it has just been started, with one manifest.
func (s *single) agent(ctx context.Context, r *running) error {
	e, err := s.Events.Await(ctx, 0, "start of the first pod", after(r.Exec, lab.Started(fullName("first"))))
	if err != nil {
		return err
	}
	at, err := s.AwaitRunning(ctx, e.ContainerId)
	if err != nil {
		return err
	}
	s.cold.Arm(r.name()).Add(at.Sub(r.Exec))
	s.cold.Arm(r.name() + ", its CPU until then").Add(lab.CPU(r.PID()))
	if err := lab.Pause(ctx, settled); err != nil {
		return err
	}
	var victims []string
	for i := range s.perRound {
		for _, shape := range shapes {
			name := fmt.Sprintf("%s-%d", map[string]string{"S0": "bare", "S2": "dir"}[shape.name], i)
			id, err := s.drop(ctx, r, shape.name, name, shape.pod)
			if err != nil {
				return err
			}
			if shape.name == "S0" {
				victims = append(victims, name, id)
			}
		}
	}
	if s.crash.ID == 0 {
		return nil
	}
	for i := 0; i < len(victims); i += 2 {
		mark, err := s.kill(ctx, victims[i+1], r.name())
		if err != nil {
			return err
		}
		again, err := s.Events.Await(ctx, mark.events, "replacement of "+victims[i], lab.Started(fullName(victims[i])))
		if err != nil {
			return err
		}
		if err := s.replaced(ctx, r.name(), mark.at, again.ContainerId); err != nil {
			return err
		}
	}
	return nil
}

// after accepts what match accepts, after a moment.
func after(t time.Time, match func(lab.Seen) bool) func(lab.Seen) bool {
	return func(e lab.Seen) bool { return e.At.After(t) && match(e) }
}

func (s *single) drop(ctx context.Context, r *running, shape, name string, pod lab.PodShape) (string, error) {
	mark := s.Events.Mark()
	begin, err := r.drop(name, pod)
	if err != nil {
		return "", err
	}
	e, err := s.Events.Await(ctx, mark, "start of "+name, lab.Started(fullName(name)))
	if err != nil {
		return "", err
	}
	return e.ContainerId, s.started(ctx, r.name(), shape, begin, e.ContainerId)
}

// started notes a start, with the time that the container itself wrote.
func (s *single) started(ctx context.Context, arm, shape string, begin time.Time, id string) error {
	at, err := s.AwaitRunning(ctx, id)
	if err != nil {
		return err
	}
	stamp, err := s.Stamped(ctx, id)
	if err != nil {
		return err
	}
	s.start.Arm(arm + ", " + shape).Add(at.Sub(begin))
	s.start.Arm(arm + ", " + shape + ", by its own clock").Add(stamp.Sub(begin))
	return lab.Rest(ctx, s.start, spacing)
}

// killed is when a container was killed, and how many events had arrived by then.
type killed struct {
	at     time.Time
	events int
}

// kill ends a container's process at a random moment and returns when the runtime has sent
// the STOPPED event.
func (s *single) kill(ctx context.Context, id, arm string) (killed, error) {
	wait := 200*time.Millisecond + time.Duration(s.phase.Int64N(int64(time.Second)))
	if err := lab.Pause(ctx, wait); err != nil {
		return killed{}, err
	}
	mark := killed{events: s.Events.Mark()}
	var err error
	if mark.at, err = s.KillInit(ctx, id); err != nil {
		return mark, err
	}
	down, err := s.Events.Await(ctx, mark.events, "end of the container", lab.Stopped(id))
	s.crash.Arm(arm + ", kill → STOPPED event").Add(down.At.Sub(mark.at))
	return mark, err
}

func (s *single) replaced(ctx context.Context, arm string, begin time.Time, id string) error {
	at, err := s.AwaitRunning(ctx, id)
	if err != nil {
		return err
	}
	s.crash.Arm(arm).Add(at.Sub(begin))
	return lab.Rest(ctx, s.crash, spacing)
}

// raw is the raw arm's turn.
func (s *single) raw(ctx context.Context, round int) error {
	var victims []*lab.RawPod
	for i := range s.perRound {
		for _, shape := range shapes {
			name := fmt.Sprintf("raw-%d-%d-%s", round, i, shape.name)
			raw := lab.RawShape{HostNetwork: true}
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
		mark, err := s.kill(ctx, p.Container, "raw")
		if err != nil {
			return err
		}
		if err := s.StartRawContainer(ctx, p, 1); err != nil {
			return err
		}
		if err := s.replaced(ctx, "raw", mark.at, p.Container); err != nil {
			return err
		}
	}
	return s.empty()
}
