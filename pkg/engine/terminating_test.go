package engine

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// ofAPI makes a pod of the API server at /k.
func ofAPI(name string, edits ...func(*v1.Pod)) *pod.Spec {
	return of("api", "/k", mkpod(name, edits...))
}

func amounts(name v1.ResourceName, n string) v1.ResourceList {
	return v1.ResourceList{name: resource.MustParse(n)}
}

// phases returns the phases, reasons and messages reported of a pod, each once in a row.
func (m *machine) phases(name string) (list []string) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for _, l := range m.disk.lines {
		if l.pod.Name != name || l.gone {
			continue
		}
		s := fmt.Sprint(l.pod.Status.Phase, " ", l.pod.Status.Reason, " ", l.pod.Status.Message)
		if len(list) == 0 || list[len(list)-1] != s {
			list = append(list, s)
		}
	}
	return list
}

// TestAdmission_CapacityOfATerminatingPod_IsWaitedFor force-deletes a pod whose container
// needs seconds to stop. A pod that the scheduler places into its capacity is Pending until
// the last container is gone, and never Failed. Its status changes twice: no flapping.
//
// Shows: C-1.31.4, I1, C-1.31
func TestAdmission_CapacityOfATerminatingPod_IsWaitedFor(t *testing.T) {
	memory := func(n string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amounts("memory", n)
		}
	}
	for name, c := range map[string]struct {
		node   plan.Node
		hold   func(*v1.Pod)
		reason string
	}{
		"cpu":    {cores("2"), cpu("1500m"), "OutOfcpu"},
		"memory": {plan.Node{Name: "n1", Allocatable: amounts("memory", "1Gi")}, memory("700Mi"), "OutOfmemory"},
		"port":   {cores("2"), hostPort(8080), "NodePorts"},
		"pods":   {plan.Node{Name: "n1", MaxPods: 1}, func(*v1.Pod) {}, "OutOfpods"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.on(c.node)
				m.src.name = "api:/k"
				m.src.set(ofAPI("first", c.hold, image("slow-term-20s")))
				m.arrive()
				m.pass(5 * time.Second)
				m.expect("first", "Running", true)
				m.src.set(ofAPI("second", c.hold))
				m.pass(10 * time.Second)
				m.expect("second", "Pending "+c.reason, false)
				m.pass(15 * time.Second)
				m.expect("first", "gone", false)
				m.expect("second", "Running", true)
				if got := m.stands("second"); got != "Running" {
					t.Errorf("the reason outlives the wait: %q", got)
				}
				if list := m.phases("second"); len(list) > 3 { // refused, starting, running
					t.Errorf("the status flaps: %q", list)
				}
			})
		})
	}
}

// TestAdmission_TerminatingPodFoundAfterRestart_IsWaitedFor: the agent restarts while the
// force-deleted pod still stops.
//
// Shows: C-1.31
func TestAdmission_TerminatingPodFoundAfterRestart_IsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		m.src.name = "api:/k"
		m.src.set(ofAPI("first", cpu("2"), image("slow-term-20s")))
		m.arrive()
		m.pass(5 * time.Second)
		m.leave()
		m.src.set(ofAPI("second", cpu("2")))
		m.arrive()
		m.pass(5 * time.Second)
		m.expect("second", "Pending OutOfcpu", false)
		m.leave()
		m.arrive()
		m.pass(2 * time.Second)
		m.expect("second", "Pending OutOfcpu", false)
		m.pass(40 * time.Second)
		m.expect("second", "Running", true)
	})
}

// TestAdmission_PodThatAServerEnded_IsWaitedFor: the API server shows a pod as Failed, because its
// node was unreachable. The kubelet and the scheduler do not count it any more while it stops.
func TestAdmission_PodThatAServerEnded_IsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		m.src.name = "api:/k"
		failed := func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }
		m.src.set(ofAPI("first", cpu("2"), image("slow-term-20s")))
		m.arrive()
		m.pass(5 * time.Second)
		m.src.set(ofAPI("first", cpu("2"), image("slow-term-20s"), failed), ofAPI("second", cpu("2")))
		m.pass(5 * time.Second)
		m.expect("second", "Pending OutOfcpu", false)
		m.pass(40 * time.Second)
		m.expect("second", "Running", true)
	})
}

// TestAdmission_CapacityThatIsWaitedFor_IsNotTaken: a pod that comes later, or grows, does
// not take the capacity that another one waits for. A pod that does not fit beside the
// waiting pods is rejected.
//
// Shows: C-1.31
func TestAdmission_CapacityThatIsWaitedFor_IsNotTaken(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		m.src.name = "api:/k"
		small := ofAPI("small", cpu("500m"))
		m.src.set(ofAPI("first", cpu("1"), image("slow-term-20s")), small)
		m.arrive()
		m.pass(5 * time.Second)
		second := ofAPI("second", cpu("1500m"))
		m.src.set(second, small)
		m.pass(2 * time.Second)
		m.expect("second", "Pending OutOfcpu", false)
		grown := resized(small, cpu("1"))
		m.src.set(second, grown, ofAPI("third", cpu("500m")))
		m.pass(2 * time.Second)
		m.expect("third", "Failed OutOfcpu", false)
		m.pass(time.Minute)
		m.expect("second", "Running", true)
		if got := resizeCondition(t, m, "small"); got != "PodResizePending Deferred" {
			t.Errorf("a pod that grows took what another one waits for: %q", got)
		}
	})
}

// TestAdmission_WaitingPodIsDeleted_IsGone: nothing of the pod was made, so nothing is left.
func TestAdmission_WaitingPodIsDeleted_IsGone(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		m.src.name = "api:/k"
		m.src.set(ofAPI("first", cpu("2"), image("slow-term-20s")))
		m.arrive()
		m.pass(5 * time.Second)
		m.src.set(ofAPI("second", cpu("2")))
		m.pass(time.Second)
		m.src.set()
		m.pass(time.Second)
		m.expect("second", "gone", false)
		m.pass(time.Minute)
		m.want()
	})
}
