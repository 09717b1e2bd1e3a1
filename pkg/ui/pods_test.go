package ui

import (
	"io"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

func TestPodsTable(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	start := metav1.NewTime(now.Add(-130 * time.Second))
	web := v1.ContainerStatus{
		Name: "a", Ready: true, RestartCount: 2, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
		LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(now.Add(-time.Minute))}},
	}
	running := v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1", Annotations: map[string]string{pod.AnnotationConfigSource: "file"}},
		Spec:       v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "a"}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.88.0.7", StartTime: &start, ContainerStatuses: []v1.ContainerStatus{web}},
	}
	pending := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "dns-n1"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a"}}}, Status: v1.PodStatus{Phase: v1.PodPending}}
	mesh := *running.DeepCopy()
	mesh.Name = "mesh"
	mesh.Annotations[pod.AnnotationConfigSource] = "api"
	mesh.Spec.InitContainers = []v1.Container{{Name: "proxy", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	mesh.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/on"}, {ConditionType: "example.com/in"}}
	mesh.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "proxy", Started: new(true), RestartCount: 1, State: web.State}}
	mesh.Status.Conditions = []v1.PodCondition{{Type: v1.PodInitialized, Status: v1.ConditionTrue}, {Type: "example.com/in", Status: v1.ConditionTrue}}
	pods := []v1.Pod{mesh, running, pending}
	v := New(io.Discard, Screen{})
	golden(t, "pods.txt", v.Pods(pods, false, now)+v.Pods(pods, true, now)+PodNames(pods))
}

// TestPodsTableColours: pending pods have another colour than failed ones.
func TestPodsTableColours(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		word  string
		ready int
		want  tone
	}{
		{"Running", 2, good},
		{"Running", 1, change},
		{"Completed", 0, faint},
		{"Init:0/2", 0, change},
		{"PodInitializing", 0, change},
		{"Terminating", 2, change},
		{"NotReady", 1, change},
		{"Init:Error", 0, bad},
		{"Init:OOMKilled", 0, bad},
		{"CrashLoopBackOff", 1, bad},
		{"NodePorts", 0, bad},
		{"ExitCode:3", 0, bad},
	} {
		if got := statusTone(status.Line{Status: c.word, Ready: c.ready, Containers: 2}); got != c.want {
			t.Errorf("%s %d/2: tone %d, want %d", c.word, c.ready, got, c.want)
		}
	}
}
