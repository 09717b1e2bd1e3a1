package ui

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestRolloutStatus_PodsAreNotObservedYet_IsNotDone: a status that counts pods by the reports of the
// previous agent, as after a reboot, completes no rollout.
func TestRolloutStatus_PodsAreNotObservedYet_IsNotDone(t *testing.T) {
	t.Parallel()
	two, meta := int32(2), metav1.ObjectMeta{Name: "web"}
	for kind, c := range map[string]struct {
		object       metav1.Object
		waits, ended string
	}{
		pod.KindDeployment: {
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &two}, Status: appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}},
			`Waiting for deployment "web" rollout to finish: 1 pods have not been observed since the agent started...`, `deployment "web" successfully rolled out`,
		},
		pod.KindStatefulSet: {
			&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &two}, Status: appsv1.StatefulSetStatus{ReadyReplicas: 2, CurrentReplicas: 2, CurrentRevision: "a", UpdateRevision: "a"}},
			`Waiting for statefulset "web" rollout to finish: 1 pods have not been observed since the agent started...`, "statefulset rolling update complete 2 pods at revision a...",
		},
		pod.KindDaemonSet: {
			&appsv1.DaemonSet{ObjectMeta: meta, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberAvailable: 1}},
			`Waiting for daemon set "web" rollout to finish: 1 pods have not been observed since the agent started...`, `daemon set "web" successfully rolled out`,
		},
	} {
		w := &Workload{Object: c.object, Kind: kind, Unreported: 1}
		if text, done, err := RolloutStatus(w); text != c.waits || done || err != nil {
			t.Errorf("%s before the report: %q, %v, %v", kind, text, done, err)
		}
		w.Unreported = 0
		if text, done, err := RolloutStatus(w); text != c.ended || !done || err != nil {
			t.Errorf("%s after it: %q, %v, %v", kind, text, done, err)
		}
	}
}
