package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// hang is one dependency of the pod "stuck" that does not answer.
type hang struct {
	edit func(*v1.Pod)
	// begin makes the dependency hang for the pod, before the agent starts. release ends it.
	begin func(m *machine) (release func())
	after time.Duration // when the hang begins
	later func(m *machine)
	cause string // that the report about the pod names
}

var stuckKey = pod.Key{Namespace: "default", Name: "stuck"}

// volumeHangs makes a call of the volumes of the pod hang.
func volumeHangs(call string) func(m *machine) func() {
	return func(m *machine) func() {
		answers := make(chan struct{})
		m.disk.hung = func(c string, want *pod.Spec) <-chan struct{} {
			if c == call && want.Key == stuckKey {
				return answers
			}
			return nil
		}
		return func() { close(answers) }
	}
}

// callHangs makes a call to the runtime hang.
func callHangs(f critest.Fault) func(m *machine) func() {
	f.Hang = true
	return func(m *machine) func() { return m.rt.Fault(f) }
}

func withCache(p *v1.Pod) {
	limit := resource.MustParse("1Mi")
	p.Spec.Volumes = []v1.Volume{{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
}

func hangs() map[string]hang {
	run := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"warm", "up"}}}
	hookHangs := func(m *machine) func() {
		m.disk.hookTakes = map[string]time.Duration{"slow": 10 * time.Minute}
		return func() { m.pass(10 * time.Minute) }
	}
	return map[string]hang{
		"none":           {begin: func(*machine) func() { return func() {} }},
		"dead mount":     {edit: withCache, begin: volumeHangs("Put"), cause: "put-volumes"},
		"mounts":         {edit: withCache, begin: volumeHangs("Mounts"), cause: "prepare mounts app"},
		"checked mount":  {edit: withCache, begin: volumeHangs("Ready"), cause: "check volumes"},
		"CRI call":       {begin: callHangs(critest.Fault{Method: "CreateContainer", Pod: stuckKey}), cause: "create-container app: runtime call CreateContainer"},
		"network plugin": {begin: callHangs(critest.Fault{Method: "RunPodSandbox", Pod: stuckKey}), cause: "run-sandbox: runtime call RunPodSandbox"},
		"runtime read":   {begin: callHangs(critest.Fault{Method: "ListPodSandbox", Pod: stuckKey}), cause: "runtime call ListPodSandbox"},
		"registry": {
			edit: func(p *v1.Pod) {
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "registry.test/slow:1", v1.PullAlways
			},
			begin: callHangs(critest.Fault{Method: "PullImage", Times: 1}),
			cause: "pull-image app: pull of image registry.test/slow:1 from registry.test",
		},
		"hook": {
			edit: func(p *v1.Pod) {
				p.Spec.Containers[0].Name, p.Spec.Containers[0].Lifecycle = "slow", &v1.Lifecycle{PostStart: run}
			},
			begin: hookHangs, cause: "run-hook slow: postStart hook of container slow: command warm up",
		},
		"stop hook": {
			edit: func(p *v1.Pod) {
				p.Spec.Containers[0].Name, p.Spec.Containers[0].Lifecycle = "slow", &v1.Lifecycle{PreStop: run}
				graceSeconds(300)(p)
			},
			begin: hookHangs, after: 5 * time.Second, later: func(m *machine) { m.src.set() },
			cause: "stop-container slow: preStop hook of container slow: command warm up",
		},
		"stop": {
			begin: callHangs(critest.Fault{Method: "StopContainer", Pod: stuckKey}), after: 5 * time.Second,
			later: func(m *machine) { m.src.set() }, cause: "stop-container app: runtime call StopContainer",
		},
		"measured volume": {edit: withCache, begin: volumeHangs("Over"), after: measurementPeriod, cause: "measure volumes"},
		"probe": {
			edit: func(p *v1.Pod) {
				p.Spec.Containers[0].ReadinessProbe = &v1.Probe{
					ProbeHandler:   v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Host: "db.test"}},
					TimeoutSeconds: 600, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
				}
			},
			begin: func(m *machine) func() {
				answers := make(chan struct{})
				m.disk.probeHangs = answers
				return func() { close(answers) }
			},
			after: 2 * time.Second, cause: "readiness probe of container app: TCP db.test",
		},
	}
}

