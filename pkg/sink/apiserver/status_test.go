package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestC_1_27_7_OneRequestAtATime: while a patch is in flight the sink keeps only the
// newest status, and sends it next.
//
// Shows: C-1.27.7
func TestC_1_27_7_OneRequestAtATime(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.takes = 4 * time.Second
		p := n.bound("one")
		for i := range 30 {
			n.tell(p, restarted(int32(i)))
			pass(100 * time.Millisecond)
		}
		pass(20 * time.Second)
		sent := n.calls(http.MethodPatch, "one")
		if len(sent) != 2 || n.pod("one").Status.ContainerStatuses[0].RestartCount != 29 {
			t.Errorf("%d patches, status %+v", len(sent), n.pod("one").Status)
		}
		for i := range 30 {
			n.tell(n.bound(fmt.Sprint("p", i)), runningStatus())
		}
		pass(time.Minute)
		if n.most != maxInFlight {
			t.Errorf("%d requests at the same time", n.most)
		}
		for i := range 30 {
			n.wants(t, 1, fmt.Sprint("p", i))
		}
	})
}

// TestC_1_27_AtMostThreePatchesOfAStart: for any steps of an ordinary start and any
// pace, and with an init container, a probe, and several containers.
//
// Shows: C-1.27
func TestC_1_27_AtMostThreePatchesOfAStart(t *testing.T) {
	t.Parallel()
	creating, initializing := waitingFor("ContainerCreating"), waitingFor("PodInitializing")
	with := func(st v1.PodStatus, ip string, more ...v1.ContainerStatus) v1.PodStatus {
		st.PodIP = ip
		st.Conditions = append(st.Conditions, cond(v1.PodReadyToStartContainers, map[bool]v1.ConditionStatus{true: "True", false: "False"}[ip != ""]))
		st.ContainerStatuses = append(st.ContainerStatuses, more...)
		return st
	}
	second := func(state v1.ContainerState, ready bool) v1.ContainerStatus {
		return v1.ContainerStatus{Name: "d", State: state, Ready: ready}
	}
	starts := map[string][]v1.PodStatus{
		"plain": {
			with(statusOf(v1.PodPending, "False", creating), ""), with(statusOf(v1.PodPending, "False", creating), "10.0.0.2"),
			with(statusOf(v1.PodRunning, "True", runningState()), "10.0.0.2"),
		},
		"probe": {
			with(statusOf(v1.PodPending, "False", creating), ""), with(statusOf(v1.PodPending, "False", creating), "10.0.0.2"),
			with(statusOf(v1.PodRunning, "False", runningState()), "10.0.0.2"), with(statusOf(v1.PodRunning, "True", runningState()), "10.0.0.2"),
		},
		"init": {
			with(statusOf(v1.PodPending, "False", initializing), ""), with(statusOf(v1.PodPending, "False", initializing), "10.0.0.2"),
			with(statusOf(v1.PodPending, "False", creating), "10.0.0.2"), with(statusOf(v1.PodRunning, "True", runningState()), "10.0.0.2"),
		},
		"two": {
			with(statusOf(v1.PodPending, "False", creating), "", second(creating, false)),
			with(statusOf(v1.PodPending, "False", creating), "10.0.0.2", second(creating, false)),
			with(statusOf(v1.PodPending, "False", runningState()), "10.0.0.2", second(creating, false)),
			with(statusOf(v1.PodRunning, "True", runningState()), "10.0.0.2", second(runningState(), true)),
		},
	}
	for name, steps := range starts {
		for i, pace := range []time.Duration{0, 0, 50 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond, 1500 * time.Millisecond, 1500 * time.Millisecond} {
			takes := []time.Duration{5 * time.Millisecond, 400 * time.Millisecond}[i%2]
			t.Run(fmt.Sprint(name, pace, takes), func(t *testing.T) {
				inBubble(t, func(t *testing.T, n *node) {
					n.takes = takes
					p := n.bound("one")
					for _, st := range steps {
						n.tell(p, st)
						pass(pace)
					}
					said := since(t)
					pass(30 * time.Second)
					sent := n.calls("", "one")
					if len(sent) > 3 {
						t.Errorf("%d requests: %+v", len(sent), sent)
					}
					if last := sent[len(sent)-1].at; last > said+n.takes { // after that
						t.Errorf("the running status was sent %s late", last-said)
					}
					if is := n.pod("one").Status; is.Phase != v1.PodRunning || is.PodIP != "10.0.0.2" || status(&is, v1.PodReady) != "True" {
						t.Errorf("status %+v", is)
					}
				})
			})
		}
	}
}

