package podview_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podview"
)

const manifest = `
metadata: {name: web}
spec:
  initContainers:
  - {name: init, image: i}
  - {name: side, image: s, restartPolicy: Always, startupProbe: {exec: {command: [up]}}}
  containers: [{name: app, image: a}]
`

func spec(t *testing.T, text string) *pod.Spec {
	t.Helper()
	s, err := plantest.Spec([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shown is the state of the manifest's pod in the runtime: sandboxes, the newest first, and newest
// containers.
func shown(sandboxes []pod.Sandbox, containers ...pod.Container) pod.Actual {
	a := pod.Actual{UID: "uid-web", Containers: map[string]pod.Container{}}
	if len(sandboxes) > 0 {
		a.Sandbox, a.Older = &sandboxes[0], sandboxes[1:]
	}
	for _, c := range containers {
		c.ID = c.Name + "-" + c.SandboxID
		a.Containers[c.Name] = c
	}
	return a
}

// answers are a state's answers about the app container.
type answers struct{ owns, inSandbox, ready bool }

func ask(s *podview.State) answers {
	c, owns := s.Container("app")
	return answers{owns, s.InSandbox(c), s.SandboxReady()}
}

// TestState_ToPlanAndToReport_DifferWhereTheyHaveTo shows every difference between the
// state that steps are decided by and the one that a status is made of, and why it is.
func TestState_ToPlanAndToReport_DifferWhereTheyHaveTo(t *testing.T) {
	t.Parallel()
	want := spec(t, manifest)
	app := pod.Container{Name: "app", SandboxID: "s", State: pod.StateExited}
	for name, test := range map[string]struct {
		have         pod.Actual
		recorded     int
		next         bool // of the instance after the newest
		plan, report answers
		why          string
	}{
		"the ordinary case": {
			shown([]pod.Sandbox{{ID: "s", Ready: true, Instance: 1}}, app), 1, false,
			answers{true, true, true}, answers{true, true, true}, "they agree",
		},
		"a sandbox that is not ready": {
			shown([]pod.Sandbox{{ID: "s", Instance: 1}}, app), 1, false,
			answers{true, false, false}, answers{true, true, false},
			"the container starts again in another sandbox; until there is one, how it ended is reported",
		},
		"a sandbox of the instance before": {
			shown([]pod.Sandbox{{ID: "s", Ready: true, Instance: 1}}, app), 1, true,
			answers{false, false, false}, answers{false, true, true},
			"nothing can be started in it; it is still what the runtime runs of the pod",
		},
		"a sandbox without a number": {
			shown([]pod.Sandbox{{ID: "s", Ready: true}}, app), 2, false,
			answers{true, true, true}, answers{true, true, true}, "they agree while it can be of this instance only",
		},
		"a sandbox without a number, and the next instance": {
			shown([]pod.Sandbox{{ID: "s", Ready: true}}, app), 2, true,
			answers{false, false, false}, answers{true, true, true},
			"the next instance must not go on in it; an end is not lost with an annotation",
		},
		"a sandbox that is gone": {
			shown(nil, app), 1, false,
			answers{true, false, false}, answers{true, false, false}, "they agree: the instance of its container is not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := podview.ToPlan(want, test.have, pod.Record{Instance: test.recorded}, pod.Health{})
			if test.next {
				s = s.Next()
			}
			if got := ask(s); got != test.plan {
				t.Errorf("steps are decided by %+v, want %+v: %s", got, test.plan, test.why)
			}
			r := podview.ToReport(want, test.have, nil, pod.Health{}, s.Instance())
			if got := ask(r); got != test.report {
				t.Errorf("a status is made of %+v, want %+v: %s", got, test.report, test.why)
			}
			if all := podview.ToReport(want, test.have, nil, pod.Health{}, 0); ask(all).owns != true {
				t.Error("a status of every instance leaves a container out")
			}
		})
	}
}

// TestState_HadSandboxAndHasNewestSandbox_Differ: steps do not judge an instance again that
// has had a sandbox. A status reports it as waiting while the newest sandbox is of another
// instance: that one is running.
func TestState_HadSandboxAndHasNewestSandbox_Differ(t *testing.T) {
	t.Parallel()
	want := spec(t, manifest)
	have := shown([]pod.Sandbox{{ID: "new", Instance: 1}, {ID: "old", Instance: 2}})
	s := podview.ToPlan(want, have, pod.Record{Instance: 2}, pod.Health{})
	if s.Instance() != 2 || !s.HadSandbox() || s.HasNewestSandbox() || s.Next().HadSandbox() {
		t.Errorf("instance %d: had a sandbox %t, has the newest %t; the next one had %t", s.Instance(), s.HadSandbox(), s.HasNewestSandbox(), s.Next().HadSandbox())
	}
	if got := s.Instances(); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("instances %v", got)
	}
	if podview.ToReport(want, have, nil, pod.Health{}, 2).HasNewestSandbox() {
		t.Error("the status takes the older sandbox for a beginning")
	}
}

// TestState_HasStarted_BeforeTheFirstResult_IsAsGiven: the next container is not started before a
// result; the status keeps the reported value of the same container.
//
// Shows: C-1.20.6, C-1.29.16
func TestState_HasStarted_BeforeTheFirstResult_IsAsGiven(t *testing.T) {
	t.Parallel()
	want := spec(t, manifest)
	side, _ := want.Container("side")
	app, _ := want.Container("app")
	r := pod.Container{Name: "side", ID: "now"}
	of := func(id string, ok bool) *podview.State {
		return podview.ToPlan(want, pod.Actual{}, pod.Record{}, pod.Health{Started: map[string]pod.ProbeStatus{"side": {ContainerID: id, OK: ok}}})
	}
	for name, test := range map[string]struct {
		s      *podview.State
		c      *v1.Container
		before bool
		want   bool
	}{
		"no result, for steps":             {of("", false), side, false, false},
		"no result, for a status":          {of("", false), side, true, true},
		"passed":                           {of("now", true), side, false, true},
		"failed":                           {of("now", false), side, true, false},
		"passed in the container before":   {of("before", true), side, false, false},
		"there is no startup probe to ask": {of("now", false), app, false, true},
	} {
		if got := test.s.HasStarted(test.c, r, test.before); got != test.want {
			t.Errorf("%s: started %t", name, got)
		}
	}
}

// TestState_ChangedAndMayHaveChanged_Differ: for steps, a hash of another version is no edit,
// so that no upgrade restarts a container. A status cannot tell, so it reports no final
// phase.
//
// Shows: P17
func TestState_ChangedAndMayHaveChanged_Differ(t *testing.T) {
	t.Parallel()
	want := spec(t, manifest)
	hash := want.ContainerHash("app")
	s := podview.ToPlan(want, pod.Actual{}, pod.Record{Want: want}, pod.Health{})
	for name, test := range map[string]struct {
		hash         string
		changed, may bool
	}{
		"as desired":     {hash, false, false},
		"edited":         {podspec.HashVersion(hash) + "-old", true, true},
		"by other rules": {"v0-old", false, true},
		"not known":      {"", false, false},
	} {
		c := pod.Container{Name: "app", Hash: test.hash}
		if s.Changed(c) != test.changed || s.MayHaveChanged(c) != test.may {
			t.Errorf("%s: changed %t, may have %t", name, s.Changed(c), s.MayHaveChanged(c))
		}
	}
}

// TestState_MayRunAndAnyLeft_Differ: steps stop every container that may run, of any
// instance. A deleted pod is reported as terminated when nothing of its instance is left, a
// created container and the sandbox included.
//
// Shows: C-1.27.10
func TestState_MayRunAndAnyLeft_Differ(t *testing.T) {
	t.Parallel()
	want := spec(t, manifest)
	in := func(state pod.ContainerState) pod.Container {
		return pod.Container{Name: "app", SandboxID: "s", State: state}
	}
	down, up := []pod.Sandbox{{ID: "s", Instance: 1}}, []pod.Sandbox{{ID: "s", Ready: true, Instance: 1}}
	for name, test := range map[string]struct {
		have     pod.Actual
		instance int
		may, any bool
	}{
		"it runs":                 {shown(down, in(pod.StateRunning)), 1, true, true},
		"its state is not known":  {shown(down, in(pod.StateUnknown)), 1, true, true},
		"it was only created":     {shown(down, in(pod.StateCreated)), 1, false, true},
		"it has exited":           {shown(down, in(pod.StateExited)), 1, false, false},
		"the sandbox is ready":    {shown(up, in(pod.StateExited)), 1, false, true},
		"another instance's runs": {shown(down, in(pod.StateRunning)), 2, true, false},
		"there is nothing":        {pod.Actual{}, 1, false, false},
	} {
		may, any := podview.MayRun(test.have), podview.ToReport(want, test.have, nil, pod.Health{}, test.instance).AnyLeft()
		if may != test.may || any != test.any {
			t.Errorf("%s: may run %t, any left %t", name, may, any)
		}
	}
}

// TestState_CurrentInit_LastContainerInTheSandboxDecides shows the current init container,
// and that planner and status agree on when the init containers are done.
//
// Shows: C-1.20.2, C-1.20.3, C-1.20.9
func TestState_CurrentInit_LastContainerInTheSandboxDecides(t *testing.T) {
	t.Parallel()
	want := spec(t, manifest)
	c := func(name, sandbox string, state pod.ContainerState) pod.Container {
		return pod.Container{Name: name, SandboxID: sandbox, State: state}
	}
	boxes := []pod.Sandbox{{ID: "s", Ready: true, Instance: 1, Attempt: 1}, {ID: "before", Instance: 1}}
	for name, test := range map[string]struct {
		containers []pod.Container
		turn       int
		done       bool // where the sidecar has started
	}{
		"nothing was made":             {nil, 0, false},
		"the first runs":               {[]pod.Container{c("init", "s", pod.StateRunning)}, 0, false},
		"the first has completed":      {[]pod.Container{c("init", "s", pod.StateExited)}, 0, false},
		"the sidecar runs":             {[]pod.Container{c("init", "s", pod.StateExited), c("side", "s", pod.StateRunning)}, 1, true},
		"the first was removed":        {[]pod.Container{c("side", "s", pod.StateRunning)}, 1, true},
		"the sidecar was created":      {[]pod.Container{c("side", "s", pod.StateCreated)}, 1, false},
		"a regular one was created":    {[]pod.Container{c("app", "s", pod.StateCreated)}, 2, true},
		"all of it in another sandbox": {[]pod.Container{c("init", "before", pod.StateExited), c("side", "before", pod.StateExited), c("app", "before", pod.StateExited)}, 0, false},
	} {
		s := podview.ToPlan(want, shown(slices.Clone(boxes), test.containers...), pod.Record{Instance: 1}, pod.Health{})
		r := podview.ToReport(want, shown(slices.Clone(boxes), test.containers...), nil, pod.Health{}, 1)
		started := func(*v1.Container, pod.Container) bool { return true }
		if s.CurrentInit() != test.turn || s.Initialized(started) != test.done || r.CurrentInit() != test.turn || r.Initialized(started) != test.done {
			t.Errorf("%s: turn %d, done %t; to report: turn %d, done %t", name, s.CurrentInit(), s.Initialized(started), r.CurrentInit(), r.Initialized(started))
		}
		if not := func(*v1.Container, pod.Container) bool { return false }; test.turn < 2 && s.Initialized(not) {
			t.Errorf("%s: done before the sidecar has started", name)
		}
	}
	none := spec(t, "metadata: {name: web}\nspec: {containers: [{name: app, image: a}]}")
	if s := podview.ToPlan(none, pod.Actual{}, pod.Record{}, pod.Health{}); s.CurrentInit() != 0 || !s.Initialized(nil) {
		t.Error("a pod without init containers is not initialized")
	}
}

// TestDuplicatesOf_WhatHasEnded_IsNone: exited containers and stopped sandboxes are history.
//
// Shows: I1
func TestDuplicatesOf_WhatHasEnded_IsNone(t *testing.T) {
	t.Parallel()
	have := shown([]pod.Sandbox{{ID: "s", Ready: true}, {ID: "before"}},
		pod.Container{Name: "app", SandboxID: "s", State: pod.StateRunning}, pod.Container{Name: "init", SandboxID: "before", State: pod.StateExited})
	have.Dead = []pod.Container{{Name: "app", State: pod.StateExited}}
	if d := podview.DuplicatesOf(have); d.Any() {
		t.Errorf("history is taken for duplicates: %+v", d)
	}
	have.Older[0].Ready = true
	have.Dead[0].State = pod.StateCreated
	have.Containers["side"] = pod.Container{Name: "side", SandboxID: "before", State: pod.StateUnknown}
	if d := podview.DuplicatesOf(have); len(d.Older) != 1 || len(d.Outside) != 1 || d.Outside[0].Name != "side" || len(d.Sandboxes) != 1 {
		t.Errorf("duplicates are %+v", d)
	}
	have.Sandbox, have.Older = nil, nil
	if d := podview.DuplicatesOf(have); len(d.Outside) > 0 {
		t.Errorf("outside of no sandbox: %+v", d)
	}
}
