package engine

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// resized returns spec with other resources, without restarting anything.
func resized(spec *pod.Spec, edit func(*v1.Pod)) *pod.Spec {
	now := *spec
	now.Pod = spec.Pod.DeepCopy()
	edit(now.Pod)
	now.Hash = sum(now.Pod)
	return &now
}

func resizeCondition(t *testing.T, m *machine, name string) string {
	t.Helper()
	for _, c := range m.disk.last(pod.Key{Namespace: "default", Name: name}).pod.Status.Conditions {
		if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			return string(c.Type) + " " + c.Reason
		}
	}
	return ""
}

// C-1.34.2, C-1.34.3: a resize that does not fit waits until other pods have left. One that
// never fits is reported so. Neither affects the running container.
//
// Shows: C-1.34.2
func TestC_1_34_2_ResizeThatDoesNotFitWaits(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("4"))
		a, b := mkpod("a", cpu("1")), mkpod("b", cpu("2"))
		m.src.set(a, b)
		m.arrive()
		more := resized(a, cpu("3"))
		m.src.set(more, b)
		m.pass(time.Minute)
		if got := resizeCondition(t, m, "a"); got != "PodResizePending Deferred" {
			t.Errorf("condition %q", got)
		}
		m.src.set(resized(a, cpu("5")), b)
		m.pass(time.Minute)
		if got := resizeCondition(t, m, "a"); got != "PodResizePending Infeasible" {
			t.Errorf("condition %q", got)
		}
		m.src.set(more)
		m.pass(time.Minute)
		if got := resizeCondition(t, m, "a"); got != "" {
			t.Errorf("condition %q after the other has left", got)
		}
		if n := m.rt.Calls()["UpdateContainerResources"]; n != 1 {
			t.Errorf("%d updates", n)
		}
		if n := starts(m, "a"); n != 1 {
			t.Errorf("%d starts", n)
		}
	})
}
