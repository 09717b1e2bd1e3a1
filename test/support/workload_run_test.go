//go:build linux

package support

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// workloadRun runs one workload on a node that exists only as the statuses of its pods.
type workloadRun struct {
	object *pod.Object
	state  workload.State
	pods   []workload.Pod
	since  map[*pod.Spec]time.Time // when a pod was made
	left   map[*pod.Spec]time.Time // when it left the set
	now    time.Time
	takes  time.Duration // how long a pod of a Job runs
	lines  []string      // the decisions that differ, with the pods
}

// stops is how long a pod takes to stop.
const stops = 3 * time.Second

// step makes one decision, as an agent that was started again makes it: the state is read from JSON.
func (r *workloadRun) step(t *testing.T) {
	t.Helper()
	r.pods = slices.DeleteFunc(r.pods, func(p workload.Pod) bool { return p.Leaving && r.now.Sub(r.left[p.Spec]) >= stops })
	for i, p := range r.pods {
		r.pods[i].Status = r.status(p.Spec)
	}
	text, err := json.Marshal(r.state)
	if err != nil {
		t.Fatal(err)
	}
	r.state = workload.State{}
	if err := json.Unmarshal(text, &r.state); err != nil {
		t.Fatal(err)
	}
	d := workload.Next(workload.Input{Object: r.object, Node: "n1", Pods: r.pods, State: r.state, Now: r.now})
	before := r.pods
	r.pods, r.state = nil, d.State
	for _, s := range d.Pods {
		if _, known := r.since[s]; !known {
			r.since[s] = r.now
		}
		r.pods = append(r.pods, workload.Pod{Spec: s})
	}
	for _, p := range before {
		if slices.ContainsFunc(d.Pods, func(s *pod.Spec) bool { return s.Key == p.Spec.Key }) {
			continue
		}
		if !p.Leaving {
			p.Leaving, r.left[p.Spec] = true, r.now
		}
		r.pods = append(r.pods, p)
	}
	slices.SortFunc(r.pods, func(a, b workload.Pod) int { return a.Spec.Key.Compare(b.Spec.Key) })
	r.note(t, d)
}

// note writes a decision and the pods, if they differ from those of the decision before.
func (r *workloadRun) note(t *testing.T, d workload.Decision) {
	t.Helper()
	var b strings.Builder
	for _, p := range r.pods {
		spec := &p.Spec.Pod.Spec
		fmt.Fprintf(&b, "%s %s %s.%s leaving %t; ", p.Spec.Name, spec.Containers[0].Image, spec.Hostname, spec.Subdomain, p.Leaving)
	}
	for _, e := range d.Events {
		b.WriteString(e.Reason + "; ")
	}
	text, err := json.Marshal([]any{d.Status, d.Claims, len(d.State.Revisions), d.Done})
	if err != nil {
		t.Fatal(err)
	}
	b.Write(text)
	if line := b.String(); len(r.lines) == 0 || r.lines[len(r.lines)-1] != line {
		r.lines = append(r.lines, line)
	}
}

// status returns the status that a node reports of a pod. The pod starts within two seconds and is
// ready then. A pod of a Job succeeds after a while. A pod with a bad image is never ready, or fails.
func (r *workloadRun) status(s *pod.Spec) *v1.PodStatus {
	made := r.since[s]
	start := metav1.NewTime(made)
	out := &v1.PodStatus{Phase: v1.PodPending, StartTime: &start}
	bad, age := strings.HasPrefix(s.Pod.Spec.Containers[0].Image, "bad"), r.now.Sub(made)
	condition := func(kind v1.PodConditionType, is bool, at time.Time) {
		status := map[bool]v1.ConditionStatus{true: v1.ConditionTrue, false: v1.ConditionFalse}[is]
		out.Conditions = append(out.Conditions, v1.PodCondition{Type: kind, Status: status, LastTransitionTime: metav1.NewTime(at)})
	}
	switch {
	case age < 2*time.Second:
	case s.Pod.Spec.RestartPolicy != v1.RestartPolicyAlways && age >= r.takes:
		out.Phase = v1.PodSucceeded
		for i, c := range s.Pod.Spec.Containers {
			ended := v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(made.Add(r.takes))}
			if bad && i == 0 {
				out.Phase, ended.ExitCode = v1.PodFailed, 3
			}
			out.ContainerStatuses = append(out.ContainerStatuses, v1.ContainerStatus{Name: c.Name, State: v1.ContainerState{Terminated: &ended}})
		}
		condition("Broken", bad, made.Add(r.takes))
	default:
		out.Phase = v1.PodRunning
		condition(v1.PodReady, !bad, made.Add(2*time.Second))
	}
	return out
}

// run returns the decisions about a workload of a case, and its pods.
func (c *workloadCase) run(t *testing.T, part string) string {
	t.Helper()
	start := time.Date(2026, 1, 5, 11, 59, 50, 0, time.UTC)
	r := &workloadRun{since: map[*pod.Spec]time.Time{}, left: map[*pod.Spec]time.Time{}, now: start, takes: 4 * time.Second}
	every, images := time.Second, map[int]string{0: "app:1", 20: "app:2", 60: "bad:3"}
	switch c.kind {
	case pod.KindJob:
		images = map[int]string{0: c.image}
	case pod.KindCronJob:
		every, images, r.takes = 10*time.Second, map[int]string{0: c.image}, c.takes
	}
	for i := range 130 {
		if image, is := images[i]; is {
			r.object = c.object(t, part, image)
		}
		r.step(t)
		r.now = r.now.Add(every)
		if c.jump > 0 && i == 30 {
			r.now = r.now.Add(c.jump)
		}
	}
	return strings.Join(r.lines, "\n")
}

// object reads the workload of a case with a part of its spec and an image.
func (c *workloadCase) object(t *testing.T, part, image string) *pod.Object {
	t.Helper()
	if image == "" {
		image = "app:1"
	}
	spec := "template: {spec: {containers: [{image: '" + image + "'}]}}"
	if c.kind == pod.KindCronJob {
		spec = "jobTemplate: {spec: {" + spec + "}}"
	}
	doc := merged(yamlOf("spec: {"+c.base+"}"), yamlOf("spec: {"+spec+"}"))
	file, notices := parseWorkload(t, c.kind, merged(doc, yamlOf("spec: {"+part+"}")))
	if len(file.Objects) != 1 || len(notices) > 0 {
		t.Fatalf("%s: %v, notices %v", part, file.Problems, notices)
	}
	return file.Objects[0]
}

// TestWorkloads: a supported field has an effect. Each case runs a workload with a part of its spec,
// and without that part or with another value. The decisions or the pods have to differ.
func TestWorkloads(t *testing.T) {
	t.Parallel()
	for _, kind := range pod.WorkloadKinds() {
		for _, c := range workloadsCases() {
			if !slices.Contains(c.kinds(), kind) {
				continue
			}
			c.kind = kind
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				if with, without := c.run(t, c.spec), c.run(t, c.without); with == without {
					t.Errorf("nothing differs:\n%s", with)
				}
			})
		}
	}
}
