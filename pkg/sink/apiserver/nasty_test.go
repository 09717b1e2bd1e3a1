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

// TestC_1_27_4_AServerThatKeepsNotAll: a server without a feature drops a field of each
// status. The sink sends changes, but does not repeat the field that the server drops;
// it still corrects changes by other clients.
//
// Shows: C-1.27.4
func TestC_1_27_4_AServerThatKeepsNotAll(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.drops = func(p *v1.Pod) {
			p.Status.ObservedGeneration = 0
			for i := range p.Status.ContainerStatuses {
				p.Status.ContainerStatuses[i].User = nil
			}
		}
		p := n.bound("one")
		says := func(restarts int32) {
			st := restarted(restarts)
			st.ContainerStatuses[0].User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: 1000}}
			n.tell(p, st)
		}
		says(0)
		pass(time.Minute)
		if sent := n.calls("", "one"); len(sent) > 2 {
			t.Errorf("%d requests in a minute", len(sent))
		}
		for i := range 10 {
			says(int32(i + 1))
			pass(time.Minute)
		}
		if sent := n.calls("", "one"); len(sent) > 22 || n.pod("one").Status.ContainerStatuses[0].RestartCount != 10 {
			t.Errorf("%d requests for ten restarts, %d restarts", len(sent), n.pod("one").Status.ContainerStatuses[0].RestartCount)
		}
		n.change("one", func(p *v1.Pod) { p.Status.Conditions[0].Status, p.Status.PodIP = "False", "1.2.3.4" })
		pass(time.Minute)
		if is := n.pod("one").Status; is.PodIP != "" || status(&is, v1.PodReady) != "True" {
			t.Errorf("another client's change stays: %+v", is)
		}
	})
}

// TestC_1_27_RejectedPod_IsForgottenByTheWatch: a rejected pod is reported once, and no
// report says later that it is gone: the watch does.
//
// Shows: C-1.27
func TestC_1_27_RejectedPod_IsForgottenByTheWatch(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		for i := range 20 {
			p := n.bound(fmt.Sprintf("p%02d", i))
			n.tell(p, v1.PodStatus{Phase: v1.PodFailed, Reason: "UnsupportedField"}, over)
			pass(5 * time.Second)
			if is := n.pod(p.Name).Status; is.Phase != v1.PodFailed {
				t.Errorf("%+v", is)
			}
			n.lose(p.Name)
			pass(5 * time.Second)
		}
		pass(11 * time.Minute)
		n.keeps(t, 0)
	})
}

// TestC_1_13_APodInAMirrorsPlaceGoes: an API pod that has the name of a static pod
// never runs here; once it is deleted it goes, and the mirror is created.
//
// Shows: C-1.13
func TestC_1_13_APodInAMirrorsPlaceGoes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.bound("web")
		static := staticPod("web", "h1")
		n.tell(static, runningStatus(), ofFile)
		pass(time.Minute)
		if sent := n.calls("", "web"); len(sent) != 1 || !strings.Contains(sent[0].body, nameTakenBy) {
			t.Errorf("%+v", sent)
		}
		n.change("web", func(p *v1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now().Add(30 * time.Second)}, new(int64(30))
		})
		pass(20 * time.Second)
		if n.pod("web").UID != "uid-web" {
			t.Error("it goes before its time is over")
		}
		pass(time.Minute)
		if is := n.pod("web"); is == nil || is.UID == "uid-web" || is.Status.Phase != v1.PodRunning {
			t.Errorf("the pod in its place: %+v", is)
		}
	})
}

// TestC_1_27_9_AnEndThatIsRefused: the sink deletes a pod of which nothing is left even
// if the server rejects its last status.
//
// Shows: C-1.27.9
func TestC_1_27_9_AnEndThatIsRefused(t *testing.T) {
	withOne(t, func(t *testing.T, n *node, _ *v1.Pod) {
		n.says(func(c call) (int, http.Header) {
			if c.method == http.MethodPatch {
				return http.StatusUnprocessableEntity, nil
			}
			return 0, nil
		})
		p := n.change("one", func(p *v1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now().Add(30 * time.Second)}, new(int64(30))
		})
		n.tell(p, statusOf(v1.PodRunning, "False", runningState()))
		pass(20 * time.Second)
		if n.pod("one") == nil {
			t.Fatal("it is removed while it stops")
		}
		n.tell(p, statusOf(v1.PodSucceeded, "False", endedState(0, "")), over)
		pass(5 * time.Minute)
		if is := n.pod("one"); is != nil {
			t.Errorf("the pod is never removed: %+v", n.calls("", "one"))
		}
	})
}

// A mirror from an older agent has observed generations, which a server does not let a status
// update clear: they stay, and each change of the status costs one patch. A new mirror has none.
//
// Shows: C-1.27.4
func TestMirror_ObservedGenerations_StayAsTheServerHasThem(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		set := func(st *v1.PodStatus, generation int64) {
			st.ObservedGeneration = generation
			for i := range st.Conditions {
				st.Conditions[i].ObservedGeneration = generation
			}
		}
		says := func(restarts int32) {
			st := restarted(restarts)
			set(&st, 3)
			n.tell(staticPod("one", "h"), st, ofFile)
			pass(time.Minute)
		}
		stays := func(generation int64, patches int) {
			t.Helper()
			is := n.pod("one").Status
			if is.ObservedGeneration != generation || generationOf(is.Conditions, v1.PodReady) != generation {
				t.Errorf("observed generations of %+v, want %d", is, generation)
			}
			if sent := n.calls(http.MethodPatch, "one"); len(sent) != patches {
				t.Errorf("%d patches, want %d: %+v", len(sent), patches, sent)
			}
		}
		says(0)
		stays(0, 1)
		n.change("one", func(p *v1.Pod) { set(&p.Status, 1) })
		pass(time.Minute)
		stays(1, 1)
		says(1)
		stays(1, 2)
		if n := n.pod("one").Status.ContainerStatuses[0].RestartCount; n != 1 {
			t.Errorf("%d restarts, want 1", n)
		}
	})
}
