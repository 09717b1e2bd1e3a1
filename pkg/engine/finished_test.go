package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// atAPI is a pod as it comes from an API server.
func atAPI(s *pod.Spec) *pod.Spec {
	return of("api", "/k", mkpod(s.Name, func(p *v1.Pod) {
		*p = *s.Pod.DeepCopy()
		p.Annotations = map[string]string{pod.AnnotationConfigSource: "api"}
	}))
}

// left returns the remains of pod web on the node.
func (m *machine) left() string {
	text := m.rt.State()
	if err := m.disk.empty(); err != nil {
		text += err.Error()
	}
	if m.groups != nil {
		text += m.groups.all()
	}
	return text
}

// guarded checks every report: one that says that nothing is left of a pod must be true.
func (m *machine) guarded() {
	m.groups = &groups{memory: map[string]int64{}}
	m.disk.onReport = func(r pod.StatusReport) {
		if left := m.left(); r.Finished && left != "" && pod.KeyOf(r.Pod) == webKey {
			m.t.Errorf("finished, and there is:\n%s", left)
		}
	}
}

// ending waits until web is reported as finished, and returns its last status.
func (m *machine) ending() v1.PodStatus {
	m.t.Helper()
	for range 300 {
		if l := m.disk.last(webKey); l != nil && l.finished {
			return l.pod.Status
		}
		m.pass(time.Second)
	}
	m.t.Errorf("it is never finished:\n%s\n%s", m.left(), m.phase("web"))
	return v1.PodStatus{}
}

func ends(st v1.PodStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", st.Phase)
	for _, c := range st.ContainerStatuses {
		if e := c.State.Terminated; e != nil {
			fmt.Fprintf(&b, " %s:%d:%s", c.Name, e.ExitCode, e.Reason)
		} else {
			fmt.Fprintf(&b, " %s:?", c.Name)
		}
	}
	return b.String()
}

// TestC_1_27_9_FinishedWhenNothingIsLeft: pods of an API server are deleted in every state,
// though the server shows none of the statuses reported meanwhile.
//
// Shows: C-1.27.9
func TestC_1_27_9_FinishedWhenNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec *pod.Spec
		wait time.Duration
		want string
	}{
		"runs":                 {mkpod("web", image("slow-term-2s"), beside("side", "ignore-term")), 10 * time.Second, "Failed app:0:Completed side:137:Error"},
		"ends well":            {mkpod("web", image("slow-term-2s")), 10 * time.Second, "Succeeded app:0:Completed"},
		"crashes":              {mkpod("web", image("exit-3-after-1s")), 15 * time.Second, "Failed app:3:Error"},
		"has Succeeded":        {mkpod("web", image("exit-0-after-1s"), policy(v1.RestartPolicyNever)), 10 * time.Second, "Succeeded app:0:Completed"},
		"has Failed":           {mkpod("web", image("exit-4-after-1s"), policy(v1.RestartPolicyNever)), 10 * time.Second, "Failed app:4:Error"},
		"is not pulled":        {mkpod("web", image("missing:1")), 10 * time.Second, "Failed app:137:ContainerStatusUnknown"},
		"is not admitted":      {mkpod("web", cpu("100")), 10 * time.Second, "Failed"},
		"was never here":       {mkpod("web"), 0, "Failed app:137:ContainerStatusUnknown"},
		"is in its init":       {mkpod("web", initContainer("run:1")), 10 * time.Second, "Failed app:?"},
		"is just being begun":  {mkpod("web", image("remote:1")), 100 * time.Millisecond, "Failed app:137:ContainerStatusUnknown"},
		"has volumes to clean": {mkpod("web", image("slow-term-2s"), func(p *v1.Pod) { p.Spec.Volumes = []v1.Volume{{Name: "v"}} }), 10 * time.Second, "Succeeded app:0:Completed"},
	} {
		for _, agents := range []string{"one agent", "an agent that was killed before", "an agent that came after the deletion"} {
			t.Run(name+", "+agents, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T, m *machine) {
					m.on(cores("4"))
					m.guarded()
					m.arrive()
					web := atAPI(c.spec)
					if c.wait > 0 {
						m.src.set(web)
						m.pass(c.wait)
					}
					if agents != "one agent" {
						m.die()
					}
					if agents == "an agent that was killed before" {
						m.arrive()
						m.settle()
					}
					m.src.set(deleted(web, 3))
					if m.agent == nil {
						m.arrive()
					}
					got := ends(m.ending())
					if got != c.want {
						t.Errorf("%s, want %s", got, c.want)
					}
					m.pass(time.Minute)
					if l := m.disk.last(webKey); !l.finished || ends(l.pod.Status) != got {
						t.Errorf("a minute later: %t, %s", l.finished, ends(l.pod.Status))
					}
					m.src.set()
					m.pass(time.Second)
					if m.phase("web") != "gone" {
						t.Errorf("%s when the server has let go", m.phase("web"))
					}
				})
			})
		}
	}
}

