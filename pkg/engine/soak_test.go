package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestI3_RandomScenariosConverge runs random edits, crashes, slow and failing calls, failing
// probes and hooks, panics, and deaths and restarts of the agent. When all that is over, the
// desired pods run (I1, I3, I4). When no pod is desired any more, nothing is left (I6).
//
// Shows: I3
func TestI3_RandomScenariosConverge(t *testing.T) { randomLives(t, 0, 2) }

// randomLives runs one random test for each of these seeds.
func randomLives(t *testing.T, from, to int) {
	for seed := from; seed < to; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				f := &fate{T: t, m: m, r: rand.New(rand.NewPCG(uint64(seed), 7)), wanted: map[string]*pod.Spec{}}
				f.live()
				f.judge()
				f.end()
			})
		})
	}
}

// fated are the possible pods; one may depend on those before it.
var fated = []string{"a", "b", "c", "d", "e"}

// fate is one random test run.
type fate struct {
	*testing.T
	m      *machine
	r      *rand.Rand
	wanted map[string]*pod.Spec
	trap   *trap
	sprung time.Time // when the trap was last set: three panics in a minute is quarantine
}

func (f *fate) chance(in int) bool { return f.r.IntN(in) == 0 }

func (f *fate) publish() {
	var all []*pod.Spec
	for _, n := range fated {
		if f.wanted[n] != nil {
			all = append(all, f.wanted[n])
		}
	}
	f.m.src.set(all...)
}

// draw makes a pod with a random choice of features.
func (f *fate) draw(name string) *pod.Spec {
	images := []string{"app:1", "app:2", "exit-1-after-3s", "exit-0-after-2s", "slow-term-4s", "remote:1"}
	edits := []func(*v1.Pod){image(images[f.r.IntN(len(images))])}
	often := &v1.Probe{PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 2, TimeoutSeconds: 1,
		ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}}
	for _, may := range []struct {
		in   int
		edit func(*v1.Pod)
	}{
		{3, initContainer("exit-0-after-1s")},
		{3, policy(v1.RestartPolicyOnFailure)},
		{4, hostPort(8080)},
		{3, func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "side:1"})
		}},
		{4, sidecar},
		{4, hooked},
		{4, func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = often }},
		{6, func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe = often }},
		{6, func(p *v1.Pod) { p.Spec.Containers[0].StartupProbe = often }},
	} {
		if f.chance(may.in) {
			edits = append(edits, may.edit)
		}
	}
	s := mkpod(name, edits...)
	if i := slices.Index(fated, name); i > 0 && f.chance(4) {
		s.DependsOn = []pod.Dependency{{Name: fated[f.r.IntN(i)], Until: []pod.DependencyCondition{pod.Started, pod.Ready}[f.r.IntN(2)]}}
	}
	return s
}

// live makes a few dozen random changes to a node.
func (f *fate) live() {
	f.trap = &trap{disk: f.m.disk}
	f.m.alter = func(c *Config) { c.Volumes = f.trap }
	methods := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox", "RemoveContainer", "ListContainers", "PodSandboxStatus", "ContainerStatus"}
	f.m.arrive()
	for range 60 {
		name := fated[f.r.IntN(len(fated))]
		switch f.r.IntN(16) {
		case 0, 1, 2, 3:
			f.wanted[name] = f.draw(name)
			f.publish()
		case 4, 5:
			delete(f.wanted, name)
			f.publish()
		case 6:
			f.m.rt.Fault(critest.Fault{Method: methods[f.r.IntN(len(methods))], Times: 1 + f.r.IntN(2), Delay: time.Duration(f.r.IntN(8000)) * time.Millisecond})
		case 7:
			f.m.rt.Fault(critest.Fault{Method: methods[f.r.IntN(len(methods))], Times: 1 + f.r.IntN(2), Err: status.Error(codes.Unknown, "no"), DropReply: f.chance(2)})
		case 8:
			f.m.rt.Fault(critest.Fault{Method: "Events", Times: 1 + f.r.IntN(3), Drop: f.chance(2), Repeat: true, NoSandbox: f.chance(2)})
		case 9:
			f.m.die()
			f.m.pass(time.Duration(f.r.IntN(3000)) * time.Millisecond)
			f.m.arrive()
		case 10, 11:
			f.m.rt.Exit(pod.Key{Namespace: "default", Name: name}, []string{"app", "proxy", "side"}[f.r.IntN(3)], 1)
		case 12:
			f.ail(f.chance(2), f.chance(3), time.Duration(f.r.IntN(40))*time.Second)
		case 13:
			f.spring(name)
		default:
			f.m.pass(time.Duration(f.r.IntN(20)) * time.Second)
		}
		f.m.pass(time.Duration(f.r.IntN(1500)) * time.Millisecond)
	}
	f.ail(false, false, 0)
	f.m.pass(20 * time.Minute)
}

