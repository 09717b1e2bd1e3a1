package engine

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

const lowMemory = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "

// evict evicts the pod web.
func (m *machine) evict(condition v1.NodeConditionType) error {
	return m.asked(func(ctx context.Context) error {
		return m.agent.engine.Evict(ctx, webKey, Eviction{UID: "uid-web", Grace: 1, Message: lowMemory, Condition: condition})
	})
}

// conditionOf returns the condition of a type, nil for none.
func conditionOf(st *v1.PodStatus, kind v1.PodConditionType) *v1.PodCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == kind {
			return &st.Conditions[i]
		}
	}
	return nil
}

func (m *machine) under(now ...v1.NodeConditionType) {
	m.agent.engine.SetPressure(m.t.Context(), now)
	m.settle()
}

// TestEvict_WithACause_AnnotatesTheEvent: tools read the starved resource and the containers that
// exceed their requests from the event. An eviction without a cause has no annotations.
//
// Shows: C-1.35.7
func TestEvict_WithACause_AnnotatesTheEvent(t *testing.T) {
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.src.set(mkpod("web"), mkpod("db"))
		m.arrive()
		m.pass(time.Second)
		for key, cause := range map[pod.Key]pod.EvictionCause{webKey: {Resource: "memory", Containers: "app,b", Usage: "1Gi,2Gi", Pod: "web", PodUsage: "3Gi"}, {Namespace: "default", Name: "db"}: {}} {
			if err := m.asked(func(ctx context.Context) error {
				return m.agent.engine.Evict(ctx, key, Eviction{UID: "uid-" + key.Name, Grace: 1, Message: lowMemory, Cause: cause})
			}); err != nil {
				t.Fatal(err)
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		evicted := 0
		for _, e := range c.all {
			if e.Reason != "Evicted" {
				continue
			}
			evicted++
			want := map[string]string(nil)
			if e.Key == webKey {
				want = map[string]string{
					"starved_resource": "memory", "offending_containers": "app,b", "offending_containers_usage": "1Gi,2Gi",
					"offending_pod": "web", "offending_pod_usage": "3Gi",
				}
			}
			if !maps.Equal(e.Annotations, want) || e.Message != strings.TrimSpace(lowMemory) {
				t.Errorf("%s: %q, %q", e.Key, e.Annotations, e.Message)
			}
		}
		if evicted != 2 {
			t.Errorf("%d events of evictions", evicted)
		}
	})
}

// An evicted pod has Failed, also for the next agent, and its containers get the grace of the
// eviction. A static pod starts again once the pressure has ended and its back-off is over; the
// back-off doubles.
//
// Shows: C-1.35.7
func TestEvict_ForPressure_StartsAgainAfterIt(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"), mkpod("db"))
		m.arrive()
		m.pass(time.Second)
		m.under(v1.NodeMemoryPressure)
		if err := m.evict(v1.NodeMemoryPressure); err != nil {
			t.Fatal(err)
		}
		m.die() // the record has the eviction before the call returns
		m.arrive()
		m.under(v1.NodeMemoryPressure)
		m.pass(5 * time.Minute)
		st := m.disk.last(webKey).pod.Status
		if st.Phase != v1.PodFailed || st.Reason != "Evicted" || st.Message != lowMemory || strings.Contains(m.rt.State(), "web/app attempt=0 running") {
			t.Errorf("%s %s %q:\n%s", st.Phase, st.Reason, st.Message, m.rt.State())
		}
		if end := st.ContainerStatuses[0].State.Terminated; end == nil || strings.Contains(m.rt.State(), "web/app") {
			t.Errorf("the status has no end, or the node still has the container: %+v\n%s", st.ContainerStatuses, m.rt.State())
		}
		if c := conditionOf(&st, v1.DisruptionTarget); c == nil || c.Status != v1.ConditionTrue || c.Reason != v1.PodReasonTerminationByKubelet || c.Message != lowMemory {
			t.Errorf("condition %+v", c)
		}
		if err, refused := errors.AsType[*RefusedError](m.evict(v1.NodeMemoryPressure)); !refused {
			t.Errorf("evicted twice: %v", err)
		}
		for i, backoff := range []time.Duration{evictionBackoff, 2 * evictionBackoff} {
			m.under()
			m.pass(backoff - time.Second)
			if m.phase("web") != "Failed" || m.instance() != i+1 {
				t.Errorf("eviction %d: before its back-off ends: %s, instance %d", i+1, m.phase("web"), m.instance())
			}
			m.pass(housekeepingPeriod + 2*time.Second)
			if m.phase("web") != "Running" || m.instance() != i+2 {
				t.Errorf("eviction %d: after its back-off: %s, instance %d", i+1, m.phase("web"), m.instance())
			}
			if st := m.disk.last(webKey).pod.Status; conditionOf(&st, v1.DisruptionTarget) != nil {
				t.Errorf("the next instance still has the condition %s", v1.DisruptionTarget)
			}
			m.under(v1.NodeMemoryPressure)
			if err := m.evict(v1.NodeMemoryPressure); err != nil {
				t.Fatal(err)
			}
			m.pass(time.Minute)
		}
		if m.phase("db") != "Running" {
			t.Errorf("the other pod is %s", m.phase("db"))
		}
	})
}

