package workload

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// world is a node with the pods of one workload. A pod changes only when the test says so.
type world struct {
	t      *testing.T
	object *pod.Object
	pods   []Pod
	state  State
	now    time.Time
	last   Decision

	allowed func(*pod.Object) bool
	release []Member
}

var worldBegin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newWorld(t *testing.T, o *pod.Object) *world {
	t.Helper()
	return &world{t: t, object: o, now: worldBegin}
}

// workloadOf returns a workload with the name web of a file source.
func workloadOf(kind string, object any) *pod.Object {
	return &pod.Object{
		Key: pod.Key{Namespace: "default", Name: "web"}, Kind: kind, Object: object,
		Origin: pod.Origin{Source: "file", Location: "/etc/manifests", File: "/etc/manifests/web.yaml", Line: 1},
	}
}

func webTemplate(image string) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: image}}},
	}
}

func webSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

// webDeployment returns a Deployment with a rolling update; an empty string is the default.
func webDeployment(replicas int32, image, surge, unavailable string) *appsv1.Deployment {
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: webSelector(), Template: webTemplate(image)}}
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: webAmount(surge), MaxUnavailable: webAmount(unavailable)}
	return d
}

func webAmount(text string) *intstr.IntOrString {
	if text == "" {
		return nil
	}
	v := intstr.Parse(text)
	return &v
}

// edit changes a copy of the workload.
func edit[T any](w *world, change func(*T)) {
	var next T
	copyJSON(w.t, w.object.Object, &next)
	change(&next)
	object := *w.object
	object.Object = &next
	w.object = &object
}

func editDeployment(w *world, change func(*appsv1.DeploymentSpec)) {
	edit(w, func(d *appsv1.Deployment) { change(&d.Spec) })
}

func copyJSON(t *testing.T, from, to any) {
	t.Helper()
	if err := json.Unmarshal([]byte(asJSON(t, from)), to); err != nil {
		t.Fatal(err)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// input returns the input of Next. The state comes from a file.
func (w *world) input() Input {
	w.t.Helper()
	var state State
	copyJSON(w.t, w.state, &state)
	pods := slices.Clone(w.pods)
	slices.SortFunc(pods, func(a, b Pod) int { return a.Spec.Compare(b.Spec.Key) })
	return Input{Object: w.object, Node: "node", Pods: pods, State: state, Now: w.now, Release: w.release, Allowed: w.allowed}
}

// next asks for a decision, and puts it into effect.
func (w *world) next() Decision {
	w.t.Helper()
	in := w.input()
	stored := asJSON(w.t, in.State)
	d := Next(in)
	if got := asJSON(w.t, in.State); got != stored {
		w.t.Fatalf("the state of the input changed\nfrom %s\nto   %s", stored, got)
	}
	var pods []Pod
	for _, s := range d.Pods {
		p := Pod{Spec: s}
		if i := slices.IndexFunc(w.pods, func(p Pod) bool { return p.Spec.Key == s.Key && !p.Leaving }); i >= 0 {
			p.Status = w.pods[i].Status
		}
		pods = append(pods, p)
	}
	for _, p := range w.pods {
		if p.Leaving || !slices.ContainsFunc(d.Pods, func(s *pod.Spec) bool { return s.Key == p.Spec.Key }) {
			p.Leaving = true
			pods = append(pods, p)
		}
	}
	w.pods, w.state, w.last = pods, d.State, d
	return d
}

// set gives pods a status with the phase Running. The time of the condition Ready changes with
// its status only, as the node reports it.
func (w *world) set(ready v1.ConditionStatus, which func(Pod) bool) {
	for i := range w.pods {
		p := &w.pods[i]
		if p.Leaving || !which(*p) {
			continue
		}
		s := &v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready, LastTransitionTime: seconds(w.now)}}}
		begin := seconds(w.now)
		s.StartTime = &begin
		if old := p.Status; old != nil {
			s.StartTime = old.StartTime
			if c := p.readyCondition(); c != nil && c.Status == ready {
				s.Conditions = old.Conditions
			}
		}
		p.Status = s
	}
}

func allPods(Pod) bool { return true }

// settle makes all pods ready, and removes those that stop.
func (w *world) settle() {
	w.set(v1.ConditionTrue, allPods)
	w.gone()
}

func (w *world) gone() {
	w.pods = slices.DeleteFunc(w.pods, func(p Pod) bool { return p.Leaving })
}

