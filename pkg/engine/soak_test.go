package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestI3_RandomLivesConverge lives through random edits, crashes, slow and
// failing calls, deaths and returns of the agent; when all that is over, what
// runs is what is wanted (I1, I3, I4).
func TestI3_RandomLivesConverge(t *testing.T) {
	lives := 25
	if testing.Short() {
		lives = 10
	}
	for seed := range lives {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) { randomLife(t, m, rand.New(rand.NewPCG(uint64(seed), 7))) })
		})
	}
}

func randomLife(t *testing.T, m *machine, r *rand.Rand) {
	names := []string{"a", "b", "c", "d", "e"}
	images := []string{"app:1", "app:2", "exit-1-after-3s", "exit-0-after-2s", "slow-term-4s", "remote:1"}
	wanted := map[string]*pod.Spec{}
	publish := func() {
		var all []*pod.Spec
		for _, n := range names {
			if wanted[n] != nil {
				all = append(all, wanted[n])
			}
		}
		m.src.set(all...)
	}
	draw := func(name string) *pod.Spec {
		edits := []func(*v1.Pod){image(images[r.IntN(len(images))])}
		if r.IntN(3) == 0 {
			edits = append(edits, initContainer("exit-0-after-1s"))
		}
		if r.IntN(3) == 0 {
			edits = append(edits, policy(v1.RestartPolicyOnFailure))
		}
		if r.IntN(4) == 0 {
			edits = append(edits, hostPort(8080))
		}
		if r.IntN(3) == 0 {
			edits = append(edits, func(p *v1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "side:1"})
			})
		}
		return mkpod(name, edits...)
	}
	methods := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox", "RemoveContainer", "ListContainers", "PodSandboxStatus", "ContainerStatus"}
	m.arrive()
	for range 60 {
		name := names[r.IntN(len(names))]
		switch r.IntN(12) {
		case 0, 1, 2, 3:
			wanted[name] = draw(name)
			publish()
		case 4, 5:
			delete(wanted, name)
			publish()
		case 6:
			m.rt.Fault(critest.Fault{Method: methods[r.IntN(len(methods))], Times: 1 + r.IntN(2), Delay: time.Duration(r.IntN(8000)) * time.Millisecond})
		case 7:
			m.rt.Fault(critest.Fault{Method: methods[r.IntN(len(methods))], Times: 1 + r.IntN(2), Err: status.Error(codes.Unknown, "no")})
		case 8:
			m.rt.Fault(critest.Fault{Method: "Events", Times: 1 + r.IntN(3), Drop: r.IntN(2) == 0, Repeat: true, NoSandbox: r.IntN(2) == 0})
		case 9:
			m.die()
			m.pass(time.Duration(r.IntN(3000)) * time.Millisecond)
			m.arrive()
		case 10:
			m.rt.Exit(pod.Key{Namespace: "default", Name: name}, "app", 1)
		case 11:
			m.pass(time.Duration(r.IntN(20)) * time.Second)
		}
		m.pass(time.Duration(r.IntN(1500)) * time.Millisecond)
	}
	m.pass(20 * time.Minute)
	for _, n := range names {
		phase := m.phase(n)
		want := wanted[n]
		switch {
		case want == nil:
			if phase != "gone" && phase != "never reported" {
				t.Errorf("%s is not wanted and %s", n, phase)
			}
			continue
		case len(want.Pod.Spec.Containers[0].Ports) > 0 && phase == "Pending":
			continue
		}
		if phase == "Pending" || phase == "gone" || phase == "never reported" {
			t.Errorf("%s is wanted and %s", n, phase)
		}
		if strings.HasPrefix(want.Pod.Spec.Containers[0].Image, "app") && !strings.Contains(m.rt.State(), "default/"+n+"/app attempt=") {
			t.Errorf("%s does not run", n)
		}
		for _, c := range want.Pod.Spec.Containers[1:] {
			if want.Pod.Spec.RestartPolicy == v1.RestartPolicyAlways && !running(m, n, c.Name) {
				t.Errorf("%s/%s does not run", n, c.Name)
			}
		}
	}
	if t.Failed() {
		t.Log(m.rt.State())
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
