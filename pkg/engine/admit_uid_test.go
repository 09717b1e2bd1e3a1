package engine

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// ofUID gives a pod a UID, and a volume whose directory lies below it.
func ofUID(uid string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.UID = types.UID(uid)
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	}
}

// put reports whether volumes of a UID are in place.
func (m *machine) put(uid string) bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for v := range m.disk.volumes {
		if strings.HasPrefix(v, uid+"/") {
			return true
		}
	}
	return false
}

// A running pod whose edit takes the UID of another pod stays as it is: that UID is the key
// of the other one's directory and record.
func TestEdit_UIDOfAnotherPod_IsRefused(t *testing.T) {
	t.Run("the other pod has ended", func(t *testing.T) {
		bubble(t, func(t *testing.T, m *machine) {
			job := mkpod("job", ofUID("own"), image("exit-0"), policy(v1.RestartPolicyNever))
			m.src.set(job, mkpod("web"))
			m.arrive()
			m.pass(time.Minute)
			edited := mkpod("web", ofUID("own"))
			m.src.set(job, edited)
			m.pass(time.Minute)
			if !strings.Contains(m.log.String(), "Edit not admitted") || starts(m, "web") != 1 {
				t.Errorf("the edit was carried out: %d starts", starts(m, "web"))
			}
			m.expect("web", "Running", true)
			m.rt.Exit(in("web"), "app", 1)
			m.pass(time.Minute)
			if starts(m, "web") != 2 || m.put("own") {
				t.Errorf("%d starts, volumes %v", starts(m, "web"), m.disk.volumes)
			}
			m.src.set(job)
			m.pass(time.Minute)
			if rec, _, _ := m.disk.Load(in("job"), "own"); rec.UID != "own" {
				t.Error("the ended pod lost its record")
			}
			m.src.set(edited)
			m.pass(time.Minute)
			if !m.put("own") || m.phase("web") != "Running" {
				t.Error("the UID is not free when the ended pod has gone")
			}
		})
	})
	t.Run("the other pod is pending", func(t *testing.T) {
		bubble(t, func(t *testing.T, m *machine) {
			m.on(cores("2"))
			big, web := mkpod("big", ofUID("own"), cpu("2")), mkpod("web", cpu("1"))
			m.src.set(web)
			m.arrive()
			m.src.set(web, big)
			m.pass(time.Second)
			m.expect("big", "Pending OutOfcpu", false)
			m.src.set(mkpod("web", ofUID("own"), cpu("1")), big)
			m.pass(time.Minute)
			if !strings.Contains(m.log.String(), "Edit not admitted") || starts(m, "web") != 1 {
				t.Errorf("the edit was carried out: %d starts", starts(m, "web"))
			}
			m.expect("web", "Running", true)
			m.expect("big", "Pending OutOfcpu", false)
			m.src.set(big)
			m.pass(time.Minute)
			m.expect("big", "Running", true)
		})
	})
}

// A pod gets a UID that another one had before its edit only once that one's old instance is
// gone. Its containers use the directories until then, and its removal removes them.
func TestEdit_OldUID_IsFreeOnceTheOldInstanceIsGone(t *testing.T) {
	for name, ended := range map[string]bool{"it runs": false, "it has ended": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				img, never := image("slow-term-20s"), policy(v1.RestartPolicyAlways)
				if ended {
					img, never = image("exit-0"), policy(v1.RestartPolicyNever)
				}
				m.src.set(mkpod("first", ofUID("own"), img, never))
				m.arrive()
				m.pass(time.Minute)
				early := false
				m.disk.onReport = func(r pod.StatusReport) {
					if r.Pod.Name == "second" && r.Pod.Status.Phase == v1.PodRunning {
						rec, _, _ := m.disk.Load(in("first"), "")
						early = early || rec.UID == "own"
					}
				}
				m.src.set(mkpod("first", ofUID("other"), image("app:2")), mkpod("second", ofUID("own")))
				m.pass(5 * time.Second)
				if !ended {
					m.expect("second", "Pending DuplicateUID", false)
				}
				m.pass(2 * time.Minute)
				m.expect("first", "Running", true)
				m.expect("second", "Running", true)
				rec, _, _ := m.disk.Load(in("second"), "own")
				if early || !m.put("own") || !m.put("other") || rec.UID != "own" {
					t.Errorf("early: %v, volumes %v, record %q", early, m.disk.volumes, rec.UID)
				}
			})
		})
	}
}