// TestC_1_27_9_FinishedAfterKills: the agent is killed after every call of the stop.
//
// Shows: C-1.27.9
func TestC_1_27_9_FinishedAfterKills(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		spec *pod.Spec
		want []string
	}{
		{"runs", mkpod("web", image("slow-term-2s"), preStopped), []string{"Succeeded app:0:Completed"}},
		{"has ended", mkpod("web", image("exit-5-after-1s"), policy(v1.RestartPolicyNever)), []string{"Failed app:5:Error"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			web, calls := atAPI(c.spec), 0
			for n := 0; n <= calls; n++ {
				bubble(t, func(t *testing.T, m *machine) {
					m.guarded()
					killed := make(chan struct{}, 4)
					m.arrive()
					m.src.set(web)
					m.pass(10 * time.Second)
					before := len(m.rt.Transcript())
					m.rt.AfterEach(func(i int, _ string) {
						if n > 0 && i == before+n {
							m.agent.conn.Cut()
							killed <- struct{}{}
						}
					})
					m.src.set(deleted(web, 5))
					over := time.After(time.Minute)
					for live := true; live; {
						select {
						case <-killed:
							m.die()
							m.pass(time.Second)
							m.arrive()
						case <-over:
							live = false
						}
					}
					m.settle()
					if got := ends(m.ending()); !slices.Contains(c.want, got) {
						t.Errorf("killed after call %d: %s, want %v", n, got, c.want)
					}
					if n == 0 {
						calls = len(m.rt.Transcript()) - before
					}
				})
			}
			if calls < 3 {
				t.Errorf("it took %d calls", calls)
			}
		})
	}
}

// TestF73_MorePodsThanTheNodeTakes: 60 pods of an API server come at once to a node of 15:
// 15 run, the others are Failed with the reason.
//
// Shows: F73
func TestF73_MorePodsThanTheNodeTakes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.on(plan.Node{Name: "n1", OS: "linux", MaxPods: 15})
		m.arrive()
		var all []*pod.Spec
		for i := range 60 {
			all = append(all, atAPI(mkpod(fmt.Sprintf("p%03d", i))))
		}
		m.src.set(all...)
		m.pass(2 * time.Minute)
		counts := map[string]int{}
		for _, s := range all {
			st := m.disk.last(s.Key).pod.Status
			counts[strings.TrimSpace(string(st.Phase)+" "+st.Reason)]++
			if st.Phase == v1.PodFailed && !strings.HasPrefix(st.Message, "Pod was rejected: ") {
				t.Errorf("%s: %s", s.Name, st.Message)
			}
		}
		if len(counts) != 2 || counts["Running"] != 15 || counts["Failed OutOfpods"] != 45 {
			t.Errorf("%v", counts)
		}
		for i, s := range all { // a pod without room is gone without having been here
			all[i] = deleted(s, 30)
		}
		m.src.set(all...)
		m.pass(5 * time.Minute)
		for _, s := range all {
			if l := m.disk.last(s.Key); !l.finished {
				t.Errorf("%s is not finished: %s", s.Name, l.pod.Status.Phase)
			}
		}
		m.want()
	})
}

// TestF75_ReportsHaveTheUIDOfThePodThatIsThere: a pod is removed for another one of its name, which may
// not start either. Reports of the new one say that the old one is there, and when nothing of
// it is left.
//
// Shows: F75
func TestF75_ReportsHaveTheUIDOfThePodThatIsThere(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		var said []string
		m.disk.onReport = func(r pod.StatusReport) {
			if line := fmt.Sprintf("%s: there is %q", r.Pod.UID, r.ObservedUID); len(said) == 0 || said[len(said)-1] != line {
				said = append(said, line)
			}
		}
		m.arrive()
		m.src.set(mkpod("web", uid("one"), image("polite:1")))
		m.pass(time.Minute)
		lift := m.rt.Fault(critest.Fault{Method: "RunPodSandbox", Err: status.Error(codes.Unknown, "no network")})
		m.src.set(mkpod("web", uid("other")))
		m.pass(time.Minute)
		lift()
		m.pass(time.Minute)
		want := []string{`one: there is ""`, `one: there is "one"`, `other: there is "one"`, `other: there is ""`, `other: there is "other"`}
		if !slices.Equal(said, want) {
			t.Errorf("%q, want %q", said, want)
		}
	})
}
