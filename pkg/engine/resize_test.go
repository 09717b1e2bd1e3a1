package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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

// TestResize_PodAsAWhole_IsMadeOrReported: a container that follows a limit of its pod is
// resized with it. While the pod uses more than its new limit, its status has the error, and
// the resize is tried again.
//
// Shows: C-1.34.4, C-1.34.7
func TestResize_PodAsAWhole_IsMadeOrReported(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		g := &groups{memory: map[string]int64{}}
		m.alter = func(c *Config) { c.Cgroups = g }
		whole := func(memory string) func(*v1.Pod) {
			return func(p *v1.Pod) {
				p.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}}
			}
		}
		a := mkpod("a", whole("64Mi"))
		m.src.set(a)
		m.arrive()
		g.fail(errors.New("attempting to set pod memory limit below current usage"))
		m.src.set(resized(a, whole("32Mi")))
		m.pass(time.Minute)
		if got := resizeCondition(t, m, "a"); got != "PodResizeInProgress Error" {
			t.Errorf("condition %q", got)
		}
		g.fail(nil)
		m.pass(3 * time.Minute)
		if got := resizeCondition(t, m, "a"); got != "" {
			t.Errorf("condition %q after the pod uses less", got)
		}
		if updates, starts := m.rt.Calls()["UpdateContainerResources"], starts(m, "a"); updates != 1 || starts != 1 {
			t.Errorf("%d updates, %d starts", updates, starts)
		}
	})
}

// TestResize_FeatureIsOff_ChangesNothing: a resize of the pod as a whole is refused, and one of an
// init container waits until the container starts again. Neither touches a running container.
//
// Shows: C-1.34.2, C-1.34.7, C-1.34.8
func TestResize_FeatureIsOff_ChangesNothing(t *testing.T) {
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		alter := m.alter
		m.alter = func(cfg *Config) {
			alter(cfg)
			cfg.Node.Disabled = pod.Disabled{pod.FeaturePodResize, pod.FeatureInitResize}
		}
		memory := func(amount string) *v1.ResourceRequirements {
			return &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(amount)}}
		}
		a, b := mkpod("a", func(p *v1.Pod) { p.Spec.Resources = memory("64Mi") }), mkpod("b", initContainer("init:1"), func(p *v1.Pod) { p.Spec.InitContainers[0].Resources = *memory("64Mi") })
		m.src.set(a, b)
		m.arrive()
		m.pass(time.Second)
		c.lines()
		m.src.set(resized(a, func(p *v1.Pod) { p.Spec.Resources = memory("32Mi") }), resized(b, func(p *v1.Pod) { p.Spec.InitContainers[0].Resources = *memory("32Mi") }))
		m.pass(time.Minute)
		if a, b := resizeCondition(t, m, "a"), resizeCondition(t, m, "b"); a != "PodResizePending Infeasible" || b != "" {
			t.Errorf("conditions %q and %q", a, b)
		}
		if n := m.rt.Calls()["UpdateContainerResources"]; n != 0 {
			t.Errorf("%d updates", n)
		}
		if got := c.lines(); len(got) != 1 || !strings.HasPrefix(got[0], "Warning ResizeInfeasible  Pod resize Infeasible: ") || !strings.Contains(got[0], "InPlacePodLevelResourcesVerticalScaling is disabled") {
			t.Errorf("events: %q", got)
		}
	})
}
