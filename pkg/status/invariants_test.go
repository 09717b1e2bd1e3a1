package status_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podview"
	"github.com/nodectl/nodectl/pkg/status"
)

// everyKindOfContainer is the manifest of a pod with a container of every kind. Its restart
// policies and the action of its rule are drawn.
const everyKindOfContainer = `
metadata: {name: p}
spec:
  restartPolicy: %s
  initContainers:
  - {name: side, image: s, restartPolicy: Always, startupProbe: {exec: {command: [x]}}}
  - {name: init, image: i}
  containers:
  - {name: a, image: a, readinessProbe: {exec: {command: [x]}}}
  - name: b
    image: b
    restartPolicy: %s
    restartPolicyRules: [{action: %s, exitCodes: {operator: In, values: [1]}}]
    lifecycle: {postStart: {exec: {command: [x]}}}
  ephemeralContainers:
  - {name: e, image: e}
`

var names = []string{"side", "init", "a", "b", "e"}

// TestI4_C_1_26_Invariants reports one instance over random states of the runtime. Restart counts
// never fall, a final phase and startTime stay, a condition's time changes exactly when its
// status does. Every container has one state, and a ready one has started. Without a
// change, computing the status again gives the same status (C-1.27.2).
//
// Shows: I4, C-1.26
func TestI4_C_1_26_Invariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policies := rapid.SampledFrom([]string{"Always", "OnFailure", "Never"})
		want, err := plantest.Spec(fmt.Appendf(nil, everyKindOfContainer, policies.Draw(t, "policy"), policies.Draw(t, "own"),
			rapid.SampledFrom([]string{"Restart", "RestartAllContainers"}).Draw(t, "rule")))
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "api") {
			want.Origin.Source = pod.SourceAPI
		}
		now := plantest.Now
		notes := status.Notes{StartTime: now, Instance: 1}
		var before v1.PodStatus
		for range rapid.IntRange(1, 12).Draw(t, "computations") {
			now = now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			have := drawActual(t, want, now)
			health := drawNotes(t, &notes, have, now)
			st := status.Of(want, have, health, before, notes, now)
			if why := violation(before, st, now); why != "" {
				t.Fatalf("%s\nbefore %+v\nafter %+v", why, before, st)
			}
			if again := status.Of(want, have, health, st, notes, now); !equality.Semantic.DeepEqual(st, again) {
				t.Fatalf("computing the status again without changes gives another status:\n%s", cmp.Diff(st, again))
			}
			before = st
		}
	})
}

// TestI4_FinalOnlyWithPlan compares the status with the plan for the same pod. A pod that the
// plan continues is never reported as terminated, and a running container without a hook
// waits for none.
//
// Shows: I4
func TestI4_FinalOnlyWithPlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policies := rapid.SampledFrom([]string{"Always", "OnFailure", "Never"})
		want, err := plantest.Spec(fmt.Appendf(nil, everyKindOfContainer, policies.Draw(t, "policy"), policies.Draw(t, "own"),
			rapid.SampledFrom([]string{"Restart", "RestartAllContainers"}).Draw(t, "rule")))
		if err != nil {
			t.Fatal(err)
		}
		kept := want
		if rapid.Bool().Draw(t, "edited") { // the record has another definition of the pod
			if kept, err = plantest.Spec(fmt.Appendf(nil, strings.ReplaceAll(everyKindOfContainer, "image: b", "image: b0"), "Never", "Never", "Restart")); err != nil {
				t.Fatal(err)
			}
		}
		if rapid.Bool().Draw(t, "initNever") {
			never := v1.ContainerRestartPolicyNever
			want.Pod.Spec.InitContainers[1].RestartPolicy = &never
		}
		now := plantest.Now
		have := drawActual(t, want, now)
		notes := status.Notes{StartTime: now, Instance: 1, ContainerNotes: map[string]pod.ContainerNotes{}}
		health := pod.Health{Started: map[string]pod.ProbeStatus{}}
		ended := rapid.Bool().Draw(t, "ended")
		for _, name := range names {
			c, ok := have.Containers[name]
			switch {
			case ended && have.Sandbox != nil:
				c = pod.Container{ID: name, Name: name, SandboxID: "s", State: pod.StateExited, ExitCode: c.ExitCode}
			case !ok:
				continue
			}
			hash := want.ContainerHash(name)
			c.Hash = rapid.SampledFrom([]string{hash, podspec.HashVersion(hash) + "-old", "v0-old"}).Draw(t, name+"Hash")
			have.Containers[name] = c
			notes.ContainerNotes[c.ID] = pod.ContainerNotes{
				Killed:    rapid.SampledFrom([]string{"", "", string(pod.Liveness)}).Draw(t, name+"Killed"),
				PostStart: rapid.SampledFrom([]string{"", pod.HookDue}).Draw(t, name+"Hook"),
			}
			health.Started[name] = pod.ProbeStatus{ContainerID: c.ID, OK: true}
		}
		v := plan.View{Want: want, Have: have, Record: pod.Record{Want: kept, Instance: 1, ContainerNotes: notes.ContainerNotes, StartTime: now}, Health: health, Now: now}
		st := status.Of(want, have, health, v1.PodStatus{}, notes, now)
		final := st.Phase == v1.PodSucceeded || st.Phase == v1.PodFailed
		if outcome := plan.Next(v).End.Phase; final && outcome != string(st.Phase) {
			t.Fatalf("the status says %s, plan says %q and goes on with %v\n%+v", st.Phase, outcome, plan.Next(v).Steps, st)
		}
		for _, c := range st.ContainerStatuses {
			if c.Name != "b" && have.Containers[c.Name].State == pod.StateRunning && c.State.Running == nil {
				t.Fatalf("%s runs and has no hook; the status says %+v", c.Name, c.State)
			}
		}
	})
}

