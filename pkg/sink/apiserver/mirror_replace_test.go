package apiserver

import (
	"net/http"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

func replacing(r *pod.StatusReport) { r.Replacing = true }

func startingStatus() v1.PodStatus {
	return statusOf(v1.PodPending, "False", waitingFor("ContainerCreating"))
}

// edited reports that pod "one" runs, and then that it stops after an edit. It returns the old mirror.
func (n *node) edited(t *testing.T) *v1.Pod {
	t.Helper()
	n.tell(staticPod("one", "h1"), runningStatus(), ofFile)
	pass(time.Minute)
	old := n.pod("one")
	if !hasHash(old, "h1") {
		t.Fatalf("mirror %+v", old)
	}
	n.tell(staticPod("one", "h2"), startingStatus(), ofFile, replacing)
	pass(time.Minute)
	return old
}

// keepsMirror fails the test unless the server has old as it was.
func (n *node) keepsMirror(t *testing.T, old *v1.Pod) {
	t.Helper()
	if is := n.pod("one"); is == nil || is.UID != old.UID || is.ResourceVersion != old.ResourceVersion {
		t.Fatalf("the old mirror is %+v, want it unchanged", is)
	}
}

// hasNewMirror reports that the old containers have stopped, and fails the test unless the server
// gets the mirror of the edited pod.
func (n *node) hasNewMirror(t *testing.T, old *v1.Pod) {
	t.Helper()
	n.tell(staticPod("one", "h2"), startingStatus(), ofFile)
	pass(time.Second)
	if is := n.pod("one"); !hasHash(is, "h2") || is.UID == old.UID || is.Status.Phase != v1.PodPending {
		t.Errorf("mirror %+v", is)
	}
	n.tell(staticPod("one", "h2"), startingStatus(), ofFile, forGood)
	pass(time.Second)
	if n.pod("one") != nil {
		t.Error("the mirror of a removed pod stays")
	}
	n.keeps(t, 0)
}

// TestMirror_PodIsReplaced_OldOneStaysUntilItHasStopped with the last status of the old pod, however
// often the manifest is edited meanwhile.
//
// Shows: C-1.13.9
func TestMirror_PodIsReplaced_OldOneStaysUntilItHasStopped(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		old := n.edited(t)
		n.keepsMirror(t, old)
		for _, hash := range []string{"h3", "h4", "h2"} {
			n.tell(staticPod("one", hash), startingStatus(), ofFile, replacing)
			pass(time.Minute)
			n.keepsMirror(t, old)
		}
		n.hasNewMirror(t, old)
	})
}

// TestMirror_EditIsReverted_GetsTheStatus: the mirror is that of the desired pod again. The same holds
// for a restart on request, which changes no definition.
//
// Shows: C-1.13.9
func TestMirror_EditIsReverted_GetsTheStatus(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		old := n.edited(t)
		n.tell(staticPod("one", "h1"), startingStatus(), ofFile, replacing)
		pass(10 * time.Second)
		if is := n.pod("one"); is.UID != old.UID || is.Status.Phase != v1.PodPending {
			t.Errorf("mirror %+v", is)
		}
	})
}

// TestMirror_DeletedWhilePodIsReplaced_IsNotMadeEarly: a client deletes the old mirror, at once or
// with a grace period.
//
// Shows: C-1.13.9
func TestMirror_DeletedWhilePodIsReplaced_IsNotMadeEarly(t *testing.T) {
	t.Parallel()
	for _, atOnce := range []bool{false, true} {
		inBubble(t, func(t *testing.T, n *node) {
			old := n.edited(t)
			if atOnce {
				n.lose("one")
			} else {
				n.change("one", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
			}
			pass(time.Minute)
			if is := n.pod("one"); (is == nil) != atOnce || is != nil && is.UID != old.UID {
				t.Errorf("mirror %+v", is)
			}
			n.hasNewMirror(t, old)
		})
	}
}

// TestMirror_ServerAwayWhilePodIsReplaced_IsReplacedWhenItIsBack: the outage covers the edit, or the
// end of the old pod.
//
// Shows: C-1.13.9
func TestMirror_ServerAwayWhilePodIsReplaced_IsReplacedWhenItIsBack(t *testing.T) {
	t.Parallel()
	for name, until := range map[string]time.Duration{"back before the stop ends": time.Minute, "back after it": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, n *node) {
				n.tell(staticPod("one", "h1"), runningStatus(), ofFile)
				pass(time.Minute)
				old := n.pod("one")
				away := time.Now().Add(until)
				n.says(func(call) (int, http.Header) {
					if time.Now().Before(away) {
						return -1, nil
					}
					return 0, nil
				})
				n.tell(staticPod("one", "h2"), startingStatus(), ofFile, replacing)
				pass(30 * time.Minute)
				n.keepsMirror(t, old)
				n.tell(staticPod("one", "h2"), startingStatus(), ofFile)
				pass(time.Hour)
				n.hasNewMirror(t, old)
			})
		})
	}
}

// TestMirror_AgentRestartsWhilePodIsReplaced_OldOneStays: the next agent finds the mirror at the
// server, and deletes it when the old pod has stopped, or was removed meanwhile.
//
// Shows: C-1.13.9, C-1.13.6
func TestMirror_AgentRestartsWhilePodIsReplaced_OldOneStays(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		inBubble(t, func(t *testing.T, n *node) {
			old := mirrorOf(staticPod("one", "h1"), "n1", "node-uid", time.Now())
			old.UID = "was-there"
			old.Status = runningStatus()
			n.server.mu.Lock()
			n.store(old)
			n.server.mu.Unlock()
			pass(time.Minute)
			n.tell(staticPod("one", "h2"), startingStatus(), ofFile, replacing)
			n.Synced()
			pass(time.Hour)
			n.keepsMirror(t, old)
			if removed {
				n.tell(staticPod("one", "h2"), startingStatus(), ofFile, forGood)
				pass(time.Second)
				if n.pod("one") != nil {
					t.Error("the old mirror stays")
				}
				n.keeps(t, 0)
				return
			}
			n.hasNewMirror(t, old)
		})
	}
}