// One dependency of one pod hangs. Fifty other pods start as fast as without the hang and stay
// ready, and within five seconds the agent names what the pod waits for.
//
// Shows: F22
func TestHang_DependencyOfOnePod_OthersAreNotAffectedAndItIsNamed(t *testing.T) {
	all := hangs()
	base := all["none"].starts(t)
	for name, h := range all {
		t.Run(name, func(t *testing.T) {
			if took := h.starts(t); took > base*6/5 {
				t.Errorf("the other pods started in %s, without the hang in %s", took, base)
			}
		})
	}
}

// starts makes the dependency hang, checks what the agent names, and returns how long the start
// of the other pods takes.
func (h hang) starts(t *testing.T) (took time.Duration) {
	const others = 50
	bubble(t, func(t *testing.T, m *machine) {
		board := activity.NewBoard()
		m.alter = func(c *Config) { c.Activity = board }
		release := h.begin(m)
		m.rt.Fault(critest.Fault{Method: "RunPodSandbox", Delay: 200 * time.Millisecond})
		stuck := mkpod("stuck")
		if h.edit != nil {
			stuck = mkpod("stuck", h.edit)
		}
		pods := []*pod.Spec{stuck}
		m.src.set(pods...)
		m.arrive()
		m.pass(h.after)
		if h.later != nil {
			h.later(m)
			pods = nil
		}
		if text := named(m, board, h.cause); text != "" {
			t.Errorf("five seconds later the report is %q, want %q in it", text, h.cause)
		}
		for i := range others {
			pods = append(pods, mkpod(fmt.Sprintf("p%02d", i)))
		}
		began := time.Now()
		m.src.set(pods...)
		for m.count(v1.PodRunning) < others && time.Since(began) < time.Minute {
			m.pass(20 * time.Millisecond)
		}
		took = time.Since(began)
		m.pass(30 * time.Second)
		if n := m.count(v1.PodRunning); n != others {
			t.Errorf("%d of %d other pods run and are ready", n, others)
		}
		release()
		m.pass(time.Minute)
		if calls := board.Calls(stuckKey); len(calls) > 0 {
			t.Errorf("after it answers, these calls run: %v", calls)
		}
		if s, ok := board.State(stuckKey); ok {
			t.Errorf("after it answers, the pod waits: %+v", s)
		}
	})
	return took
}

// named waits up to five seconds until a report about the pod contains cause. It returns the last
// one, or "" when it does.
func named(m *machine, board *activity.Board, cause string) (last string) {
	for range 10 {
		m.pass(500 * time.Millisecond)
		r := activity.Report{Phase: "Running", Calls: board.Calls(stuckKey), Now: time.Now()}
		if s, ok := board.State(stuckKey); ok {
			r.State = &s
		}
		if r.Summarize(); strings.Contains(r.Summary, cause) {
			return ""
		}
		last = r.Summary
	}
	return last
}

// count returns how many pods but "stuck" are in a phase, and ready.
func (m *machine) count(phase v1.PodPhase) (n int) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for key, line := range m.disk.journal {
		if key == stuckKey || line.gone || line.pod.Status.Phase != phase {
			continue
		}
		for _, c := range line.pod.Status.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
				n++
			}
		}
	}
	return n
}

// A source that has not answered, and admission: the report names both.
func TestActivity_PodNotAdmitted_IsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		board := activity.NewBoard()
		m.alter = func(c *Config) {
			c.Activity = board
			c.Node.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		}
		m.src.set(mkpod("stuck", func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}
		}))
		m.arrive()
		if text := named(m, board, "cpu"); text != "" {
			t.Errorf("the report is %q", text)
		}
	})
}

// A container that exits again and again: the report names the crash back-off and its end.
func TestActivity_CrashBackoff_IsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		board := activity.NewBoard()
		m.alter = func(c *Config) { c.Activity = board }
		m.src.set(mkpod("stuck", image("exit-1")))
		m.arrive()
		m.pass(time.Minute)
		s, ok := board.State(stuckKey)
		if !ok || s.WaitFor == "" || !s.Until.After(time.Now()) {
			t.Errorf("state %+v", s)
		}
	})
}