// An eviction whose caller has left is not carried out later: the caller may have chosen another
// pod.
//
// Shows: C-1.35.5
func TestEvict_CallerHasLeft_IsNotCarriedOut(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		answers := m.rt.Fault(critest.Fault{Method: "ListPodSandbox", Pod: webKey, Hang: true})
		m.rt.Exit(webKey, "app", 1) // its worker reads the pod, and hangs
		m.pass(time.Second)
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, stop)
		if err := m.agent.engine.Evict(ctx, webKey, Eviction{UID: "uid-web", Message: lowMemory, Condition: v1.NodeMemoryPressure}); err == nil {
			t.Error("the eviction was recorded although the worker hangs")
		}
		m.pass(time.Second)
		answers()
		m.pass(time.Minute)
		if m.phase("web") != "Running" {
			t.Errorf("after the hang the pod is %s", m.phase("web"))
		}
	})
}

// A worker has begun an eviction, and it writes the record for longer than the caller waits: the
// eviction counts, so that the caller evicts no other pod.
//
// Shows: C-1.35.5
func TestEvict_RecordIsWrittenSlowly_Counts(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		m.disk.takes(11 * time.Second)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		began := time.Now()
		if err := m.agent.engine.Evict(ctx, webKey, Eviction{UID: "uid-web", Message: lowMemory, Condition: v1.NodeMemoryPressure}); err != nil || time.Since(began) != 10*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		m.disk.takes(0)
		m.pass(time.Minute)
		if m.phase("web") != "Failed" {
			t.Errorf("the pod is %s", m.phase("web"))
		}
	})
}

// The agent dies when an evicted pod is to start again and cannot yet. The next agent has
// admission judge it, as any pod that starts, and can evict it.
//
// Shows: C-1.35.7, C-1.31.5
func TestEvict_AgentDiesBeforeItStartsAgain_AdmissionJudgesIt(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web"), mkpod("db"))
		m.pass(time.Second)
		m.under(v1.NodeMemoryPressure)
		if err := m.evict(v1.NodeMemoryPressure); err != nil {
			t.Fatal(err)
		}
		m.pass(time.Minute)
		m.rt.SetReady(true, false, "no network")
		m.pass(time.Minute)
		m.under()
		m.pass(time.Minute)
		m.alter = func(c *Config) { c.Node.MaxPods = 1 }
		m.again()
		m.rt.SetReady(true, true, "")
		m.pass(time.Minute)
		if m.phase("web") == "Running" {
			t.Error("it runs although the node has its most pods")
		}
		m.src.set(mkpod("web"))
		m.pass(time.Minute)
		if m.phase("web") != "Running" {
			t.Errorf("with room for it, it is %s", m.phase("web"))
		}
		m.under(v1.NodeMemoryPressure)
		if err := m.evict(v1.NodeMemoryPressure); err != nil {
			t.Errorf("it cannot be evicted again: %v", err)
		}
	})
}

