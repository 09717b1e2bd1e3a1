package status_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/status"
)

func waiting(reason string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
}

func ended(code int32, reason string) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
}

// TestSummaryStatuses compares the status column with kubectl's.
//
// Shows: C-1.26
func TestSummaryStatuses(t *testing.T) {
	t.Parallel()
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	ready := []v1.PodCondition{{Type: v1.PodInitialized, Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionTrue}}
	initialised := ready[:1]
	now := metav1.Now()
	cs := func(states ...v1.ContainerState) (list []v1.ContainerStatus) {
		for _, s := range states {
			list = append(list, v1.ContainerStatus{State: s, Ready: s.Running != nil})
		}
		return list
	}
	for _, c := range []struct {
		name    string
		status  v1.PodStatus
		deleted bool
		want    string
	}{
		{"no status", v1.PodStatus{}, false, "0/2 "},
		{"pending", v1.PodStatus{Phase: v1.PodPending}, false, "0/2 Pending"},
		{"both run", v1.PodStatus{Phase: v1.PodRunning, Conditions: ready, ContainerStatuses: cs(running, running)}, false, "2/2 Running"},
		{"creating", v1.PodStatus{Phase: v1.PodPending, Conditions: initialised, ContainerStatuses: cs(waiting("ContainerCreating"), waiting("ContainerCreating"))}, false, "0/2 ContainerCreating"},
		{"one in a crash loop", v1.PodStatus{Phase: v1.PodRunning, Conditions: initialised, ContainerStatuses: cs(running, waiting("CrashLoopBackOff"))}, false, "1/2 CrashLoopBackOff"},
		{"one completed, one ready", v1.PodStatus{Phase: v1.PodRunning, Conditions: ready, ContainerStatuses: cs(running, ended(0, "Completed"))}, false, "1/2 Running"},
		{"one completed, pod not ready", v1.PodStatus{Phase: v1.PodRunning, Conditions: initialised, ContainerStatuses: cs(running, ended(0, "Completed"))}, false, "1/2 NotReady"},
		{"completed", v1.PodStatus{Phase: v1.PodSucceeded, Conditions: initialised, ContainerStatuses: cs(ended(0, "Completed"), ended(0, "Completed"))}, false, "0/2 Completed"},
		{"exit code", v1.PodStatus{Phase: v1.PodFailed, Conditions: initialised, ContainerStatuses: cs(ended(3, ""))}, false, "0/2 ExitCode:3"},
		{"reason of the pod", v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted"}, false, "0/2 Evicted"},
		{"not admitted", v1.PodStatus{Phase: v1.PodPending, Reason: "NodePorts", Conditions: initialised, ContainerStatuses: cs(waiting("ContainerCreating"))}, false, "0/2 NodePorts"},
		{"first init container", v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: cs(running, waiting("PodInitializing"))}, false, "0/2 Init:0/2"},
		{"second init container", v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: cs(ended(0, "Completed"), running)}, false, "0/2 Init:1/2"},
		{"init container in a crash loop", v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: cs(waiting("CrashLoopBackOff"), waiting("PodInitializing"))}, false, "0/2 Init:CrashLoopBackOff"},
		{"init container failed", v1.PodStatus{Phase: v1.PodFailed, InitContainerStatuses: cs(ended(1, "Error"))}, false, "0/2 Init:Error"},
		{"init container, not admitted", v1.PodStatus{Phase: v1.PodPending, Reason: "NodePorts", InitContainerStatuses: cs(waiting("PodInitializing"))}, false, "0/2 NodePorts"},
		{"one completed, one failed", v1.PodStatus{Phase: v1.PodFailed, Conditions: initialised, ContainerStatuses: cs(ended(0, "Completed"), ended(1, "Error"))}, false, "0/2 Error"},
		{"out of memory", v1.PodStatus{Phase: v1.PodFailed, Conditions: initialised, ContainerStatuses: cs(ended(137, "OOMKilled"))}, false, "0/2 OOMKilled"},
		{"init container out of memory", v1.PodStatus{Phase: v1.PodFailed, InitContainerStatuses: cs(ended(0, "Completed"), ended(137, "OOMKilled"))}, false, "0/2 Init:OOMKilled"},
		{"init container ended by a signal", v1.PodStatus{Phase: v1.PodFailed, InitContainerStatuses: cs(v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1, Signal: 9}})}, false, "0/2 Init:Signal:9"},
		{"init containers are done", v1.PodStatus{Phase: v1.PodPending, Conditions: initialised, InitContainerStatuses: cs(ended(0, "Completed"), ended(0, "Completed")), ContainerStatuses: cs(waiting("PodInitializing"), waiting("PodInitializing"))}, false, "0/2 PodInitializing"},
		{"waits for another pod", v1.PodStatus{Phase: v1.PodPending, Reason: status.WaitsForPod, Message: "waits for pod db to be ready", Conditions: initialised, ContainerStatuses: cs(waiting("ContainerCreating"))}, false, "0/2 WaitsForPod"},
		{"rejected permanently", v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu"}, false, "0/2 OutOfcpu"},
		{"failed while it is being deleted", v1.PodStatus{Phase: v1.PodFailed, Conditions: initialised, ContainerStatuses: cs(ended(143, "Error"))}, true, "0/2 Error"},
		{"node lost", v1.PodStatus{Phase: v1.PodRunning, Reason: "NodeLost"}, true, "0/2 Unknown"},
		{"terminating", v1.PodStatus{Phase: v1.PodRunning, Conditions: ready, ContainerStatuses: cs(running, running)}, true, "2/2 Terminating"},
	} {
		p := v1.Pod{Spec: v1.PodSpec{InitContainers: make([]v1.Container, 2), Containers: make([]v1.Container, 2)}, Status: c.status}
		if c.deleted {
			p.DeletionTimestamp = &now
		}
		l := status.Summary(p)
		if got := l.ReadyText() + " " + l.Status; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSummaryRestarts(t *testing.T) {
	t.Parallel()
	last := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	restarted := func(n int32, ago time.Duration) v1.ContainerStatus {
		return v1.ContainerStatus{RestartCount: n, LastTerminationState: v1.ContainerState{
			Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(last.Add(-ago))},
		}}
	}
	p := v1.Pod{Status: v1.PodStatus{
		Conditions:            []v1.PodCondition{{Type: v1.PodInitialized, Status: v1.ConditionTrue}},
		InitContainerStatuses: []v1.ContainerStatus{restarted(9, 0)},
		ContainerStatuses:     []v1.ContainerStatus{restarted(2, time.Hour), restarted(3, time.Minute)},
	}}
	if l := status.Summary(p); l.Restarts != 5 || !l.LastRestart.Equal(last.Add(-time.Minute)) {
		t.Errorf("%+v, want 5 restarts, the last a minute ago", l)
	}
}

