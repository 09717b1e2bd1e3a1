package status_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// A pod that an agent last reported as running, and of which the runtime shows nothing, is
// not shown as running.
func TestGetPodsShowsNoGhostAsRunning(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ghost"}}
	p.Status.Phase = v1.PodRunning
	got := status.Pods(&[]pod.Actual{}, map[pod.Key]*v1.Pod{pod.KeyOf(p): p}, nil, nil, time.Now())
	if len(got) == 1 && got[0].Status.Phase == v1.PodRunning {
		t.Error("a pod of which nothing is on the runtime is shown as Running")
	}
}
