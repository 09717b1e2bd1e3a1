package invariant

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	adapter "github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/node"
)

// box is a sandbox of a pod.
func box(pod, id string, ready bool) *cri.PodSandbox {
	state := cri.PodSandboxState_SANDBOX_NOTREADY
	if ready {
		state = cri.PodSandboxState_SANDBOX_READY
	}
	return &cri.PodSandbox{Id: id, State: state, Labels: map[string]string{labelPod: pod}}
}

// record is a CRI container of container main; a higher made is newer.
func record(pod, id, box string, made int64, state cri.ContainerState) *cri.Container {
	return &cri.Container{Id: id, PodSandboxId: box, CreatedAt: made, State: state,
		Metadata: &cri.ContainerMetadata{Name: "main"}, Labels: map[string]string{labelPod: pod}}
}

// says is the agent's report of web, whose container main is id.
func says(phase v1.PodPhase, id string, state v1.ContainerState) line {
	return line{Pod: &v1.Pod{Status: v1.PodStatus{Phase: phase,
		ContainerStatuses: []v1.ContainerStatus{{Name: "main", ContainerID: "containerd://" + id, State: state}}}}}
}

// Shows: I3
func TestI3_HowAPodIsNotAsItIsWanted(t *testing.T) {
	const created, running, exited = cri.ContainerState_CONTAINER_CREATED, cri.ContainerState_CONTAINER_RUNNING, cri.ContainerState_CONTAINER_EXITED
	runs, waits, ended := v1.ContainerState{Running: &v1.ContainerStateRunning{}}, func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}, v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	one := []*cri.PodSandbox{box("web", "b1", true)}
	life := func(state cri.ContainerState) []*cri.Container {
		return []*cri.Container{record("web", "c1", "b1", 1, state)}
	}
	gone := says(v1.PodRunning, "c1", runs)
	gone.Gone = true
	for name, c := range map[string]struct {
		policy v1.RestartPolicy // Always where it is ""
		boxes  []*cri.PodSandbox
		lives  []*cri.Container
		said   line
		want   string
	}{
		"it runs":                     {boxes: one, lives: life(running), said: says(v1.PodRunning, "c1", runs)},
		"after a life before":         {boxes: one, lives: append(life(exited), record("web", "c2", "b1", 2, running)), said: says(v1.PodRunning, "c2", runs)},
		"beside an old sandbox":       {boxes: append(one, box("web", "b0", false)), lives: life(running), said: says(v1.PodRunning, "c1", runs)},
		"beside another pod":          {boxes: append(one, box("db", "b2", true)), lives: append(life(running), record("db", "c2", "b2", 2, created)), said: says(v1.PodRunning, "c1", runs)},
		"it has succeeded":            {boxes: one, lives: life(exited), said: says(v1.PodSucceeded, "c1", ended)},
		"it has failed":               {boxes: one, lives: life(exited), said: says(v1.PodFailed, "c1", ended)},
		"it ran once":                 {policy: v1.RestartPolicyNever, boxes: one, lives: life(exited), said: says(v1.PodRunning, "c1", ended)},
		"it is in back-off":           {boxes: one, lives: life(exited), said: says(v1.PodRunning, "c1", waits("CrashLoopBackOff"))},
		"two sandboxes":               {boxes: append(one, box("web", "b2", true)), lives: life(running), said: says(v1.PodRunning, "c1", runs), want: "has two sandboxes"},
		"nothing is said":             {boxes: one, lives: life(running), want: "is not reported"},
		"it is said to be gone":       {boxes: one, lives: life(running), said: gone, want: "is not reported"},
		"no container":                {boxes: one, said: says(v1.PodRunning, "c1", runs), want: "container main is not there"},
		"another pod's container":     {boxes: one, lives: []*cri.Container{record("db", "c1", "b1", 1, running)}, said: says(v1.PodRunning, "c1", runs), want: "container main is not there"},
		"two ended records":           {boxes: one, lives: append(life(exited), record("web", "c0", "b1", 0, exited)), said: says(v1.PodRunning, "c1", waits("CrashLoopBackOff")), want: "has 2 ended records"},
		"an old life is said to run":  {boxes: one, lives: append(life(exited), record("web", "c2", "b1", 2, running)), said: says(v1.PodRunning, "c1", runs), want: "is reported as containerd://c1, is c2"},
		"in a sandbox that has ended": {boxes: []*cri.PodSandbox{box("web", "b1", false)}, lives: life(running), said: says(v1.PodRunning, "c1", runs), want: "runs in another sandbox"},
		"in the older sandbox":        {boxes: []*cri.PodSandbox{box("web", "b1", false), box("web", "b2", true)}, lives: life(running), said: says(v1.PodRunning, "c1", runs), want: "runs in another sandbox"},
		"it runs and is said to wait": {boxes: one, lives: life(running), said: says(v1.PodPending, "c1", waits("ContainerCreating")), want: "is not said to run"},
		"created and not started":     {boxes: one, lives: life(created), said: says(v1.PodPending, "c1", waits("ContainerCreating")), want: "is CONTAINER_CREATED"},
		"it has ended, said to run":   {boxes: one, lives: life(exited), said: says(v1.PodRunning, "c1", runs), want: "is said to run"},
		"it has ended and stays so":   {boxes: one, lives: life(exited), said: says(v1.PodRunning, "c1", ended), want: "has ended and is not in back-off"},
		"it waits for something else": {boxes: one, lives: life(exited), said: says(v1.PodRunning, "c1", waits("ImagePullBackOff")), want: "has ended and is not in back-off"},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: c.policy, Containers: []v1.Container{{Name: "main"}}}}
		got := shown{c.boxes, c.lives}.differs("web", p, c.said)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestI3_UnsettledUntilItIsAsWanted compares the runtime's list, the journal and the desired
