package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// after makes a pod that depends on others.
func after(name string, on ...pod.Dependency) *pod.Spec {
	s := mkpod(name)
	s.DependsOn = on
	return s
}

// order returns the pods on which the runtime's verb was called, in order.
func order(m *machine, verb string) []string {
	var names []string
	for _, line := range m.rt.Transcript() {
		if !strings.Contains(line, verb+" ") {
			continue
		}
		for _, name := range []string{"db", "web", "front"} {
			if strings.Contains(line, "default/"+name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// P21: pods start in the order of their dependencies, and stop in reverse.
//
// Shows: P21
func TestP21_DependsOnOrdersStartAndStop(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		db := mkpod("db", func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1, TimeoutSeconds: 1,
				ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}}
		})
		m.disk.sick["app"] = true
		m.src.set(after("front", pod.Dependency{Name: "web", Until: pod.Started}), after("web", pod.Dependency{Name: "db", Until: pod.Ready}), db)
		m.arrive()
		m.pass(30 * time.Second)
		if got := order(m, "RunPodSandbox"); !slices.Equal(got, []string{"db"}) {
			t.Fatalf("started before the database is ready: %v", got)
		}
		if got := m.disk.last(pod.Key{Namespace: "default", Name: "web"}).pod.Status; !strings.Contains(got.ContainerStatuses[0].State.Waiting.Message, "waits for pod db to be ready") {
			t.Errorf("no status says what web waits for: %+v", got.ContainerStatuses[0].State.Waiting)
		}
		m.disk.mu.Lock()
		m.disk.sick["app"] = false
		m.disk.mu.Unlock()
		m.pass(5 * time.Second)
		if got := order(m, "StartContainer"); !slices.Equal(got, []string{"db", "web", "front"}) {
			t.Errorf("started in the order %v", got)
		}
		m.src.set()
		m.pass(time.Minute)
		m.want()
		if got := order(m, "StopContainer"); !slices.Equal(got, []string{"front", "web", "db"}) {
			t.Errorf("stopped in the order %v", got)
		}
	})
}

// A dependency that is removed stops no dependent, and one that restarts delays no running
// one.
//
// Shows: P21
func TestP21_RunningPodIsNotBlockedByItsDependency(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := after("web", pod.Dependency{Name: "db", Until: pod.Started})
		m.src.set(mkpod("db"), web)
		m.arrive()
		m.pass(time.Second)
		m.src.set(web)
		m.pass(time.Minute)
		m.leave()
		m.arrive()
		m.pass(time.Minute)
		if got := starts(m, "web"); got != 1 {
			t.Errorf("%d starts of the pod whose dependency went", got)
		}
		m.rt.Exit(pod.Key{Namespace: "default", Name: "web"}, "app", 1)
		m.pass(time.Minute)
		if got := starts(m, "web"); got != 2 {
			t.Errorf("%d starts: the container of a running pod waits for what its pod depends on", got)
		}
	})
}

// Pods that are removed while no agent runs stop in reverse order as well.
//
// Shows: P21
func TestP21_ReverseOverARestartOfTheAgent(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("db"), after("web", pod.Dependency{Name: "db", Until: pod.Started}))
		m.arrive()
		m.pass(time.Second)
		m.leave()
		m.src.set()
		m.arrive()
		m.pass(time.Minute)
		m.want()
		if got := order(m, "StopContainer"); !slices.Equal(got, []string{"web", "db"}) {
			t.Errorf("stopped in the order %v", got)
		}
	})
}

// unkillable makes every stop of a pod fail.
func (m *machine) unkillable(name string) {
	m.rt.Fault(critest.Fault{Method: "StopContainer", Pod: pod.Key{Namespace: "default", Name: name}, Err: status.Error(codes.Unknown, "cannot be killed")})
}

// A pod of another source cannot delay the stop of a pod by depending on it, unless that
// source may name its objects.
//
// Shows: D1
func TestStopOrder_DependentOfAnotherSource_HoldsNothingUp(t *testing.T) {
	for name, visible := range map[string]func(string, string) bool{
		"no policy":             nil,
		"not allowed":           func(string, string) bool { return false },
		"the other way allowed": func(pods, objects string) bool { return pods == "file" && objects == "http" },
		"allowed":               func(pods, objects string) bool { return pods == "http" && objects == "file" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.more = newWishes()
				m.more.name = "http:http://cfg/"
				m.alter = func(c *Config) { c.Visible = visible }
				m.src.set(mkpod("db"))
				m.more.set(of("http", "http://cfg/", after("web", pod.Dependency{Name: "db", Until: pod.Started})))
				m.arrive()
				m.pass(5 * time.Second)
				m.rt.Reset()
				m.unkillable("web")
				m.more.set()
				m.settle()
				m.src.set()
				m.pass(5 * time.Second)
				if got, held := order(m, "StopContainer"), name == "allowed"; slices.Contains(got, "db") == held {
					t.Errorf("after 5 s the stops are %v", got)
				}
			})
		})
	}
}

// A pod that cannot be killed delays the stop of its dependency only for its grace plus a
// margin.
//
// Shows: D1
func TestStopOrder_DependentThatCannotBeKilled_IsWaitedForABoundedTime(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("db"), after("web", pod.Dependency{Name: "db", Until: pod.Started}))
		m.arrive()
		m.pass(5 * time.Second)
		m.rt.Reset()
		m.unkillable("web")
		m.src.set()
		m.pass(20 * time.Second)
		if got := order(m, "StopContainer"); slices.Contains(got, "db") {
			t.Errorf("db does not wait: %v", got)
		}
		m.pass(3 * time.Minute)
		if got := order(m, "StopContainer"); !slices.Contains(got, "db") {
			t.Errorf("after its grace and minutes more: %v", got)
		}
		if !strings.Contains(m.log.String(), "the wait timed out") {
			t.Error("nothing was reported")
		}
	})
}
