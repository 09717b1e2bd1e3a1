package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// onHost gives a pod another host name, which only a new instance can have.
func onHost(name string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Hostname = name }
}

// Shows: C-1.46.1
func TestCPUs_EditReplacesPod_OthersGetItsCPUsWhenItHasStopped(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		slow := image("slow-term-20s")
		m.src.set(mkpod("a", guaranteedPod("2"), slow))
		m.arrive()
		m.pass(time.Minute)
		m.src.set(mkpod("a", guaranteedPod("1"), slow, onHost("x")), mkpod("b", guaranteedPod("2")))
		m.pass(5 * time.Second)
		wantCPUs(t, m, map[string]string{"a": "1-2@0", "b": "@"})
		m.die()
		m.arrive()
		m.pass(5 * time.Second)
		wantCPUs(t, m, map[string]string{"a": "1-2@0", "b": "@"})
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "1@0", "b": "2-3@0"})
	})
}

// A worker that panics says nothing of the CPUs on which containers of its pod run.
//
// Shows: C-1.46.1, F8
func TestCPUs_PodIsInQuarantine_OthersDoNotGetItsCPUs(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		alter := m.alter
		m.alter = func(c *Config) {
			alter(c)
			c.Runtime = &tripwire{Runtime: c.Runtime, left: 3}
		}
		m.src.set(mkpod("a", guaranteedPod("2")))
		m.arrive()
		m.pass(time.Minute)
		edited := mkpod("a", guaranteedPod("1"), onHost("x"))
		m.src.set(edited)
		m.pass(time.Minute)
		if got := m.stands("a"); !strings.Contains(got, "Quarantined") {
			t.Fatalf("a: %s", got)
		}
		m.src.set(edited, mkpod("b", guaranteedPod("1")), mkpod("c", guaranteedPod("1")))
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "1-2@0", "b": "3@0", "c": "@"})
	})
}

// Shows: C-1.46.1
func TestCPUs_AgentIsKilledBeforeTheNewContainerExists_TheRecordCounts(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		m.src.set(mkpod("a", guaranteedPod("2")))
		m.arrive()
		m.pass(time.Minute)
		lift := m.rt.Fault(critest.Fault{Method: "CreateContainer", Pod: in("a"), Err: errors.New("no room")})
		m.src.set(mkpod("a", guaranteedPod("1"), onHost("x")))
		m.pass(5 * time.Second)
		m.die()
		lift()
		m.src.set(mkpod("a", guaranteedPod("1"), onHost("x")), mkpod("b", guaranteedPod("2")))
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"a": "1@0", "b": "2-3@0"})
	})
}

// Shows: C-1.46.1, C-1.46.4
func TestCPUs_EditAddsAndRemovesAContainer_ItIsPlacedAndReleased(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		more := func(cpus string) func(*v1.Pod) {
			return func(p *v1.Pod) {
				list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus), v1.ResourceMemory: resource.MustParse("64Mi")}
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{
					Name: "more", Image: "more:1", ImagePullPolicy: v1.PullIfNotPresent, Resources: v1.ResourceRequirements{Requests: list, Limits: list},
				})
			}
		}
		want := func(app, other, b string) {
			t.Helper()
			wantCPUs(t, m, map[string]string{"a": app, "b": b})
			if r := m.rt.Resources(in("a"), "more"); r.GetCpusetCpus() != other {
				t.Errorf("the other container runs on %q, want %q", r.GetCpusetCpus(), other)
			}
		}
		b := mkpod("b")
		m.src.set(mkpod("a", guaranteedPod("1")), b)
		m.arrive()
		m.pass(time.Minute)
		want("1@0", "", "0,2-3@")
		m.src.set(mkpod("a", guaranteedPod("1"), more("3")), b)
		m.pass(time.Minute)
		want("1@0", "", "0,2-3@")
		if !strings.Contains(m.log.String(), "Edit not admitted") || !strings.Contains(m.log.String(), "requested=3, available=2") {
			t.Error("no word about the edit")
		}
		m.src.set(mkpod("a", guaranteedPod("1"), more("2")), b)
		m.pass(time.Minute)
		want("1@0", "2-3", "0@")
		m.die()
		m.arrive()
		m.pass(time.Minute)
		want("1@0", "2-3", "0@")
		m.src.set(mkpod("a", guaranteedPod("1")), b)
		m.pass(time.Minute)
		want("1@0", "", "0,2-3@")
		if n := starts(m, "a"); n != 2 {
			t.Errorf("%d starts", n)
		}
	})
}

// Shows: C-1.46.1, C-1.46.8
func TestCPUs_MachineHasLostCPUs_PodsThatHadThemGetOthersOrWait(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		a, b := mkpod("a", guaranteedPod("1")), mkpod("b", guaranteedPod("1"))
		m.src.set(a, b)
		for _, boot := range []struct {
			cpus []int
			want map[string]string
		}{
			{[]int{0, 1, 2, 3}, map[string]string{"a": "1@0", "b": "2@0"}},
			{[]int{0, 1, 3}, map[string]string{"a": "1@0", "b": "3@0"}},
			{[]int{0, 1}, map[string]string{"a": "1@0", "b": "@"}},
		} {
			withCPUs(t, m, "static", boot.cpus...)
			m.arrive()
			m.pass(time.Minute)
			wantCPUs(t, m, boot.want)
			if len(boot.cpus) > 2 {
				m.leave()
				m.rt.Reboot()
			}
		}
		for _, text := range []string{
			`msg="Allocated other CPUs and memory to pod" pod=default/b missing="CPUs 2"`,
			`message="the machine no longer has CPUs 3, which the pod had exclusively: Allocate failed`,
		} {
			if !strings.Contains(m.log.String(), text) {
				t.Errorf("the log has no %s", text)
			}
		}
		m.src.set(b)
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"b": "1@0"})
	})
}

// A static pod gets another UID while no agent runs, and its record is lost: it gets the CPUs on
// which its old containers run, and frees them when it is removed.
//
// Shows: C-1.46.1
func TestCPUs_RecordIsLostAndUIDChanges_CPUsDoNotLeak(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		m.src.set(mkpod("a", guaranteedPod("3")))
		m.arrive()
		m.pass(time.Minute)
		m.die()
		m.disk.records = map[pod.Key]pod.Record{}
		m.src.set(mkpod("a", guaranteedPod("3"), func(p *v1.Pod) { p.UID = "uid-other" }))
		m.arrive()
		m.pass(time.Minute)
		m.expect("a", "Running", true)
		wantCPUs(t, m, map[string]string{"a": "1-3@0"})
		if l := m.disk.last(in("a")); l == nil || l.pod.UID != "uid-other" {
			t.Errorf("a: %+v", l)
		}
		if n := starts(m, "a"); n != 2 {
			t.Errorf("%d starts", n)
		}
		m.src.set(mkpod("b", guaranteedPod("3")))
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"b": "1-3@0"})
	})
}