// ail makes the probes of every container app fail, or not, and its hooks fail, or take a
// while.
func (f *fate) ail(sick, fails bool, takes time.Duration) {
	d := f.m.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sick["app"] = sick
	d.hookTakes, d.hookFails = map[string]time.Duration{"app": takes}, map[string]error{}
	if fails {
		d.hookFails["app"] = errors.New("no")
	}
}

// spring makes the worker of one pod panic, once or twice.
func (f *fate) spring(name string) {
	f.trap.mu.Lock()
	defer f.trap.mu.Unlock()
	if time.Since(f.sprung) > 2*panicWindow && f.trap.left == 0 {
		f.trap.name, f.trap.left, f.sprung = name, 1+f.r.IntN(2), time.Now()
	}
}

// judge compares the runtime with the desired pods.
func (f *fate) judge() {
	for _, n := range fated {
		phase, want := f.m.phase(n), f.wanted[n]
		if want == nil {
			if phase != "gone" && phase != "never reported" {
				f.Errorf("%s is not desired and %s", n, phase)
			}
			continue
		}
		// A pod that waits does not run yet, or runs as before the edit.
		if phase == "Pending" && f.mayWait(want) || phase != "gone" && phase != "never reported" && !running(f.m, n, "app") && f.mayWait(want) {
			continue
		}
		if phase == "Pending" || phase == "gone" || phase == "never reported" {
			f.Errorf("%s is desired and %s", n, phase)
		}
		if strings.HasPrefix(want.Pod.Spec.Containers[0].Image, "app") && !running(f.m, n, "app") {
			f.Errorf("%s does not run", n)
		}
		for _, c := range want.Pod.Spec.Containers[1:] {
			if want.Pod.Spec.RestartPolicy == v1.RestartPolicyAlways && !running(f.m, n, c.Name) {
				f.Errorf("%s/%s does not run", n, c.Name)
			}
		}
		if proxy(want.Pod) >= 0 && running(f.m, n, "app") && !running(f.m, n, "proxy") {
			f.Errorf("%s/proxy does not run beside its container", n)
		}
	}
	if f.Failed() {
		f.Log(f.m.rt.State())
		for _, w := range f.wanted {
			f.Logf("desired after %v: %s", w.DependsOn, w.Pod)
		}
	}
}

// mayWait reports whether the pod may wait forever: for its port, or for a pod that does not
// run.
func (f *fate) mayWait(want *pod.Spec) bool {
	if len(want.Pod.Spec.Containers[0].Ports) > 0 {
		return true
	}
	for _, d := range want.DependsOn {
		if f.wanted[d.Name] == nil || !running(f.m, d.Name, "app") {
			return true
		}
	}
	return false
}

// end removes all pods and ends the test.
func (f *fate) end() {
	clear(f.wanted)
	f.publish()
	f.m.pass(5 * time.Minute)
	f.m.want()
	if err := f.m.disk.empty(); err != nil {
		f.Error(err)
	}
}

func running(m *machine, name, container string) bool {
	for line := range strings.Lines(m.rt.State()) {
		if strings.HasPrefix(line, "default/"+name+"/"+container+" ") && strings.Contains(line, "running") {
			return true
		}
	}
	return false
}