// pods.
//
// Shows: I3
func TestI3_UnsettledUntilItIsAsWanted(t *testing.T) {
	rt := critest.New()
	client, _ := rt.Connect().Clients()
	s := Scope{Node: &node.Node{Runtime: client}, Name: "n1", History: &History{}, Root: t.TempDir()}
	expect := func(when, want string) {
		t.Helper()
		open, err := s.unsettled(t.Context())
		switch {
		case err != nil:
			t.Fatal(err)
		case want == "" && len(open) > 0, want != "" && (len(open) != 1 || !strings.Contains(open[0].String(), want)):
			t.Errorf("%s: %v, want %q", when, open, want)
		}
	}
	web := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "app:1"}}},
	}
	run := func(on string) string {
		r, spec := rt.CRI(adapter.Config{Node: on}), &pod.Spec{Key: pod.Key{Namespace: "default", Name: "web-" + on}, Pod: web.DeepCopy()}
		spec.Pod.Name, spec.Pod.UID = spec.Name, web.UID+"-"+web.UID
		id, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: spec, Instance: 1, Attempt: 0})
		if err != nil {
			t.Fatal(err)
		}
		c, err := r.CreateContainer(t.Context(), pod.CreateRequest{Want: spec, Container: "main", Sandbox: &pod.Sandbox{ID: id, Instance: 1}})
		if err == nil {
			err = r.StartContainer(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	expect("nothing is there and nothing wanted", "")
	run("n2")
	expect("another agent's", "")
	s.History.Want("web-n1", web)
	expect("nothing is there", "I3 broken")
	s.History.Break("web-n1")
	expect("its source is broken", "is not reported")
	id := run("n1")
	expect("nothing is said", "is not reported")
	said := says(v1.PodRunning, id, v1.ContainerState{Running: &v1.ContainerStateRunning{}})
	said.Pod.Name = "web-n1"
	text, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Root, "journal.jsonl"), append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("it runs and is said to", "")
	rt.Exit(pod.Key{Namespace: "default", Name: "web-n1"}, "main", 1)
	expect("it has ended", "is said to run")
	s.History.Away("web-n1")
	expect("it is not wanted any more", "is not wanted, and sandbox")
	if err := s.Settled(t.Context()); err == nil || !strings.Contains(err.Error(), "I3 broken") {
		t.Errorf("settled: %v", err)
	}
	s.History.Excuse("web-n1")
	expect("it is excused", "")
	rt.Crash()
	if _, err := s.unsettled(t.Context()); err == nil {
		t.Error("settled though the runtime does not answer")
	}
	if err := s.Settled(t.Context()); err == nil {
		t.Error("settled though the runtime does not answer")
	}
}
