package cmd

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

// TestWait_PodsAreNotObservedYet_ConditionOfADeploymentIsNotMet: right after a reboot, the condition comes
// from the reports of the previous agent. The result of a Job does not change any more.
func TestWait_PodsAreNotObservedYet_ConditionOfADeploymentIsNotMet(t *testing.T) {
	t.Parallel()
	available := []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: v1.ConditionTrue}}
	complete := []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: v1.ConditionTrue}}
	for name, c := range map[string]struct {
		object     metav1.Object
		kind, goal string
		unreported int
		met        bool
	}{
		"observed":     {&appsv1.Deployment{Status: appsv1.DeploymentStatus{Conditions: available}}, pod.KindDeployment, "Available", 0, true},
		"not observed": {&appsv1.Deployment{Status: appsv1.DeploymentStatus{Conditions: available}}, pod.KindDeployment, "Available", 1, false},
		"a Job":        {&batchv1.Job{Status: batchv1.JobStatus{Conditions: complete}}, pod.KindJob, "Complete", 1, true},
	} {
		g := goal{kind: "condition", name: c.goal, value: "True"}
		if got := g.workloadMet(&ui.Workload{Object: c.object, Kind: c.kind, Unreported: c.unreported}); got != c.met {
			t.Errorf("%s: %v, want %v", name, got, c.met)
		}
	}
}
