package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// dependents are three pods, each with another dependency condition on db.
func dependents(edits ...func(*v1.Pod)) []*pod.Spec {
	var all []*pod.Spec
	for name, until := range map[string]pod.DependencyCondition{"early": pod.Started, "mid": pod.Ready, "late": pod.Done} {
		s := mkpod(name, edits...)
		s.DependsOn = []pod.Dependency{{Name: "db", Until: until}}
		all = append(all, s)
	}
	return all
}

// begun returns when the sandbox of a pod was run, "" for never.
func begun(m *machine, name string) string {
	for _, line := range m.rt.Transcript() {
		if f := strings.Fields(line); f[1] == "RunPodSandbox" && f[2] == "default/"+name {
			return f[0]
		}
	}
	return ""
}

// P21: a pod is started when its containers run, not its init containers; ready when it is
// Ready; done when it has Succeeded.
//
// Shows: P21
func TestP21_EachConditionIsWaitedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		db := mkpod("db", initContainer("exit-0-after-2s"), image("exit-0-after-10s"), policy(v1.RestartPolicyOnFailure), func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = often()
			p.Spec.Containers[0].ReadinessProbe.InitialDelaySeconds = 4
		})
		m.src.set(append(dependents(), db)...)
		m.arrive()
		m.pass(11 * time.Second)
		w := m.disk.last(pod.Key{Namespace: "default", Name: "late"}).pod.Status.ContainerStatuses[0].State.Waiting
		if w == nil || !strings.Contains(w.Message, "waits for pod db to be done") {
			t.Errorf("late is %+v", w)
		}
		m.pass(time.Minute)
		for name, want := range map[string]string{"db": "0s", "early": "2s", "mid": "6s", "late": "12s"} {
			if got := begun(m, name); got != want {
				t.Errorf("%s began at %q, want %q", name, got, want)
			}
		}
		if got := m.phase("late"); got != "Running" {
			t.Errorf("late is %s", got)
		}
	})
}

// P21: a Failed pod is not done; once it has Succeeded after an edit, it is.
//
// Shows: P21
func TestP21_FailureMeetsNoCondition(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		job := func(img string) *pod.Spec { return mkpod("db", image(img), policy(v1.RestartPolicyNever)) }
		web := after("web", pod.Dependency{Name: "db", Until: pod.Done})
		m.src.set(web, job("exit-1-after-1s"))
		m.arrive()
		m.pass(10 * time.Minute)
		if got := begun(m, "web"); got != "" || m.phase("db") != "Failed" {
			t.Errorf("web began at %s, db is %s", got, m.phase("db"))
		}
		m.src.set(web, job("exit-0-after-1s"))
		m.pass(10 * time.Second)
		if got := begun(m, "web"); got != "10m1s" {
			t.Errorf("web began at %s", got)
		}
	})
}

// P21: a Failed pod is not started either, though all its containers exited with 0.
//
// Shows: P21
func TestP21_EndAtTheDeadlineMeetsNoCondition(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		limit := int64(5)
		db := mkpod("db", image("slow-term-1s"), func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = &limit })
		m.src.set(db)
		m.arrive()
		m.pass(10 * time.Second)
		m.src.set(append(dependents(), db)...)
		m.pass(10 * time.Minute)
		for _, name := range []string{"early", "mid", "late"} {
			if got := begun(m, name); got != "" || m.phase("db") != "Failed" {
				t.Errorf("%s began at %s, db is %s", name, got, m.phase("db"))
			}
		}
	})
}

// P21: when all pods are removed, dependents stop first under every condition. Each is gone
// before the next one stops.
//
// Shows: P21
func TestP21_ReverseStopForEachCondition(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		all := append(dependents(image("slow-term-3s")), mkpod("db"))
		m.src.set(slices.DeleteFunc(slices.Clone(all), func(s *pod.Spec) bool { return s.Name == "late" })...)
		m.arrive()
		m.pass(time.Second)
		m.src.set(all...)
		m.pass(time.Second)
		m.rt.Reset()
		m.src.set()
		m.pass(time.Minute)
		m.want()
		var stops []string
		for _, line := range m.rt.Transcript() {
			f := strings.Fields(line)
			if f[1] == "StopContainer" {
				stops = append(stops, f[0]+" "+f[2])
			}
		}
		slices.Sort(stops[:min(2, len(stops))])
		if want := []string{"0s default/early/app", "0s default/mid/app", "3s default/db/app"}; !slices.Equal(stops, want) {
			t.Errorf("stops %q, want %q", stops, want)
		}
		if err := m.disk.empty(); err != nil {
			t.Error(err)
		}
	})
}
