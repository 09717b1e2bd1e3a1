package controller

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// TestForesee_NewVersion_ShowsTheWholeRollout: the steps have the agent's order, even if pods have
// to be ready for a time.
func TestForesee_NewVersion_ShowsTheWholeRollout(t *testing.T) {
	t.Parallel()
	deployment := func(image string) *pod.Object {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		labels := map[string]string{"app": "web"}
		d.Spec.Replicas, d.Spec.MinReadySeconds, d.Spec.Selector = ptr.To[int32](2), 30, &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1))}
		d.Spec.Template.Labels = labels
		d.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
		return &pod.Object{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}, Hash: image, Origin: pod.Origin{Source: "file", Location: "/m"}, Object: d}
	}
	c := New(Config{Node: node, Next: workload.Next})
	c.Expand([]*pod.Object{deployment("web:1")})
	if got := actions(c.Foresee()); got != "Deployment web: add, add" {
		t.Errorf("the first version: %s", got)
	}
	for _, p := range c.Workloads()[0].Pods {
		c.pods[p.Spec.Key][0].status = readyAt(c.since.Add(-60e9))
	}
	c.Expand([]*pod.Object{deployment("web:2")})
	if got := actions(c.Foresee()); got != "Deployment web: add, remove, add, remove" {
		t.Errorf("the second version: %s", got)
	}
}

// TestForesee_NeverAtRest_SaysThatItIsCut: a forecast ends, and does not look complete.
func TestForesee_NeverAtRest_SaysThatItIsCut(t *testing.T) {
	t.Parallel()
	rounds := 0
	c := New(Config{Node: node, Next: func(in workload.Input) workload.Decision {
		rounds++
		return workload.Decision{Steps: []workload.Step{{Action: workload.Add, Key: in.Object.Key}}}
	}})
	c.Expand([]*pod.Object{want("web", "a")})
	all := c.Foresee()
	if len(all) != 1 || len(all[0].Steps) != rounds || rounds != maxRounds+1 || !strings.Contains(all[0].Cut, "at most 1000 decisions") {
		t.Errorf("%d rollouts after %d rounds: %+v", len(all), rounds, all)
	}
}

// TestForesee_SurgePodNeedsHostPort_RolloutStops: the new pod never becomes ready, so the old one
// stays, and the reason names the remedy.
func TestForesee_SurgePodNeedsHostPort_RolloutStops(t *testing.T) {
	t.Parallel()
	deployment := func(image string, surge int32) *pod.Object {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		labels := map[string]string{"app": "web"}
		d.Spec.Selector, d.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(1 - surge)), MaxSurge: ptr.To(intstr.FromInt32(surge))}
		d.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: image, Ports: []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}}}
		return &pod.Object{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}, Hash: image, Origin: pod.Origin{Source: "file", Location: "/m"}, Object: d}
	}
	for surge, actionsOf := range map[int32]string{1: "Deployment web: add", 0: "Deployment web: remove, add"} {
		c := New(Config{Node: node, Next: workload.Next})
		c.Expand([]*pod.Object{deployment("web:1", surge)})
		if got := actions(c.Foresee()); got != "Deployment web: add" {
			t.Errorf("maxSurge %d, the first version: %s", surge, got)
		}
		for _, p := range c.Workloads()[0].Pods {
			c.pods[p.Spec.Key][0].status = readyAt(c.since.Add(-60e9))
		}
		c.Expand([]*pod.Object{deployment("web:2", surge)})
		all := c.Foresee()
		if got := actions(all); got != actionsOf {
			t.Errorf("maxSurge %d: %s, want %s", surge, got, actionsOf)
		}
		last := all[0].Steps[len(all[0].Steps)-1].Reason
		if strings.Contains(last, "host port 8080") != (surge == 1) {
			t.Errorf("maxSurge %d: %s", surge, last)
		}
	}
}

func actions(all []Rollout) string {
	var out []string
	for _, r := range all {
		var steps []string
		for _, s := range r.Steps {
			steps = append(steps, string(s.Action))
		}
		out = append(out, fmt.Sprintf("%s %s: %s", r.Object.Kind, r.Object.Name, strings.Join(steps, ", ")))
	}
	return strings.Join(out, "; ")
}
