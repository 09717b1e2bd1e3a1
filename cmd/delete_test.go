package cmd

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWhatHasEnded: a pod has ended when all its containers of before are gone, whatever
// their state was; the containers of the next instance do not count.
func TestWhatHasEnded(t *testing.T) {
	t.Parallel()
	of := func(app v1.ContainerStatus) *v1.Pod {
		return inState("", endedWith("p", 0), app, endedWith("s", 0))
	}
	stranger := of(running("a", true))
	stranger.UID = "v"
	failed := waitingFor("a", "PostStartHookError") // and ended
	failed.LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 143, ContainerID: "a"}
	again := running("a", true)
	again.LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 1, ContainerID: "z"}
	debug := func(s v1.ContainerStatus) *v1.Pod {
		it := of(endedWith("a", 0))
		it.Status.EphemeralContainerStatuses = []v1.ContainerStatus{s}
		return it
	}
	for what, c := range map[string]struct {
		before, now *v1.Pod
		want        bool
	}{
		"it runs":                       {of(running("a", true)), of(running("a", true)), false},
		"it runs, not for the first":    {of(again), of(again), false},
		"it has ended":                  {of(running("a", true)), of(endedWith("a", 143)), true},
		"the next one runs":             {of(running("a", true)), of(running("b", true)), true},
		"the next one waits":            {of(running("a", true)), of(waitingFor("", "ContainerCreating")), true},
		"in its hook":                   {of(waitingFor("a", "ContainerCreating")), of(waitingFor("a", "ContainerCreating")), false},
		"its hook is over":              {of(waitingFor("a", "ContainerCreating")), of(running("a", true)), false},
		"in its hook, and ended":        {of(waitingFor("a", "ContainerCreating")), of(endedWith("a", 143)), true},
		"its hook failed, and it runs":  {of(waitingFor("a", "PostStartHookError")), of(waitingFor("a", "PostStartHookError")), false},
		"its hook failed, and it ended": {of(failed), of(failed), true},
		"made, and not started":         {of(waitingFor("a", "")), of(waitingFor("a", "")), false},
		"started meanwhile":             {of(waitingFor("a", "")), of(running("a", false)), false},
		"in back-off":                   {of(crashing("a")), of(crashing("a")), true},
		"never made":                    {of(waitingFor("", "ErrImagePull")), of(waitingFor("", "ErrImagePull")), true},
		"an ephemeral one runs":         {debug(running("e", false)), debug(running("e", false)), false},
		"an ephemeral one has ended":    {debug(running("e", false)), debug(endedWith("e", 0)), true},
		"the pod is gone":               {of(running("a", true)), nil, true},
		"another has its name":          {of(running("a", true)), stranger, true},
	} {
		if got := hasEnded(c.before, c.now, time.Now()); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	sidecar := inState("", running("p", true), endedWith("a", 0), endedWith("s", 0))
	if hasEnded(sidecar, sidecar, time.Now()) {
		t.Error("a sidecar runs")
	}
	start := time.Unix(1e9, 0)
	in := func(start time.Time, sandbox v1.ConditionStatus, app v1.ContainerStatus) *v1.Pod {
		it := of(app)
		it.Status.StartTime = new(metav1.NewTime(start))
		it.Status.Conditions = []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: sandbox}}
		return it
	}
	const up, down = v1.ConditionTrue, v1.ConditionFalse
	creating := waitingFor("", "ContainerCreating")
	for what, c := range map[string]struct {
		before, now *v1.Pod
		after       time.Duration
		want        bool
	}{
		"nobody says whether it runs":       {in(start, up, creating), in(start, up, creating), time.Second, false},
		"another life since":                {in(start, up, crashing("a")), in(start, up, running("b", true)), time.Second, false},
		"its sandbox is gone":               {in(start, up, creating), in(start, down, creating), time.Second, true},
		"its sandbox is gone, it is not":    {in(start, up, running("a", true)), in(start, down, running("a", true)), time.Second, false},
		"another instance":                  {in(start, up, creating), in(start.Add(time.Second), up, creating), time.Second, true},
		"there was no sandbox":              {in(start, down, creating), in(start, up, creating), time.Second, true},
		"as old as the second":              {in(start, up, creating), in(start, up, creating), time.Second - 1, true},
		"as old as the second, and it runs": {in(start, up, running("a", true)), in(start, up, running("a", true)), time.Second - 1, false},
	} {
		if got := hasEnded(c.before, c.now, start.Add(c.after)); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
