package client

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Statuses of a container.
func running(id string, ready bool) v1.ContainerStatus {
	return v1.ContainerStatus{ContainerID: id, Ready: ready, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
}

func waitingFor(id, reason string) v1.ContainerStatus {
	return v1.ContainerStatus{ContainerID: id, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}
}

func endedWith(id string, code int32) v1.ContainerStatus {
	return v1.ContainerStatus{ContainerID: id, State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, ContainerID: id}}}
}

// crashing is a container that waits for its restart: its ID is the last one's.
func crashing(id string) v1.ContainerStatus {
	s := waitingFor(id, "CrashLoopBackOff")
	s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 1, ContainerID: id}
	return s
}

// inState is a pod with a sidecar, an init container that has exited, and two containers.
func inState(policy v1.RestartPolicy, proxy, app, side v1.ContainerStatus) *v1.Pod {
	it := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "u"}}
	it.Spec.RestartPolicy = policy
	it.Spec.InitContainers = []v1.Container{{Name: "init"}, {Name: "proxy", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	it.Spec.Containers = []v1.Container{{Name: "app"}, {Name: "side"}}
	it.Status.Phase = v1.PodRunning
	init := endedWith("i", 0)
	init.Name, proxy.Name, app.Name, side.Name = "init", "proxy", "app", "side"
	it.Status.InitContainerStatuses = []v1.ContainerStatus{init, proxy}
	it.Status.ContainerStatuses = []v1.ContainerStatus{app, side}
	return &it
}

// TestWhatIsRestarted: a restart is done when each named container is a new one and ready.
func TestWhatIsRestarted(t *testing.T) {
	t.Parallel()
	up := func(id string) v1.ContainerStatus { return running(id, true) }
	stranger := inState("", up("p"), up("x"), up("s"))
	stranger.UID = "v"
	over := func(it *v1.Pod, phase v1.PodPhase) *v1.Pod { it.Status.Phase = phase; return it }
	without := inState("", up("p"), up("x"), up("s"))
	without.Spec.Containers = without.Spec.Containers[1:]
	unsaid := inState("", up("p"), up("x"), up("s"))
	unsaid.Status.ContainerStatuses = nil
	of := func(app v1.ContainerStatus) *v1.Pod { return inState(v1.RestartPolicyAlways, up("p"), app, up("s")) }
	once := func(app v1.ContainerStatus) *v1.Pod { return inState(v1.RestartPolicyNever, up("p"), app, up("s")) }
	failing := func(app v1.ContainerStatus) *v1.Pod {
		return inState(v1.RestartPolicyOnFailure, up("p"), app, up("s"))
	}
	app := []string{"app"}
	for what, c := range map[string]struct {
		before, now *v1.Pod
		names       []string
		want        bool
		err         string
	}{
		"nothing happened":             {of(up("a")), of(up("a")), app, false, ""},
		"it waits, and was running":    {of(up("a")), of(waitingFor("a", "ContainerCreating")), app, false, ""},
		"it has ended":                 {of(up("a")), of(endedWith("a", 143)), app, false, ""},
		"it has ended, and runs once":  {once(up("a")), once(endedWith("a", 0)), app, false, ""},
		"it is not ready":              {of(up("a")), of(running("b", false)), app, false, ""},
		"it is ready":                  {of(up("a")), of(up("b")), app, true, ""},
		"its hook is under way":        {of(up("a")), of(waitingFor("b", "ContainerCreating")), app, false, ""},
		"in back-off":                  {of(crashing("a")), of(crashing("a")), app, false, ""},
		"its end, without back-off":    {of(crashing("a")), of(endedWith("a", 1)), app, false, ""},
		"in back-off again":            {of(crashing("a")), of(crashing("b")), app, false, ""},
		"ended again":                  {of(crashing("a")), of(endedWith("b", 1)), app, false, ""},
		"back-off is over":             {of(crashing("a")), of(up("b")), app, true, ""},
		"never made":                   {of(waitingFor("", "ImagePullBackOff")), of(waitingFor("", "ImagePullBackOff")), app, false, ""},
		"made":                         {of(waitingFor("", "ImagePullBackOff")), of(up("b")), app, true, ""},
		"made before, and started":     {of(waitingFor("a", "")), of(up("a")), app, true, ""},
		"in its hook before, and now":  {of(waitingFor("a", "PodInitializing")), of(waitingFor("a", "PodInitializing")), app, false, ""},
		"the hook is over":             {of(waitingFor("a", "PodInitializing")), of(up("a")), app, false, ""},
		"another after the hook":       {of(waitingFor("a", "PodInitializing")), of(up("b")), app, true, ""},
		"terminated before":            {once(endedWith("a", 0)), once(endedWith("a", 0)), app, false, ""},
		"terminated, runs":             {once(endedWith("a", 0)), once(up("b")), app, true, ""},
		"terminated, again":            {once(endedWith("a", 1)), once(endedWith("b", 0)), app, true, ""},
		"terminated, badly":            {once(up("a")), once(endedWith("b", 3)), app, false, "container app of pod web was restarted, and has ended with 3"},
		"fails, and is started again":  {failing(up("a")), failing(endedWith("b", 3)), app, false, ""},
		"does not fail, and stays so":  {failing(up("a")), failing(endedWith("b", 0)), app, true, ""},
		"all, one is left":             {inState("", up("p"), up("a"), up("s")), inState("", up("q"), up("b"), up("s")), nil, false, ""},
		"all, the sidecar is left":     {inState("", up("p"), up("a"), up("s")), inState("", up("p"), up("b"), up("t")), nil, false, ""},
		"all, the sidecar not ready":   {inState("", up("p"), up("a"), up("s")), inState("", running("q", false), up("b"), up("t")), nil, false, ""},
		"all":                          {inState("", up("p"), up("a"), up("s")), inState("", up("q"), up("b"), up("t")), nil, true, ""},
		"the sidecar alone":            {inState("", up("p"), up("a"), up("s")), inState("", up("q"), up("a"), up("s")), []string{"proxy"}, true, ""},
		"all but the one that is done": {once(endedWith("a", 0)), inState(v1.RestartPolicyNever, up("q"), endedWith("a", 0), up("t")), nil, true, ""},
		"all but the one that crashes": {of(crashing("a")), inState("", up("q"), crashing("a"), up("t")), nil, true, ""},
		"all, one in its hook":         {of(waitingFor("a", "ContainerCreating")), inState("", up("q"), waitingFor("a", "ContainerCreating"), up("t")), nil, false, ""},
		"none ran yet": {inState("", waitingFor("", "ContainerCreating"), waitingFor("", "PodInitializing"), endedWith("s", 0)),
			inState("", waitingFor("", "ContainerCreating"), waitingFor("", "PodInitializing"), endedWith("s", 0)), nil, false, ""},
		"none ran yet, they do": {inState("", waitingFor("", "ContainerCreating"), waitingFor("", "PodInitializing"), endedWith("s", 0)),
			inState("", up("p"), up("a"), endedWith("s", 0)), nil, true, ""},
		"the pod is gone":        {of(up("a")), nil, app, false, "pod web is gone"},
		"another has its name":   {of(up("a")), stranger, app, false, "pod web is gone: another one has its name"},
		"the pod has ended":      {once(up("a")), over(once(endedWith("a", 0)), v1.PodSucceeded), app, false, "pod web has ended"},
		"ended after it ran":     {once(up("a")), over(once(endedWith("b", 0)), v1.PodSucceeded), app, true, ""},
		"refused, without words": {of(up("a")), over(unsaid, v1.PodFailed), app, false, "pod web has ended"},
		"the container is gone":  {of(up("a")), without, app, false, "pod web has no container app any more"},
	} {
		got, err := IsRestarted(c.before, c.now, c.names)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got != c.want || text != c.err {
			t.Errorf("%s: %v, %q, want %v, %q", what, got, text, c.want, c.err)
		}
	}
}

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
		if got := HasEnded(c.before, c.now, time.Now()); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	sidecar := inState("", running("p", true), endedWith("a", 0), endedWith("s", 0))
	if HasEnded(sidecar, sidecar, time.Now()) {
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
		"its state is unknown":              {in(start, up, creating), in(start, up, creating), time.Second, false},
		"another life since":                {in(start, up, crashing("a")), in(start, up, running("b", true)), time.Second, false},
		"its sandbox is gone":               {in(start, up, creating), in(start, down, creating), time.Second, true},
		"its sandbox is gone, it is not":    {in(start, up, running("a", true)), in(start, down, running("a", true)), time.Second, false},
		"another instance":                  {in(start, up, creating), in(start.Add(time.Second), up, creating), time.Second, true},
		"there was no sandbox":              {in(start, down, creating), in(start, up, creating), time.Second, true},
		"as old as the second":              {in(start, up, creating), in(start, up, creating), time.Second - 1, true},
		"as old as the second, and it runs": {in(start, up, running("a", true)), in(start, up, running("a", true)), time.Second - 1, false},
	} {
		if got := HasEnded(c.before, c.now, start.Add(c.after)); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