// show returns the ready pods and all pods of each revision, as "r1=3/3 r2=0/1", and how many
// pods stop.
func (w *world) show() string {
	var out []string
	for _, r := range w.state.Revisions {
		ready, all := 0, 0
		for _, p := range w.pods {
			if w.hashOf(p) == r.Hash && !p.Leaving {
				all++
				if p.isReady() {
					ready++
				}
			}
		}
		if all > 0 {
			out = append(out, fmt.Sprintf("r%d=%d/%d", r.Number, ready, all))
		}
	}
	if n := len(w.stopping()); n > 0 {
		out = append(out, fmt.Sprintf("stopping=%d", n))
	}
	return strings.Join(out, " ")
}

func (w *world) hashOf(p Pod) string {
	if hash, ok := p.Spec.Pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; ok {
		return hash
	}
	return p.Spec.Pod.Labels[appsv1.ControllerRevisionHashLabelKey]
}

func (w *world) stopping() []Pod {
	return slices.DeleteFunc(slices.Clone(w.pods), func(p Pod) bool { return !p.Leaving })
}

// ofRevision returns a condition for the pods of a revision.
func (w *world) ofRevision(number int64) func(Pod) bool {
	return func(p Pod) bool {
		i := indexOf(w.state.Revisions, w.hashOf(p))
		return i >= 0 && w.state.Revisions[i].Number == number
	}
}

// expect asks for a decision and compares the pods after it.
func (w *world) expect(want string) {
	w.t.Helper()
	w.next()
	if got := w.show(); got != want {
		w.t.Fatalf("the pods are %s, want %s; steps:\n%s", got, want, w.steps())
	}
}

// rollOut expects these pods, one text for each time that all pods have become ready and the
// stopped ones are gone.
func (w *world) rollOut(want ...string) {
	w.t.Helper()
	for _, text := range want {
		w.expect(text)
		w.settle()
	}
}

func (w *world) steps() string {
	var out strings.Builder
	for _, s := range w.last.Steps {
		fmt.Fprintf(&out, "%s %s: %s\n", s.Action, s.Key.Name, s.Reason)
	}
	return out.String()
}

// names returns the names of the pods in the set.
func (w *world) names() []string {
	names := map[string]bool{}
	for _, p := range w.pods {
		if !p.Leaving {
			names[p.Spec.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// restart is a restart of the agent: all specs are read again.
func (w *world) restart() {
	for i := range w.pods {
		s := *w.pods[i].Spec
		s.Pod = s.Pod.DeepCopy()
		w.pods[i].Spec = &s
	}
}

// checkIdempotent fails if another call, with the result of the last one, decides otherwise.
func (w *world) checkIdempotent() {
	w.t.Helper()
	first := w.last
	again := Next(w.input())
	if len(again.Steps) > 0 || len(again.Events) > 0 {
		w.t.Fatalf("the second call has steps %v and events %v", again.Steps, again.Events)
	}
	if !slices.Equal(first.Pods, again.Pods) {
		w.t.Fatalf("the second call returns other pods: %d, before %d", len(again.Pods), len(first.Pods))
	}
	if a, b := asJSON(w.t, first.State), asJSON(w.t, again.State); a != b {
		w.t.Fatalf("the second call changes the state\nfrom %s\nto   %s", a, b)
	}
	if a, b := asJSON(w.t, first.Status), asJSON(w.t, again.Status); a != b {
		w.t.Fatalf("the second call changes the status\nfrom %s\nto   %s", a, b)
	}
	if !first.Wake.Equal(again.Wake) {
		w.t.Fatalf("the second call is due at %v, the first at %v", again.Wake, first.Wake)
	}
}

// checkPods fails if two pods have the same name, or the pods are not sorted.
func (w *world) checkPods() {
	w.t.Helper()
	names := map[string]bool{}
	for _, p := range w.pods {
		if names[p.Spec.Name] {
			w.t.Fatalf("two pods have the name %s", p.Spec.Name)
		}
		names[p.Spec.Name] = true
	}
	if !slices.IsSortedFunc(w.last.Pods, func(a, b *pod.Spec) int { return a.Compare(b.Key) }) {
		w.t.Fatal("the pods are not sorted")
	}
	if wake := w.last.Wake; !wake.IsZero() && !wake.After(w.now) {
		w.t.Fatalf("the next decision is due at %v, which is not after now, %v", wake, w.now)
	}
}

func (w *world) wake() time.Time { return w.last.Wake.UTC() }

func equal[T any](t *testing.T, subject string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is %v, want %v", subject, got, want)
	}
}
