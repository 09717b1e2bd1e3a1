package sink

import (
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/cluster"
)

// Shows: C-1.27
func TestOnOneServer(t *testing.T) {
	t.Parallel()
	c := server(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *agent)
	}{
		{"C_1_27_OrdinaryStart", ordinaryStart},
		{"C_1_27_8_OthersConditions", othersConditions},
		{"C_1_27_8_EndIsWithheld", endIsWithheld},
		{"C_1_26_15_EndStays", endStays},
		{"C_1_27_9_Deletion", deletion},
		{"C_1_27_10_DeletedBeforeStart", deletedBeforeStart},
		{"F73_AnotherPodOfTheName", anotherPod},
		{"F74_ForceDeleteAndFinalizers", finalizers},
		{"C_1_13_Mirror", mirror},
		{"C_1_13_6_Orphans", orphans},
		{"F75_MirrorsComeBack", mirrorsComeBack},
		{"F75_MirrorsRefused", mirrorsRefused},
		{"F75_NameTaken", nameTaken},
		{"Events", events},
	} {
		node := strings.ToLower(strings.ReplaceAll(test.name, "_", "-"))
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := start(t, c, node)
			test.run(t, a)
			a.wire.forbidden(t)
		})
	}
}

// ordinaryStart: five statuses of the engine need three patches at most, and the last one
// stays.
func ordinaryStart(t *testing.T, a *agent) {
	p := a.c.CreatePod(t, cluster.Pod(a.name, "start"))
	for _, step := range []func(*v1.PodStatus){pending(p), sandboxed(p), running(p, false), running(p, true), running(p, true)} {
		a.says(p, step)
	}
	is := a.until(t, "start", "ready", func(p *v1.Pod) bool {
		c := find(p, v1.PodReady)
		return c != nil && c.Status == v1.ConditionTrue
	})
	if is.Status.PodIP != "10.0.0.7" || is.Status.ObservedGeneration != is.Generation || is.Status.QOSClass != v1.PodQOSBestEffort || is.Status.HostIP != "192.0.2.1" {
		t.Errorf("status %+v", is.Status)
	}
	// No more requests follow, though every pod is compared again (C-1.27.4, C-1.27.5).
	a.compared(t)
	if n := len(a.wire.of("", "start")); n > 3 || len(a.wire.of(http.MethodPatch, "start")) != n {
		t.Errorf("%d requests: %+v", n, a.wire.of("", "start"))
	}
	if now := a.c.GetPod(t, "default", "start"); now.ResourceVersion != is.ResourceVersion {
		t.Error("the pod was written to again")
	}
	// The agent corrects changes by another client (C-1.27.5).
	a.c.PatchPod(t, "default", "start", `{"status": {"podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}]}}`, "status")
	a.until(t, "start", "put right", func(p *v1.Pod) bool { return p.Status.PodIP == "10.0.0.7" && len(p.Status.PodIPs) == 1 })
}

func othersConditions(t *testing.T, a *agent) {
	p := a.c.CreatePod(t, cluster.Pod(a.name, "gates"))
	a.says(p, pending(p))
	a.until(t, "gates", "accepted", func(p *v1.Pod) bool { return p.Status.StartTime != nil })
	a.c.PatchPod(t, "default", "gates", `{"status": {"conditions": [{"type": "example.com/gate", "status": "True"}, {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}}`, "status")
	a.says(p, running(p, true))
	// A JSON merge patch replaced the list: the node's own come back, at once or when pods
	// are compared again (C-1.27.5), and others stay.
	is := a.until(t, "gates", "running, with the node's own conditions", both(phase(v1.PodRunning), func(p *v1.Pod) bool {
		return find(p, v1.PodInitialized) != nil && find(p, v1.PodScheduled) != nil
	}))
	if find(is, "example.com/gate") == nil || find(is, v1.DisruptionTarget) == nil {
		t.Errorf("conditions %+v", is.Status)
	}
	a.says(p, ended(p, v1.PodSucceeded, 0))
	is = a.until(t, "gates", "over", phase(v1.PodSucceeded))
	if c := find(is, "example.com/gate"); c == nil || c.Status != v1.ConditionTrue {
		t.Errorf("conditions %+v", is.Status.Conditions)
	}
}

func endIsWithheld(t *testing.T, a *agent) {
	p := a.c.CreatePod(t, cluster.Pod(a.name, "withheld"))
	a.says(p, running(p, true))
	a.until(t, "withheld", "running", phase(v1.PodRunning))
	a.says(p, func(s *v1.PodStatus) {
		running(p, false)(s)
		s.Phase, s.Reason = v1.PodFailed, "DeadlineExceeded"
		s.Conditions = append(s.Conditions, condition(v1.DisruptionTarget, true))
	})
	is := a.until(t, "withheld", "unready", func(p *v1.Pod) bool { return find(p, v1.PodReady).Status == v1.ConditionFalse })
	if is.Status.Phase != v1.PodRunning || is.Status.Reason != "" || find(is, v1.DisruptionTarget) != nil {
		t.Errorf("while a container runs: %+v", is.Status)
	}
	a.says(p, func(s *v1.PodStatus) {
		ended(p, v1.PodFailed, 137)(s)
		s.Reason = "DeadlineExceeded"
		s.Conditions = append(s.Conditions, condition(v1.DisruptionTarget, true))
	})
	is = a.until(t, "withheld", "over", phase(v1.PodFailed))
	if is.Status.Reason != "DeadlineExceeded" || find(is, v1.DisruptionTarget) == nil || find(is, v1.PodReady).Status != v1.ConditionFalse {
		t.Errorf("status %+v", is.Status)
	}
}

