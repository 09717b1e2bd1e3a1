package podview_test

import (
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// TestPullDelay_DoublesToFiveMinutes shows the delays of the kubelet.
//
// Shows: C-1.39
func TestPullDelay_DoublesToFiveMinutes(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{
		1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 100: 5 * time.Minute,
	} {
		if got := podview.PullDelay(failures); got != want {
			t.Errorf("after %d failures %v, want %v", failures, got, want)
		}
	}
}

// TestInPullBackOff_FirstFailure_ShowsItsReasonForASecond: the planner wakes the worker
// at the moment at which the status shows another reason, not before and not after.
//
// Shows: C-1.39
func TestInPullBackOff_FirstFailure_ShowsItsReasonForASecond(t *testing.T) {
	t.Parallel()
	failed := time.Unix(100, 0)
	first := pod.Failure{Reason: "ErrImagePull", Count: 1, Until: failed.Add(podview.PullDelay(1))}
	at := podview.PullBackOffFrom(first)
	if at.Sub(failed) != time.Second || podview.InPullBackOff(first, at.Add(-1)) || !podview.InPullBackOff(first, at) {
		t.Errorf("shown from %v on, %v before it and %v then", at.Sub(failed), podview.InPullBackOff(first, at.Add(-1)), podview.InPullBackOff(first, at))
	}
	second := pod.Failure{Reason: "ErrImagePull", Count: 2, Until: failed.Add(podview.PullDelay(2))}
	if !podview.PullBackOffFrom(second).IsZero() || !podview.InPullBackOff(second, failed) {
		t.Error("a second failure is not shown as a back-off at once")
	}
	if once := (pod.Failure{Reason: "ErrImagePull", Count: 1}); !podview.PullBackOffFrom(once).IsZero() || podview.InPullBackOff(once, failed) {
		t.Error("a failure that is tried again at once is shown as a back-off")
	}
}
