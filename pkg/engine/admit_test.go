package engine

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// on sets the node by which the next agents judge.
func (m *machine) on(node plan.Node) {
	m.alter = func(c *Config) { c.Node = node }
}

func cores(n string) plan.Node {
	return plan.Node{Name: "n1", OS: "linux", Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)}}
}

func cpu(n string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)}
	}
}

// stands returns phase, reason and message of a pod as last reported.
func (m *machine) stands(name string) string {
	l := m.disk.last(pod.Key{Namespace: "default", Name: name})
	if l == nil || l.gone {
		return m.phase(name)
	}
	s := l.pod.Status
	return strings.TrimSpace(string(s.Phase) + " " + s.Reason + " " + s.Message)
}

// expect checks the reported status of a pod, and whether the runtime has something of it.
func (m *machine) expect(name, want string, runs bool) {
	m.t.Helper()
	if got := m.stands(name); !strings.HasPrefix(got, want) {
		m.t.Errorf("%s is %q, want %q", name, got, want)
	}
	if got := strings.Contains(m.rt.State(), "default/"+name+" ") || strings.Contains(m.rt.State(), "default/"+name+"/"); got != runs {
		m.t.Errorf("%s is on the runtime: %v, want %v\n%s", name, got, runs, m.rt.State())
	}
}

// TestP7_RefusedStartsWhenItsShareIsFree: the refused pod starts when the pod that has its
// resources is gone, not when that one begins to stop.
//
// Shows: P7
func TestP7_RefusedStartsWhenItsShareIsFree(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		first, second := mkpod("first", cpu("1500m"), image("slow-term-3s")), mkpod("second", cpu("1"))
		m.src.set(first)
		m.arrive()
		m.src.set(first, second)
		m.pass(time.Minute)
		m.expect("first", "Running", true)
		m.expect("second", "Pending OutOfcpu Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000", false)
		m.src.set(second)
		m.pass(2 * time.Second)
		m.expect("second", "Pending OutOfcpu", false)
		m.pass(time.Second)
		m.expect("first", "gone", false)
		m.expect("second", "Running", true)
		if got := m.stands("second"); got != "Running" {
			t.Errorf("the old reason stayed: %q", got)
		}
	})
}

// TestP7_RefusedStartsWhenItAsksForLess: an edit that lowers its own requests admits it.
//
// Shows: P7
func TestP7_RefusedStartsWhenItAsksForLess(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		m.src.set(mkpod("web", cpu("3")))
		m.arrive()
		m.pass(time.Hour)
		m.expect("web", "Pending OutOfcpu", false)
		m.src.set(mkpod("web", cpu("2")))
		m.settle()
		m.expect("web", "Running", true)
	})
}

// TestP7_RefusedStartsOnceTheNodeIsRight: the next agent knows the labels that the first one
// did not.
//
// Shows: P7, C-1.31
func TestP7_RefusedStartsOnceTheNodeIsRight(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }))
		m.arrive()
		m.pass(time.Minute)
		m.expect("web", "Pending NodeAffinity Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector", false)
		m.leave()
		node := cores("2")
		node.Labels = map[string]string{"disk": "ssd"}
		m.on(node)
		m.arrive()
		m.pass(time.Second)
		m.expect("web", "Running", true)
	})
}

// TestC_1_31_5_RunningPodsStayAdmitted: an agent on a node with less room than before
// touches no running pod (P8), and admits no more.
//
// Shows: C-1.31.5
func TestC_1_31_5_RunningPodsStayAdmitted(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("4"))
		m.src.set(mkpod("a", cpu("2")), mkpod("b", cpu("2")))
		m.arrive()
		m.pass(time.Second)
		m.leave()
		small := cores("1")
		small.MaxPods = 1
		m.on(small)
		m.src.set(mkpod("a", cpu("2")), mkpod("b", cpu("2")), mkpod("c"))
		m.rt.Reset()
		m.arrive()
		m.pass(time.Minute)
		transcript(t, m, ``)
		m.expect("a", "Running", true)
		m.expect("c", "Pending OutOfpods Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 1", false)
		// An edited pod stays admitted as well.
		m.src.set(mkpod("a", cpu("2"), image("app:2")), mkpod("b", cpu("2")), mkpod("c"))
		m.pass(time.Minute)
		m.expect("a", "Running", true)
	})
}

// TestC_1_15_1_RefusedPodOfAServerHasFailed: its controller replaces it, so it does not start
// when there is room, not after an edit either. It holds no room.
//
// Shows: C-1.15.1
func TestC_1_15_1_RefusedPodOfAServerHasFailed(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		m.src.name = "api:/k"
		labelled := func(p *v1.Pod) { p.Labels = map[string]string{"seen": "yes"} }
		first, second, third := of("api", "/k", mkpod("first", cpu("2"))), of("api", "/k", mkpod("second", cpu("1"))), of("api", "/k", mkpod("third", cpu("2")))
		m.src.set(first)
		m.arrive()
		m.src.set(first, second)
		m.pass(time.Second)
		m.expect("second", "Failed OutOfcpu", false)
		m.src.set(second)
		m.pass(time.Hour)
		m.expect("first", "gone", false)
		m.expect("second", "Failed OutOfcpu", false)
		m.src.set(of("api", "/k", mkpod("second", cpu("1"), labelled)), third)
		m.pass(time.Minute)
		m.expect("third", "Running", true)
		m.expect("second", "Failed OutOfcpu", false)
		m.src.set(of("api", "/k", mkpod("second", cpu("1"), labelled)))
		m.pass(time.Minute)
		m.leave()
		m.arrive() // there is room now, and the next agent knows that the pod has failed
		m.pass(time.Minute)
		m.expect("second", "Failed OutOfcpu", false)
		m.src.set(of("api", "/k", mkpod("second", cpu("1"), labelled)), third)
		m.pass(time.Minute)
		m.src.set(third)
		m.pass(time.Minute)
		m.expect("second", "gone", false)
	})
}

// TestC_1_31_3_LabelsThatAreNotKnownYet: an agent may get a pod before it gets the labels and
// taints of its node. It does not fail the pod for these.
//
// Shows: C-1.31.3
func TestC_1_31_3_LabelsThatAreNotKnownYet(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		var seen atomic.Bool
		taint := v1.Taint{Key: "starting", Effect: v1.TaintEffectNoExecute}
		m.alter = func(c *Config) {
			c.Node = cores("2")
			c.Node.Taints = []v1.Taint{taint}
			c.NodeSeen = func() (map[string]string, []v1.Taint, bool) {
				if !seen.Load() {
					return nil, nil, false
				}
				return map[string]string{"disk": "ssd"}, nil, true
			}
		}
		tolerant := func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} }
		selects := func(value string) func(*v1.Pod) {
			return func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": value} }
		}
		m.src.name = "api:/k"
		m.src.set(
			of("api", "/k", mkpod("good", tolerant, selects("ssd"))), of("api", "/k", mkpod("bad", tolerant, selects("hdd"))),
			of("api", "/k", mkpod("plain")), of("api", "/k", mkpod("large", tolerant, cpu("3"))),
		)
		m.arrive()
		m.pass(5 * time.Second)
		m.expect("large", "Failed OutOfcpu", false)
		for _, name := range []string{"good", "bad", "plain"} {
			if got := m.stands(name); strings.HasPrefix(got, "Failed") {
				t.Errorf("%s is %s before the node is known", name, got)
			}
		}
		seen.Store(true)
		m.pass(5 * time.Second)
		m.expect("good", "Running", true)
		m.expect("plain", "Running", true)
		m.expect("bad", "Failed NodeAffinity", false)
	})
}
