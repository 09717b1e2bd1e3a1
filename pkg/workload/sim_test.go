package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// sim is a node with the pods of one workload, by instance: a pod that replaces another one has
// no status before the old one is gone. A pod changes only when the test says so.
type sim struct {
	t     *testing.T
	in    Input
	pods  []*simPod
	last  Decision
	asked Input           // of the last decision
	made  map[string]bool // names of all pods that the decisions added
}

type simPod struct {
	spec    *pod.Spec
	status  *v1.PodStatus
	unknown bool // the agent has no report of the status
	leaving bool
	stops   bool // the node stops it; the agent may have forgotten that
}

func newSim(t *testing.T, kind string, object any) *sim {
	t.Helper()
	return &sim{t: t, in: Input{Object: workloadOf(kind, object), Node: "node", Now: worldBegin}, made: map[string]bool{}}
}

// pass moves the clock.
func (m *sim) pass(d time.Duration) { m.in.Now = m.in.Now.Add(d) }

// edit changes a copy of the object.
func simEdit[T any](m *sim, change func(*T)) {
	var next T
	copyJSON(m.t, m.in.Object.Object, &next)
	change(&next)
	object := *m.in.Object
	object.Object = &next
	m.in.Object = &object
}

func (m *sim) input() Input {
	in := m.in
	in.Pods = nil
	for _, p := range m.pods {
		q := Pod{Spec: p.spec, Leaving: p.leaving}
		if !p.unknown && p.status != nil {
			q.Status = p.status.DeepCopy()
		}
		in.Pods = append(in.Pods, q)
	}
	slices.SortStableFunc(in.Pods, func(a, b Pod) int { return a.Spec.Compare(b.Spec.Key) })
	return in
}

// next asks for a decision, checks it and puts it into effect.
func (m *sim) next() Decision {
	m.t.Helper()
	in := m.input()
	before := asJSON(m.t, in.State)
	d := Next(in)
	if now := asJSON(m.t, in.State); now != before {
		m.t.Fatalf("the call changed its input\nfrom %s\nto   %s", before, now)
	}
	m.checkSteps(in, d)
	m.apply(d)
	m.asked = in
	if again := Next(m.input()); len(again.Steps) > 0 || len(again.Events) > 0 || asJSON(m.t, again.State) != asJSON(m.t, d.State) {
		m.t.Fatalf("the same call again decides otherwise: first steps %v, steps %v, events %v, state\nfrom %s\nto   %s", d.Steps, again.Steps, again.Events, asJSON(m.t, d.State), asJSON(m.t, again.State))
	}
	return d
}

// checkSteps fails unless the steps are the differences between the pods before and after.
func (m *sim) checkSteps(in Input, d Decision) {
	m.t.Helper()
	want := map[string]Action{}
	before := map[string]string{}
	for _, p := range in.Pods {
		if !p.Leaving {
			before[p.Spec.Name] = p.Spec.UID()
			want[p.Spec.Name] = Remove
		}
	}
	for _, s := range d.Pods {
		uid, was := before[s.Name]
		switch {
		case !was:
			want[s.Name] = Add
		case uid != s.UID():
			want[s.Name] = Replace
		default:
			delete(want, s.Name)
		}
	}
	got := map[string]Action{}
	for _, s := range d.Steps {
		if s.Reason == "" {
			m.t.Fatalf("the step of %s has no reason", s.Key)
		}
		got[s.Key.Name] = s.Action
	}
	if !maps.Equal(got, want) || len(got) != len(d.Steps) {
		m.t.Fatalf("the steps are %v, want %v", d.Steps, want)
	}
	if !slices.IsSortedFunc(d.Pods, func(a, b *pod.Spec) int { return a.Compare(b.Key) }) {
		m.t.Fatal("the pods are not sorted")
	}
	if !d.Wake.IsZero() && !d.Wake.After(in.Now) {
		m.t.Fatalf("the next decision is due at %v, which is not after now, %v", d.Wake, in.Now)
	}
}

func (m *sim) apply(d Decision) {
	m.t.Helper()
	m.in.State, m.last = d.State, d
	for _, s := range d.Pods {
		at := slices.IndexFunc(m.pods, func(p *simPod) bool { return p.spec.UID() == s.UID() })
		if at < 0 {
			m.pods, m.made[s.Name] = append(m.pods, &simPod{spec: s}), true
			continue
		}
		p := m.pods[at]
		if p.leaving || p.stops && m.in.Object.Kind != KindStatefulSet {
			m.t.Fatalf("pod %s comes back while the node stops it", s.Name)
		}
		if p.stops { // the agent restarted, and did not know that
			p.stops, p.status = false, nil
		}
		p.spec = s
	}
	for _, p := range m.pods {
		if !slices.ContainsFunc(d.Pods, func(s *pod.Spec) bool { return s.UID() == p.spec.UID() }) {
			p.leaving, p.stops = true, true
		}
	}
}