// A refused pod that is being removed takes no room, however long its worker hangs.
func TestAdmission_RefusedPodThatGoes_TakesNoRoom(t *testing.T) {
	l := orderLoop(Config{})
	l.cfg.Node = cores("2")
	l.cfg.Node.MaxPods = 1
	l.state, l.start.phase = &podconfig.Merged{}, phaseSyncing
	ctx := t.Context()
	big := mkpod("big", cpu("3"), hostPort(8080))
	l.want(ctx, big.Key, big)
	l.admit(ctx)
	if e := l.pods[big.Key]; e.admitted || e.refused.reason != "OutOfcpu" {
		t.Fatalf("admitted: %+v", e.refused)
	}
	l.pods[big.Key].updates = make(chan podUpdate, 1) // a worker that reads nothing
	l.want(ctx, big.Key, nil)
	next := of("http", "http://cfg/", mkpod("next", hostPort(8080)))
	l.want(ctx, next.Key, next)
	l.admit(ctx)
	if e := l.pods[next.Key]; !e.admitted {
		t.Errorf("a pod that fits is refused: %+v", e.refused)
	}
}

// Refused pods that are removed free nothing: their reports cause no admission, which reads
// all pods.
func TestAdmission_ManyRefusedPodsGo_IsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		var admissions atomic.Int64
		m.alter = func(c *Config) {
			c.Node = cores("2")
			c.NodeSeen = func() (map[string]string, []v1.Taint, bool) {
				admissions.Add(1)
				return nil, nil, true
			}
		}
		var pods []*pod.Spec
		for i := range 300 {
			pods = append(pods, mkpod(fmt.Sprintf("big-%d", i), cpu("3")))
		}
		m.src.set(pods...)
		m.arrive()
		m.pass(time.Minute)
		admissions.Store(0)
		m.src.set()
		m.pass(time.Minute)
		if m.phase("big-0") != "gone" || m.phase("big-299") != "gone" {
			t.Error("the pods are not gone")
		}
		if n := admissions.Load(); n > 5 {
			t.Errorf("%d admissions for 300 pods that were refused and go", n)
		}
	})
}

// Refused pods that are removed depend on a pod that stops, too. The removal of each does not
// order the stops of all pods again.
func TestStopOrder_ManyRefusedPodsGo_IsFoundOnce(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		var orders atomic.Int64
		m.more = newWishes()
		m.more.name = "http:http://cfg/"
		m.alter = func(c *Config) {
			c.Node = cores("2")
			c.Visible = func(string, string) bool { orders.Add(1); return true } // only ordering the stops asks for web
		}
		on := pod.Dependency{Name: "db", Until: pod.Started}
		pods := []*pod.Spec{mkpod("db")}
		for i := range 300 {
			big := mkpod(fmt.Sprintf("big-%d", i), cpu("3"))
			big.DependsOn = []pod.Dependency{on}
			pods = append(pods, big)
		}
		m.src.set(pods...)
		m.more.set(of("http", "http://cfg/", after("web", on)))
		m.arrive()
		m.pass(time.Minute)
		m.unkillable("web")
		m.more.set()
		m.settle()
		orders.Store(0)
		m.src.set()
		m.pass(20 * time.Second)
		if m.phase("big-0") != "gone" || m.phase("big-299") != "gone" || m.phase("db") == "gone" {
			t.Errorf("big-0 %s, big-299 %s, db, which waits for web, %s", m.phase("big-0"), m.phase("big-299"), m.phase("db"))
		}
		if n := orders.Load(); n == 0 || n > 5 {
			t.Errorf("the stops are ordered %d times for 300 pods that were refused and go", n)
		}
	})
}