// TestSummarySidecars counts sidecars as kubectl does.
func TestSummarySidecars(t *testing.T) {
	t.Parallel()
	last := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	spec := v1.PodSpec{
		InitContainers: []v1.Container{
			{Name: "proxy", RestartPolicy: new(v1.ContainerRestartPolicyAlways)},
			{Name: "setup", RestartPolicy: new(v1.ContainerRestartPolicyOnFailure)}, // no sidecar
		},
		Containers:     []v1.Container{{Name: "web"}},
		ReadinessGates: []v1.PodReadinessGate{{ConditionType: "a"}, {ConditionType: "b"}},
	}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	proxy := v1.ContainerStatus{Name: "proxy", State: running, Started: new(true), Ready: true, RestartCount: 2, LastTerminationState: v1.ContainerState{
		Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(last)},
	}}
	starting := proxy
	starting.Started, starting.Ready = new(false), false
	setup := func(s v1.ContainerState) v1.ContainerStatus {
		return v1.ContainerStatus{Name: "setup", State: s, RestartCount: 4}
	}
	web := v1.ContainerStatus{Name: "web", State: running, Ready: true, RestartCount: 1}
	initialised := []v1.PodCondition{{Type: v1.PodInitialized, Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionTrue}, {Type: "b", Status: v1.ConditionTrue}}
	for _, c := range []struct {
		name       string
		init       []v1.ContainerStatus
		regular    []v1.ContainerStatus
		conditions []v1.PodCondition
		want       status.Line
	}{
		{"all run", []v1.ContainerStatus{proxy, setup(ended(0, "Completed"))}, []v1.ContainerStatus{web}, initialised,
			status.Line{Status: "Running", Ready: 2, Containers: 2, Restarts: 3, LastRestart: last, GatesTrue: 1, Gates: 2}},
		{"sidecar starts", []v1.ContainerStatus{starting, setup(waiting("PodInitializing"))}, []v1.ContainerStatus{{Name: "web", State: waiting("PodInitializing")}}, nil,
			status.Line{Status: "Init:0/2", Containers: 2, Restarts: 2, LastRestart: last, Gates: 2}},
		{"sidecar has started", []v1.ContainerStatus{proxy, setup(running)}, []v1.ContainerStatus{{Name: "web", State: waiting("PodInitializing")}}, nil,
			status.Line{Status: "Init:1/2", Ready: 1, Containers: 2, Restarts: 6, LastRestart: last, Gates: 2}},
		{"sidecar in a crash loop later on", []v1.ContainerStatus{{Name: "proxy", State: waiting("CrashLoopBackOff"), RestartCount: 2}, setup(ended(0, "Completed"))}, []v1.ContainerStatus{web}, initialised,
			status.Line{Status: "Init:CrashLoopBackOff", Ready: 1, Containers: 2, Restarts: 3, GatesTrue: 1, Gates: 2}},
	} {
		p := v1.Pod{Spec: spec, Status: v1.PodStatus{Phase: v1.PodRunning, InitContainerStatuses: c.init, ContainerStatuses: c.regular, Conditions: c.conditions}}
		if diff := cmp.Diff(c.want, status.Summary(p)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