// A pod that exceeds a limit of its own stays Failed when the node's pressure begins or ends. A pod
// of another UID is not evicted.
//
// Shows: C-1.35.9
func TestEvict_ForItsOwnLimit_StaysFailed(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		err := m.asked(func(ctx context.Context) error {
			return m.agent.engine.Evict(ctx, webKey, Eviction{UID: "another", Message: lowMemory})
		})
		if _, refused := errors.AsType[*RefusedError](err); !refused || m.phase("web") != "Running" {
			t.Errorf("another UID: %v, %s", err, m.phase("web"))
		}
		m.under(v1.NodeMemoryPressure)
		if err := m.evict(""); err != nil {
			t.Fatal(err)
		}
		m.pass(time.Minute)
		m.under()
		m.pass(time.Hour)
		if m.phase("web") != "Failed" || m.instance() != 1 {
			t.Errorf("%s, instance %d", m.phase("web"), m.instance())
		}
	})
}

// Under pressure admission refuses new pods until the pressure has ended: those without requests
// and limits under MemoryPressure, all but critical ones under DiskPressure. An edit of a pod
// that runs is admitted.
//
// Shows: C-1.31
func TestSetPressure_NewPodsWaitUntilItHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		critical := int32(pod.PriorityClusterCritical)
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		m.under(v1.NodeMemoryPressure)
		later := []*pod.Spec{
			mkpod("plain"),
			mkpod("asks", func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Mi")}
			}),
			mkpod("critical", func(p *v1.Pod) { p.Spec.Priority = &critical }),
		}
		m.src.set(append(later, mkpod("web", image("app:2")))...)
		m.pass(time.Minute)
		for name, phase := range map[string]string{"plain": "Pending", "asks": "Running", "critical": "Running", "web": "Running"} {
			if m.phase(name) != phase {
				t.Errorf("pod %s is %s, want %s", name, m.phase(name), phase)
			}
		}
		if img := m.disk.last(webKey).pod.Status.ContainerStatuses[0].Image; !strings.Contains(img, "app:2") {
			t.Errorf("the edited pod runs image %s", img)
		}
		st := m.disk.last(pod.Key{Namespace: "default", Name: "plain"}).pod.Status
		if want := "The node had condition: [MemoryPressure]. "; st.Reason != "Evicted" || st.Message != want {
			t.Errorf("%s %q, want Evicted %q", st.Reason, st.Message, want)
		}
		m.under()
		m.pass(time.Second)
		if m.phase("plain") != "Running" {
			t.Errorf("after the pressure the pod is %s", m.phase("plain"))
		}
	})
}

// A pod that was not measured for its containers' limits in one round is in a later one, within
// a minute.
//
// Shows: C-1.35.9
func TestMeasure_ContainerLimit_GetsTheLayers(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		const message = `Container app exceeded its local ephemeral storage limit "1Mi". `
		reads := 0
		m.alter = func(c *Config) {
			c.Layers = func(context.Context) (map[string]map[string]int64, error) {
				reads++
				return map[string]map[string]int64{"uid-web": {"app": 2 << 20}}, nil
			}
		}
		m.disk.overLayers = func(layers map[string]int64) string {
			if layers["app"] > 1<<20 {
				return message
			}
			return ""
		}
		m.arrive()
		m.src.set(mkpod("db"))
		m.pass(2 * time.Minute)
		if reads != 0 {
			t.Errorf("%d readings of layers without a pod that has a limit", reads)
		}
		m.src.set(mkpod("db"), mkpod("web", func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
		}))
		m.pass(time.Minute)
		st := m.disk.last(webKey).pod.Status
		if st.Phase != v1.PodFailed || st.Reason != "Evicted" || st.Message != message {
			t.Errorf("%s %s %q", st.Phase, st.Reason, st.Message)
		}
		if conditionOf(&st, v1.DisruptionTarget) != nil {
			t.Error("a limit of its own is shown as a disruption")
		}
		had := reads
		m.pass(10 * time.Minute)
		if reads != had || m.phase("db") != "Running" {
			t.Errorf("%d more readings; pod db is %s", reads-had, m.phase("db"))
		}
	})
}