// restart is a restart of the agent: the state comes from a file, and pods that stop are in
// records as all others are. A pod that waits for the end of an earlier one has no record.
func (m *sim) restart() {
	var state State
	copyJSON(m.t, m.in.State, &state)
	m.in.State = state
	m.pods = slices.DeleteFunc(slices.Clone(m.pods), m.blocked)
	for _, p := range m.pods {
		s := *p.spec
		s.Pod = s.Pod.DeepCopy()
		p.spec, p.leaving = &s, false
	}
}

// pod returns the pod of a name that does not stop.
func (m *sim) pod(name string) *simPod {
	m.t.Helper()
	for _, p := range m.pods {
		if p.spec.Name == name && !p.stops {
			return p
		}
	}
	m.t.Fatalf("there is no pod %s, only %v", name, m.names())
	return nil
}

// blocked reports whether the node still stops an earlier pod of the same name.
func (m *sim) blocked(p *simPod) bool {
	return slices.ContainsFunc(m.pods, func(o *simPod) bool { return o != p && o.stops && o.spec.Name == p.spec.Name })
}

// runs gives pods the phase Running.
func (m *sim) runs(p *simPod, ready bool) {
	is := v1.ConditionFalse
	if ready {
		is = v1.ConditionTrue
	}
	begin := seconds(m.in.Now)
	s := &v1.PodStatus{Phase: v1.PodRunning, StartTime: &begin, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: is, LastTransitionTime: begin}}}
	if old := p.status; old != nil {
		s.StartTime = old.StartTime
		if c := (Pod{Status: old}).readyCondition(); c != nil && c.Status == is {
			s.Conditions = old.Conditions
		}
	}
	p.status, p.unknown = s, false
}

// ends gives a pod a final phase: Succeeded for exit code 0.
func (m *sim) ends(p *simPod, code int32) {
	phase := v1.PodSucceeded
	if code != 0 {
		phase = v1.PodFailed
	}
	end := seconds(m.in.Now)
	p.unknown = false
	p.status = &v1.PodStatus{
		Phase: phase, StartTime: &end,
		ContainerStatuses: []v1.ContainerStatus{{Name: "web", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, FinishedAt: end}}}},
		Conditions:        []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse, LastTransitionTime: end}},
	}
}

// ready makes pods ready, all without names.
func (m *sim) ready(names ...string) {
	m.t.Helper()
	for _, p := range m.pods {
		if len(names) == 0 && !p.stops && !m.blocked(p) && (p.status == nil || p.status.Phase == v1.PodRunning) {
			m.runs(p, true)
		}
	}
	for _, name := range names {
		m.runs(m.pod(name), true)
	}
}

// gone removes the pods that stop.
func (m *sim) gone() { m.pods = slices.DeleteFunc(m.pods, func(p *simPod) bool { return p.stops }) }

// names returns the names of the pods in the set.
func (m *sim) names() []string {
	out := []string{}
	for _, s := range m.last.Pods {
		out = append(out, s.Name)
	}
	return out
}

// expect asks for a decision and compares its steps, as "add web-0, remove web-1".
func (m *sim) expect(want string) {
	m.t.Helper()
	m.next()
	var steps []string
	for _, s := range m.last.Steps {
		steps = append(steps, fmt.Sprintf("%s %s", s.Action, s.Key.Name))
	}
	if got := strings.Join(steps, ", "); got != want {
		m.t.Fatalf("the steps are %q, want %q", got, want)
	}
}

// events returns the events of the last decision, as "Reason: message".
func (m *sim) events() []string {
	var out []string
	for _, e := range m.last.Events {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}

// wakesIn returns the time from the last decision to the next one without a change; 0: only after a
// change.
func (m *sim) wakesIn() time.Duration {
	if m.last.Wake.IsZero() {
		return 0
	}
	return m.last.Wake.Sub(m.in.Now)
}

func simMeta() metav1.ObjectMeta { return metav1.ObjectMeta{Name: "web", Namespace: "default"} }
