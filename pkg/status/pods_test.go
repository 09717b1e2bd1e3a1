package status_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// A pod that the agent last reported as Running, and that the runtime does not have, is not shown
// as Running.
func TestPods_PodTheRuntimeDoesNotHave_IsNotRunning(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	p.Status.Phase = v1.PodRunning
	got := status.Pods(&[]pod.Actual{}, map[pod.Key]*v1.Pod{pod.KeyOf(p): p}, nil, nil, time.Now())
	if len(got) == 1 && got[0].Status.Phase == v1.PodRunning {
		t.Error("a pod that the runtime does not have is shown as Running")
	}
}

// A pod that a drain of the node has stopped has the agent's reported status, and is not shown as
// Terminating.
func TestPods_StoppedPodOfADrainedNode_ShowsTheReason(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}}
	p.Status.Phase, p.Status.Reason = v1.PodPending, "NodeDrained"
	key := pod.KeyOf(p)
	have := []pod.Actual{{Key: key, UID: "u", Containers: map[string]pod.Container{"c": {Name: "c", State: pod.StateExited}}}}
	records := []pod.Record{{Key: key, UID: "u", Instance: 1, StopSince: time.Now().Add(-time.Hour), StopAsked: true}}
	got := status.Pods(&have, map[pod.Key]*v1.Pod{key: p}, records, nil, time.Now())
	if len(got) != 1 || got[0].Status.Reason != "NodeDrained" || got[0].DeletionTimestamp != nil {
		t.Errorf("%+v", got)
	}
}
