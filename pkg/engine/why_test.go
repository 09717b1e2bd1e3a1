package engine

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/probe"
)

// hang is one dependency of the pod "stuck" that does not answer.
type hang struct {
	edit      func(*v1.Pod)
	configure func(*Config)
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
	claims, devices := &desk{there: true, hangs: true}, &plugin{there: true}
	return map[string]hang{
		"none":           {begin: func(*machine) func() { return func() {} }},
		"dead mount":     {edit: withCache, begin: volumeHangs("SetUp"), cause: "put-volumes"},
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
		"DNS": {
			edit: func(p *v1.Pod) {
				get := &v1.HTTPGetAction{Host: "db.test.", Port: intstr.FromInt32(80), Path: "/warm"}
				p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{HTTPGet: get}}
			},
			configure: func(c *Config) { c.Prober = probe.New(probe.Config{}) },
			begin:     nameServersHang, cause: "run-hook app: postStart hook of container app: GET db.test.:80/warm (looking up the name db.test.)",
		},
		"API request": {edit: withCache, begin: func(m *machine) func() {
			m.disk.setUpCall = activity.Call{Kind: activity.Request, Name: "POST", Target: "/api/v1/namespaces/default/serviceaccounts/default/token", Host: "https://api.test:6443"}
			return volumeHangs("SetUp")(m)
		}, cause: "put-volumes: request POST /api/v1/namespaces/default/serviceaccounts/default/token to https://api.test:6443"},
		"CSI driver": {edit: withCache, begin: func(m *machine) func() {
			m.disk.setUpCall = activity.Call{Kind: activity.Driver, Name: "NodeStageVolume", Target: "vol-1", Host: "disk.test"}
			return volumeHangs("SetUp")(m)
		}, cause: "put-volumes: NodeStageVolume of volume vol-1 by CSI driver disk.test"},
		"DRA driver": {
			edit: usesClaim, configure: func(c *Config) { c.Claims = claims },
			begin: func(m *machine) func() {
				claims.busy = func() bool { return strings.Contains(m.rt.State(), "running") }
				claims.changed, claims.sick, claims.answers = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
				return func() { close(claims.answers) }
			},
			cause: "run-sandbox: NodePrepareResources of ResourceClaim gpu by DRA driver x.test",
		},
		"device plugin": {
			edit: usesGPU, configure: func(c *Config) { c.Devices = devices },
			begin: func(*machine) func() {
				devices.changed, devices.hangs = make(chan struct{}, 1), make(chan struct{})
				return func() { close(devices.hangs) }
			},
			cause: "create-container app: allocate devices for container app by the device plugin of x.com/gpu",
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
		"measured volume": {edit: withCache, begin: volumeHangs("ExceededLimit"), after: measurementPeriod, cause: "measure volumes"},
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

// nameServersHang makes every lookup of a name wait, until the pod is removed.
func nameServersHang(m *machine) (release func()) {
	before := net.DefaultResolver
	net.DefaultResolver = silentResolver()
	m.t.Cleanup(func() { net.DefaultResolver = before })
	return func() {
		m.src.mu.Lock()
		pods := slices.DeleteFunc(slices.Clone(m.src.pods), func(s *pod.Spec) bool { return s.Key == stuckKey })
		m.src.mu.Unlock()
		m.src.set(pods...)
	}
}

// silentResolver asks name servers that do not answer.
func silentResolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
}

// One dependency of one pod hangs. Twenty other pods start as fast as without the hang and stay
// ready. Within five seconds the agent names the reason why the pod waits.
//
// Shows: F22
func TestHang_DependencyOfOnePod_OthersAreNotAffectedAndItIsNamed(t *testing.T) {
	hangBeside(t, 20)
}

// hangBeside lets each dependency of a pod hang beside so many other pods.
func hangBeside(t *testing.T, others int) {
	// The resolver makes its channels at the first lookup: it belongs to no bubble.
	none, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = silentResolver().LookupHost(none, "db.test.")
	all := hangs()
	base := all["none"].starts(t, others)
	delete(all, "none")
	for name, h := range all {
		t.Run(name, func(t *testing.T) {
			if took := h.starts(t, others); took > base*6/5 {
				t.Errorf("the other pods started in %s, without the hang in %s", took, base)
			}
		})
	}
}

// starts makes the dependency hang, checks the reason in the agent's report, and returns how long
// the start of the other pods takes.
func (h hang) starts(t *testing.T, others int) (took time.Duration) {
	bubble(t, func(t *testing.T, m *machine) {
		board := activity.NewBoard()
		m.alter = func(c *Config) {
			c.Activity = board
			if h.configure != nil {
				h.configure(c)
			}
		}
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

// The API server does not answer an agent that starts, or has accepted a watch and sends nothing
// more. The pods that it bound to the node before, and static pods, are not affected.
//
// Shows: F22
func TestHang_APIServer_StaticAndKnownPodsAreNotAffected(t *testing.T) {
	const layer, others = "api:/k", 50
	for name, mute := range map[string]bool{"server": true, "watch": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				board := activity.NewBoard()
				m.alter = func(c *Config) { c.Activity = board }
				m.disk.sets = map[string]map[string]pod.LastGoodSet{}
				m.src.name, m.more = layer, newWishes()
				known, stuck := of("api", "/k", mkpod("known")), of("api", "/k", mkpod("stuck"))
				m.src.set(known)
				m.arrive()
				m.pass(10 * time.Second)
				m.leave()
				before := m.disk.last(known.Key).pod.Status.ContainerStatuses[0].ContainerID
				reported := len(m.disk.lines)
				m.wrote(layer, known, stuck)
				m.mute = mute
				m.arrive()
				if text := named(m, board, "source "+layer+" has not answered yet"); mute && text != "" {
					t.Errorf("five seconds later the report is %q", text)
				}
				var static []*pod.Spec
				for i := range others {
					static = append(static, mkpod(fmt.Sprintf("p%02d", i)))
				}
				m.more.set(static...)
				m.pass(time.Minute)
				if n := m.count(v1.PodRunning); n != others+1 {
					t.Errorf("%d of %d pods run and are ready", n, others+1)
				}
				for _, l := range m.disk.lines[reported:] {
					if pod.KeyOf(l.pod) == known.Key && (l.gone || !l.pod.Status.ContainerStatuses[0].Ready) {
						t.Errorf("the known pod is reported as %+v", l.pod.Status)
					}
				}
				if is := m.disk.last(known.Key).pod.Status.ContainerStatuses[0].ContainerID; is != before {
					t.Errorf("the known pod has another container: %s, was %s", is, before)
				}
			})
		})
	}
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
