package csi

import (
	"testing"

	"pgregory.net/rapid"
)

// model is a volume of two pods, a driver, a controller and an agent that may be killed.
type model struct {
	t                              *rapid.T
	stages, attachable, exclusive  bool
	registered, reported, attached bool
	staged                         Progress
	isStaged                       bool // by the driver
	pods                           [2]struct {
		wanted, mounted, recorded bool
		published                 Progress
	}
	stageCalls, unstageCalls int
}

// state observes the volume for one pod.
func (m *model) state(i int) State {
	p, other := m.pods[i], m.pods[1-i]
	s := State{
		Wanted: p.wanted, Registered: m.registered, Stages: m.stages, Attachable: m.attachable, Reported: m.reported, Attached: m.attached,
		Exclusive: m.exclusive, Staged: m.staged, Published: p.published, Mounted: p.mounted, Recorded: p.recorded,
	}
	if other.recorded || !p.wanted && other.wanted {
		s.Others = 1
	}
	return s
}

// do executes one step; a kill stops it before the call to the driver, or before its record.
func (m *model) do(i int, step Step, kill int) {
	p := &m.pods[i]
	switch step.Action {
	case Stage:
		if m.attachable && !m.attached {
			m.t.Fatal("staged before it is attached")
		}
		if m.staged = Begun; kill == 1 {
			return
		}
		if m.stageCalls++; m.isStaged && m.staged == Done {
			m.t.Fatal("staged twice")
		}
		if m.isStaged = true; kill != 2 {
			m.staged = Done
		}
	case Publish:
		if m.stages && !m.isStaged {
			m.t.Fatal("published before it is staged")
		}
		if m.exclusive && m.pods[1-i].mounted {
			m.t.Fatal("an exclusive volume is published for two pods")
		}
		if p.recorded, p.published = true, Begun; kill == 1 {
			return
		}
		if p.mounted = true; kill != 2 {
			p.published = Done
		}
	case Unpublish:
		if p.wanted {
			m.t.Fatal("unpublished for a pod that runs")
		}
		if kill == 1 {
			return
		}
		if p.mounted = false; kill != 2 {
			p.recorded, p.published = false, None
		}
	case Clear:
		p.recorded = false
	case Unstage, ClearStage:
		for _, q := range m.pods {
			if q.mounted {
				m.t.Fatal("unstaged while a pod uses it")
			}
		}
		if m.staged = Begun; kill == 1 {
			return
		}
		if m.isStaged, m.unstageCalls = false, m.unstageCalls+1; kill != 2 {
			m.staged = None
		}
	case Finish, WaitDriver, WaitUse, WaitReport, WaitAttach:
	}
}

// settle executes the steps of a pod until nothing changes, and returns the last one.
func (m *model) settle(i int) Step {
	for range 16 {
		step := Next(m.state(i))
		switch step.Action {
		case Finish, WaitDriver, WaitUse, WaitReport, WaitAttach:
			return step
		}
		m.do(i, step, 0)
	}
	m.t.Fatalf("no end: %+v", m.state(i))
	return Step{}
}

// Whatever changes and wherever an agent is killed: a volume is staged after it is attached,
// published after it is staged, and unstaged after the last pod is gone; an agent does not repeat a
// call that it knows to be done. In the end the pods have the volume, or nothing of it is left.
//
// Shows: F1
func TestNext_RandomChangesAndKills_StepsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
		m := &model{t: t, stages: flag("stages"), attachable: flag("attachable"), exclusive: flag("exclusive")}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, 1).Draw(t, "pod")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				m.registered = flag("registered")
			case 1:
				m.reported, m.attached = true, flag("attached") || m.isStaged
			case 2:
				m.pods[i].wanted = flag("wanted")
			default:
				m.do(i, Next(m.state(i)), rapid.IntRange(0, 2).Draw(t, "kill"))
			}
		}
		m.registered, m.reported, m.attached = true, true, true
		stop := m.exclusive && m.pods[0].wanted && m.pods[1].wanted
		if stop {
			m.pods[1].wanted = false
			m.settle(1)
		}
		for i := range m.pods {
			m.settle(i)
		}
		for i := range m.pods {
			calls := m.stageCalls
			if last := m.settle(i); last.Action != Finish || m.pods[i].mounted != m.pods[i].wanted || m.stageCalls != calls {
				t.Fatalf("pod %d ends with %+v: %+v", i, last, m)
			}
		}
		for i := range m.pods {
			m.pods[i].wanted = false
		}
		for i := range m.pods {
			m.settle(i)
		}
		if m.isStaged || m.staged != None || m.pods[0].recorded || m.pods[1].recorded {
			t.Fatalf("something is left: %+v", m)
		}
	})
}

func TestNext_EachState_SaysWhy(t *testing.T) {
	t.Parallel()
	ready := State{Wanted: true, Registered: true, Stages: true, Attachable: true, Reported: true, Attached: true, Staged: Done, Published: Done, Mounted: true, Recorded: true}
	for _, c := range []struct {
		change func(*State)
		want   Action
	}{
		{func(*State) {}, Finish},
		{func(s *State) { s.Registered, s.Attached = false, false }, Finish}, // a running pod needs no driver
		{func(s *State) { s.Renew = true }, Publish},
		{func(s *State) { s.Renew, s.Registered = true, false }, WaitDriver},
		{func(s *State) { s.Mounted = false }, Publish},
		{func(s *State) { s.Mounted, s.Reported = false, false }, WaitReport},
		{func(s *State) { s.Mounted, s.Attached = false, false }, WaitAttach},
		{func(s *State) { s.Published, s.Exclusive, s.Others = None, true, 1 }, WaitUse},
		{func(s *State) { s.Published, s.Others = None, 1 }, Publish},
		{func(s *State) { s.Published, s.Staged = Begun, Begun }, Stage},
		{func(s *State) { s.Wanted = false }, Unpublish},
		{func(s *State) { s.Wanted, s.Registered = false, false }, WaitDriver},
		{func(s *State) { s.Wanted, s.Published, s.Mounted = false, None, false }, Clear},
		{func(s *State) { s.Wanted, s.Published, s.Mounted, s.Recorded = false, None, false, false }, Unstage},
		{func(s *State) { s.Wanted, s.Published, s.Mounted, s.Recorded, s.Others = false, None, false, false, 1 }, Finish},
		{func(s *State) {
			s.Wanted, s.Published, s.Mounted, s.Recorded, s.Stages = false, None, false, false, false
		}, ClearStage},
	} {
		s := ready
		c.change(&s)
		if got := Next(s); got.Action != c.want || got.Why == "" {
			t.Errorf("%+v: %+v, want %s", s, got, c.want)
		}
	}
}