// TestC_1_27_5_OthersChangesArePutRight, in 10 s, and not at once: two clients that
// disagree must not write as fast as they can.
//
// Shows: C-1.27.5
func TestC_1_27_5_OthersChangesArePutRight(t *testing.T) {
	withOne(t, func(t *testing.T, n *node, p *v1.Pod) {
		for range 50 {
			n.change("one", func(p *v1.Pod) {
				p.Status.Conditions[0].Status = "False"
				p.Status.Conditions = append(p.Status.Conditions, cond("example.com/gate", "True"))
			})
			pass(200 * time.Millisecond)
		}
		pass(11 * time.Second)
		is := n.pod("one").Status
		if status(&is, v1.PodReady) != "True" || status(&is, "example.com/gate") != "True" {
			t.Errorf("conditions %+v", is.Conditions)
		}
		if sent := n.calls("", "one"); len(sent) > 4 {
			t.Errorf("%d requests in 21 s", len(sent))
		}
		before := len(n.calls("", ""))
		pass(10 * time.Minute)
		if now := len(n.calls("", "")); now != before {
			t.Errorf("%d requests while nothing happens", now-before)
		}
	})
}

// TestC_1_27_SyncIsTimed: from the change of a status until the server has it, once for
// each patch.
//
// Shows: C-1.27
func TestC_1_27_SyncIsTimed(t *testing.T) {
	t.Parallel()
	var took []time.Duration
	inBubble(t, func(t *testing.T, n *node) {
		n.takes = 4 * time.Second
		n.tell(n.bound("one"), runningStatus())
		pass(time.Minute)
		n.wants(t, 1, "one")
		if len(took) != 1 || took[0] < 4*time.Second || took[0] > 6*time.Second {
			t.Errorf("one patch of 4 s was timed as %v", took)
		}
	}, func(c *Config) { c.Synced = func(d time.Duration) { took = append(took, d) } })
}

// TestC_1_27_4_EqualIsNotSent: parts of seconds, the order of conditions and empty
// lists make no difference.
//
// Shows: C-1.27.4
func TestC_1_27_4_EqualIsNotSent(t *testing.T) {
	withOne(t, func(t *testing.T, n *node, p *v1.Pod) {
		same := runningStatus()
		same.StartTime.Time = same.StartTime.Add(300 * time.Millisecond).In(time.FixedZone("x", 3600))
		same.Conditions[0], same.Conditions[2] = same.Conditions[2], same.Conditions[0]
		same.InitContainerStatuses = []v1.ContainerStatus{}
		n.tell(p, same)
		pass(time.Minute)
		n.wants(t, 1, "")
	})
}