// drawNotes draws random notes and probe statuses.
func drawNotes(t *rapid.T, notes *status.Notes, have pod.Actual, now time.Time) pod.Health {
	*notes = status.Notes{StartTime: notes.StartTime, Instance: 1, ContainerNotes: map[string]pod.ContainerNotes{}}
	if rapid.Bool().Draw(t, "inBackoff") {
		notes.Backoff = map[string]podview.Backoff{"a": {Delay: time.Second, Until: now.Add(time.Second)}}
	}
	if rapid.Bool().Draw(t, "inTrouble") {
		notes.Failures = map[string]pod.Failure{"b": {Reason: "ErrImagePull", Count: 1}}
	}
	if rapid.IntRange(0, 9).Draw(t, "terminal") == 0 {
		notes.Terminal, notes.TerminalReason = v1.PodFailed, "DeadlineExceeded"
	}
	if rapid.IntRange(0, 9).Draw(t, "notAdmitted") == 0 {
		notes.NotAdmittedReason, notes.NotAdmittedMessage, notes.Rejected = "NodePorts", "taken", rapid.Bool().Draw(t, "final")
	}
	notes.Terminating = rapid.IntRange(0, 9).Draw(t, "terminating") == 0
	health := pod.Health{Ready: map[string]pod.ProbeStatus{}, Started: map[string]pod.ProbeStatus{}}
	for _, name := range names {
		c, ok := have.Containers[name]
		if !ok {
			continue
		}
		notes.ContainerNotes[c.ID] = pod.ContainerNotes{PostStart: rapid.SampledFrom([]string{"", "", "", pod.HookDue, pod.HookFailed}).Draw(t, name+"Hook")}
		for _, statuses := range []map[string]pod.ProbeStatus{health.Ready, health.Started} {
			if rapid.Bool().Draw(t, name+"Status") {
				statuses[name] = pod.ProbeStatus{ContainerID: c.ID, OK: rapid.Bool().Draw(t, name+"OK")}
			}
		}
	}
	return health
}

// drawActual draws a random state of the runtime, also one that lost containers.
func drawActual(t *rapid.T, want *pod.Spec, now time.Time) pod.Actual {
	have := pod.Actual{Key: want.Key, UID: want.UID(), Containers: map[string]pod.Container{}}
	sandboxes := []string{"s", "s0"}
	if rapid.Bool().Draw(t, "sandbox") {
		have.Sandbox = &pod.Sandbox{ID: "s", Instance: 1, Attempt: 1, Ready: rapid.Bool().Draw(t, "ready")}
		have.Older = []pod.Sandbox{{ID: "s0", Instance: 1, Ready: rapid.IntRange(0, 9).Draw(t, "olderReady") == 0}}
	}
	for _, name := range names {
		if !rapid.Bool().Draw(t, name) {
			continue
		}
		n := rapid.IntRange(0, 3).Draw(t, name+"Restarts")
		have.Containers[name] = pod.Container{
			ID: fmt.Sprintf("%s%d", name, n), Name: name, SandboxID: rapid.SampledFrom(sandboxes).Draw(t, name+"Sandbox"), Restarts: n,
			State:     pod.ContainerState(rapid.IntRange(0, 3).Draw(t, name+"State")),
			ExitCode:  int32(rapid.IntRange(0, 1).Draw(t, name+"Exit")),
			StartedAt: now.Add(-time.Minute),
		}
	}
	return have
}

// violation names the invariant that after violates; "" for none.
func violation(before, after v1.PodStatus, now time.Time) string {
	counts := map[string]int32{}
	for _, c := range slices.Concat(before.InitContainerStatuses, before.ContainerStatuses, before.EphemeralContainerStatuses) {
		counts[c.Name] = c.RestartCount
	}
	for _, c := range slices.Concat(after.InitContainerStatuses, after.ContainerStatuses, after.EphemeralContainerStatuses) {
		states := 0
		for _, set := range []bool{c.State.Waiting != nil, c.State.Running != nil, c.State.Terminated != nil} {
			if set {
				states++
			}
		}
		started := c.Started != nil && *c.Started
		switch {
		case c.RestartCount < counts[c.Name]:
			return fmt.Sprintf("%s: restart count fell from %d to %d", c.Name, counts[c.Name], c.RestartCount)
		case states != 1:
			return fmt.Sprintf("%s has %d states", c.Name, states)
		case started && c.State.Running == nil:
			return fmt.Sprintf("%s has started and does not run", c.Name)
		case c.Ready && !started && c.Name != "init":
			return fmt.Sprintf("%s is ready and has not started", c.Name)
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
