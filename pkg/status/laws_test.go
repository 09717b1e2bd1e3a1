package status_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// TestI4_C_1_26_Laws reports one instance over whatever its runtime may show:
// restart counts never fall, a final phase stays, startTime stays, a condition's
// time changes exactly when its status does, and every container has one state.
func TestI4_C_1_26_Laws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want, err := plantest.Spec([]byte("metadata: {name: p}\nspec:\n  restartPolicy: " +
			rapid.SampledFrom([]string{"Always", "OnFailure", "Never"}).Draw(t, "policy") +
			"\n  initContainers: [{name: init, image: i}]\n  containers: [{name: a, image: a}, {name: b, image: b}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		now := plantest.Now
		notes := status.Notes{StartTime: now, Instance: 1}
		var before v1.PodStatus
		for range rapid.IntRange(1, 12).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "passes")) * time.Second)
			have := drawActual(t, want, now)
			notes.Backoff, notes.Trouble = nil, nil
			if rapid.Bool().Draw(t, "inBackoff") {
				notes.Backoff = map[string]status.Backoff{"a": {Delay: time.Second, Until: now.Add(time.Second)}}
			}
			if rapid.Bool().Draw(t, "inTrouble") {
				notes.Trouble = map[string]pod.Trouble{"b": {Reason: "ErrImagePull", Count: 1}}
			}
			st := status.Of(want, have, pod.Health{}, before, notes, now)
			if why := breach(before, st, now); why != "" {
				t.Fatalf("%s\nbefore %+v\nafter %+v", why, before, st)
			}
			before = st
		}
	})
}

// drawActual draws any runtime, also one that lost records.
func drawActual(t *rapid.T, want *pod.Spec, now time.Time) pod.Actual {
	have := pod.Actual{Key: want.Key, UID: want.UID(), Containers: map[string]pod.Container{}}
	if !rapid.Bool().Draw(t, "sandbox") {
		return have
	}
	have.Sandbox = &pod.Sandbox{ID: "s", Instance: 1, Ready: rapid.Bool().Draw(t, "ready")}
	for _, name := range []string{"init", "a", "b"} {
		if !rapid.Bool().Draw(t, name) {
			continue
		}
		n := rapid.IntRange(0, 3).Draw(t, name+"Restarts")
		have.Containers[name] = pod.Container{
			ID: fmt.Sprintf("%s%d", name, n), Name: name, SandboxID: "s", Restarts: n,
			State:     pod.ContainerState(rapid.IntRange(0, 3).Draw(t, name+"State")),
			ExitCode:  int32(rapid.IntRange(0, 1).Draw(t, name+"Exit")),
			StartedAt: now.Add(-time.Minute),
		}
	}
	return have
}

// breach names the law that after broke; "" when it broke none.
func breach(before, after v1.PodStatus, now time.Time) string {
	counts := map[string]int32{}
	for _, c := range append(before.InitContainerStatuses, before.ContainerStatuses...) {
		counts[c.Name] = c.RestartCount
	}
	for _, c := range append(after.InitContainerStatuses, after.ContainerStatuses...) {
		states := 0
		for _, set := range []bool{c.State.Waiting != nil, c.State.Running != nil, c.State.Terminated != nil} {
			if set {
				states++
			}
		}
		switch {
		case c.RestartCount < counts[c.Name]:
			return fmt.Sprintf("%s: restart count fell from %d to %d", c.Name, counts[c.Name], c.RestartCount)
		case states != 1:
			return fmt.Sprintf("%s has %d states", c.Name, states)
		}
	}
	if (before.Phase == v1.PodSucceeded || before.Phase == v1.PodFailed) && after.Phase != before.Phase {
		return "final phase changed"
	}
	if before.StartTime != nil && !before.StartTime.Equal(after.StartTime) {
		return "start time changed"
	}
	for _, old := range before.Conditions {
		for _, c := range after.Conditions {
			if c.Type != old.Type {
				continue
			}
			changed := c.Status != old.Status
			if !changed && !c.LastTransitionTime.Equal(&old.LastTransitionTime) || changed && !c.LastTransitionTime.Time.Equal(now) {
				return fmt.Sprintf("%s: transition time %s", c.Type, c.LastTransitionTime)
			}
		}
	}
	return ""
}