// TestC_1_27_9_LastStatusThenDeletion, without outdated statuses.
//
// Shows: C-1.27.9
func TestC_1_27_9_LastStatusThenDeletion(t *testing.T) {
	withOne(t, func(t *testing.T, n *node, _ *v1.Pod) {
		p := n.change("one", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		pass(time.Second)
		n.tell(p, statusOf(v1.PodRunning, "False", endedState(0, "")), over) // no terminal phase
		pass(time.Second)
		sent := n.wants(t, 3, "one")
		if sent[1].method != http.MethodPatch || !strings.Contains(sent[1].body, `"phase":"Failed"`) || sent[2].method != http.MethodDelete {
			t.Errorf("sent %+v", sent)
		}
		n.tell(p, statusOf(v1.PodFailed, "False", endedState(0, "")), forGood)
		pass(time.Minute)
		n.wants(t, 3, "one")
		if n.keeps(t, 0); len(n.hashes) != 0 {
			t.Errorf("%d hashes are kept", len(n.hashes))
		}
	})
}

// TestF73_OldStatusNeverReachesTheNewPod, though the watch is late.
//
// Shows: F73
func TestF73_OldStatusNeverReachesTheNewPod(t *testing.T) {
	withOne(t, func(t *testing.T, n *node, old *v1.Pod) {
		n.server.mu.Lock()
		show := n.shows
		n.shows = nil // the watch is cut
		n.server.mu.Unlock()
		n.change("one", func(p *v1.Pod) { p.UID, p.Status = "uid-new", v1.PodStatus{Phase: v1.PodPending} })
		for i := range 20 {
			n.tell(old, restarted(int32(i)))
			pass(time.Second)
		}
		if is := n.pod("one"); is.Status.StartTime != nil || is.Status.Phase != v1.PodPending {
			t.Errorf("status %+v", is.Status)
		}
		n.wants(t, 3, "one") // a patch, a refused one, and a read
		show(n.pod("one"), false)
		n.tell(n.pod("one"), runningStatus())
		pass(time.Second)
		if is := n.pod("one"); is.Status.Phase != v1.PodRunning {
			t.Errorf("status %+v", is.Status)
		}
	})
}

// TestNeverSeenIsAskedFor: the sink reads a pod that the source does not show, once.
func TestNeverSeenIsAskedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.shows = nil
		p := n.bound("one")
		n.tell(p, runningStatus())
		absent := p.DeepCopy()
		absent.Name = "absent"
		n.tell(absent, runningStatus())
		pass(time.Minute)
		if sent := n.wants(t, 2, "one"); sent[0].method != http.MethodGet || n.pod("one").Status.Phase != v1.PodRunning {
			t.Errorf("sent %+v", sent)
		}
		n.wants(t, 1, "absent")
		n.tell(absent, runningStatus(), forGood)
		pass(time.Minute)
		n.keeps(t, 1)
	})
}

// TestC_1_34_ConditionsOfAResizeGo when the resize is over; conditions of others stay,
// in their order.
//
// Shows: C-1.34
func TestC_1_34_ConditionsOfAResizeGo(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p := n.bound("one")
		n.change("one", func(p *v1.Pod) { p.Status.Conditions = append(p.Status.Conditions, cond("example.com/gate", "True")) })
		st := runningStatus()
		st.Conditions = append(st.Conditions, cond(v1.PodResizePending, "True"))
		st.PodIPs = []v1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
		n.tell(p, st)
		pass(time.Second)
		is := n.pod("one").Status
		if status(&is, v1.PodResizePending) != "True" || len(is.PodIPs) != 2 {
			t.Errorf("status %+v", is)
		}
		st = runningStatus()
		st.PodIPs = []v1.PodIP{{IP: "10.0.0.2"}}
		n.tell(p, st)
		pass(time.Second)
		is = n.pod("one").Status
		var kinds []string
		for _, c := range is.Conditions {
			kinds = append(kinds, string(c.Type))
		}
		if got := strings.Join(kinds, " "); got != "Ready ContainersReady PodScheduled example.com/gate" || len(is.PodIPs) != 1 {
			t.Errorf("conditions %s, addresses %v", got, is.PodIPs)
		}
	})
}

// TestF73_PodThatWasThereBriefly: one pod was deleted, another created and deleted, all
// before the loop read its inbox. The sink keeps nothing of either.
//
// Shows: F73
func TestF73_PodThatWasThereBriefly(t *testing.T) {
	withOne(t, func(t *testing.T, n *node, old *v1.Pod) {
		n.tell(old, runningStatus(), forGood)
		pass(time.Second)
		brief := old.DeepCopy()
		brief.UID = "uid-brief"
		n.lose("one")
		n.shows(brief, false)
		n.shows(brief, true)
		pass(time.Second)
		n.keeps(t, 0)
	})
}