func endStays(t *testing.T, a *agent) {
	p := a.c.CreatePod(t, cluster.Pod(a.name, "over"))
	a.says(p, ended(p, v1.PodSucceeded, 0))
	a.until(t, "over", "over", phase(v1.PodSucceeded))
	a.says(p, func(s *v1.PodStatus) {
		running(p, true)(s)
		s.PodIP, s.PodIPs = "10.0.0.8", []v1.PodIP{{IP: "10.0.0.8"}}
	})
	is := a.until(t, "over", "reported", func(p *v1.Pod) bool { return p.Status.PodIP == "10.0.0.8" })
	if is.Status.Phase != v1.PodSucceeded || find(is, v1.PodReady).Status != v1.ConditionFalse {
		t.Errorf("an end was taken back: %+v", is.Status)
	}
	if n := a.log.Count("Phase not sent"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func deletion(t *testing.T, a *agent) {
	p := cluster.Pod(a.name, "goes")
	p = a.c.CreatePod(t, p)
	a.says(p, running(p, true))
	a.until(t, "goes", "running", phase(v1.PodRunning))
	a.c.DeletePod(t, "default", "goes", 30)
	a.says(p, running(p, false))
	a.until(t, "goes", "unready", func(p *v1.Pod) bool { return find(p, v1.PodReady).Status == v1.ConditionFalse })
	a.says(p, ended(p, v1.PodFailed, 143)) // volumes are still there
	is := a.until(t, "goes", "over", phase(v1.PodFailed))
	if !deleting(is) || len(a.wire.of(http.MethodDelete, "goes")) != 0 {
		t.Fatal("it went before it was finished")
	}
	a.says(p, ended(p, v1.PodFailed, 143), finished)
	a.until(t, "goes", "gone", missing)
	a.says(p, ended(p, v1.PodFailed, 143), goneForGood)
	if n := len(a.wire.awaits(t, 1, http.MethodDelete, "goes")); n != 1 {
		t.Errorf("%d deletions", n)
	}
}

// deletedBeforeStart: the final status is sent before the object is deleted.
func deletedBeforeStart(t *testing.T, a *agent) {
	a.c.CreatePod(t, cluster.Pod(a.name, "never"))
	a.c.DeletePod(t, "default", "never", 30)
	p := a.c.GetPod(t, "default", "never")
	a.says(p, pending(p), finished)
	a.until(t, "never", "gone", missing)
	sent := a.wire.awaits(t, 2, "", "never")
	if len(sent) != 2 || sent[0].method != http.MethodPatch || sent[1].method != http.MethodDelete {
		t.Errorf("sent %+v, want the last status and the deletion", sent)
	}
}

func anotherPod(t *testing.T, a *agent) {
	old := a.c.CreatePod(t, cluster.Pod(a.name, "same"))
	a.says(old, running(old, true))
	a.until(t, "same", "running", phase(v1.PodRunning))
	a.c.DeletePod(t, "default", "same", 0)
	fresh := a.c.CreatePod(t, cluster.Pod(a.name, "same"))
	a.says(old, ended(old, v1.PodFailed, 137))
	a.says(old, ended(old, v1.PodFailed, 137), finished)
	a.compared(t)
	if is := a.c.GetPod(t, "default", "same"); is.UID != fresh.UID || is.Status.StartTime != nil || is.Status.Phase != v1.PodPending {
		t.Errorf("the new pod has the old one's status: %+v", is.Status)
	}
	a.says(fresh, running(fresh, true))
	a.until(t, "same", "running", phase(v1.PodRunning))
}

func finalizers(t *testing.T, a *agent) {
	held := cluster.Pod(a.name, "held")
	held.Finalizers = []string{"example.com/hold"}
	p := a.c.CreatePod(t, held)
	a.says(p, running(p, true))
	a.until(t, "held", "running", phase(v1.PodRunning))
	a.c.DeletePod(t, "default", "held", 30)
	a.says(p, ended(p, v1.PodFailed, 143), finished)
	a.until(t, "held", "with no grace left", func(p *v1.Pod) bool { return *p.DeletionGracePeriodSeconds == 0 })
	a.c.PatchPod(t, "default", "held", `{"metadata": {"labels": {"touched": "yes"}}}`)
	a.compared(t)
	if n := len(a.wire.awaits(t, 1, http.MethodDelete, "held")); n != 1 {
		t.Errorf("%d deletions", n)
	}
	a.c.PatchPod(t, "default", "held", `{"metadata": {"finalizers": null}}`)
	a.until(t, "held", "gone", missing)

	p = a.c.CreatePod(t, cluster.Pod(a.name, "forced"))
	a.says(p, running(p, true))
	a.until(t, "forced", "running", phase(v1.PodRunning))
	a.c.DeletePod(t, "default", "forced", 0)
	a.says(p, ended(p, v1.PodFailed, 143))
	a.says(p, ended(p, v1.PodFailed, 143), goneForGood)
	for _, e := range a.wire.of(http.MethodDelete, "forced") {
		t.Errorf("sent %+v", e)
	}
}
