package podview_test

import (
	"math"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// graceful is a spec with a termination grace and a deletion grace; below 0 is none.
func graceful(termination, deletion int64) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web"}}
	if termination >= 0 {
		p.Spec.TerminationGracePeriodSeconds = &termination
	}
	if deletion >= 0 {
		p.DeletionGracePeriodSeconds = &deletion
	}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

// TestGrace_FirstThatIsKnown_Counts: a running pod stops with the grace it was made with.
//
// Shows: C-1.23.1
func TestGrace_FirstThatIsKnown_Counts(t *testing.T) {
	t.Parallel()
	shows := func(uid string, newest int64, older ...int64) pod.Actual {
		a := pod.Actual{UID: uid, Sandbox: &pod.Sandbox{Grace: newest}}
		for _, g := range older {
			a.Older = append(a.Older, pod.Sandbox{Grace: g})
		}
		return a
	}
	for name, test := range map[string]struct {
		made, want *pod.Spec
		have       pod.Actual
		grace      int64
	}{
		"deletion grace":                      {graceful(20, 5), graceful(40, 7), shows("uid-web", 60), 5},
		"made with":                           {graceful(20, -1), graceful(40, 7), shows("uid-web", 60), 20},
		"nothing runs":                        {graceful(20, -1), nil, pod.Actual{}, 20},
		"another pod runs":                    {graceful(20, -1), graceful(40, -1), shows("uid-2", 60), 60},
		"no record: the sandbox":              {nil, graceful(40, -1), shows("uid-web", 60, 70), 60},
		"an older sandbox":                    {nil, graceful(40, -1), shows("uid-web", -1, -1, 70), 70},
		"a note of none":                      {graceful(-1, -1), graceful(40, -1), shows("uid-web", -1, 0), 0},
		"not recorded anywhere: as requested": {nil, graceful(40, -1), shows("uid-web", -1), 40},
		"not set anywhere":                    {graceful(-1, -1), graceful(-1, -1), shows("uid-web", -1), 30},
		"nothing at all":                      {nil, nil, pod.Actual{}, 30},
		"none is a grace":                     {graceful(0, -1), graceful(40, -1), shows("uid-web", 60), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if g := podview.Grace(test.made, test.want, test.have); g != test.grace {
				t.Errorf("grace %d, want %d", g, test.grace)
			}
		})
	}
}

// TestStopGrace_RequestNamesOne_ItCounts: a request for a stop may shorten it.
func TestStopGrace_RequestNamesOne_ItCounts(t *testing.T) {
	t.Parallel()
	asked := int64(3)
	rec := pod.Record{Want: graceful(20, -1)}
	if g := podview.StopGrace(rec, pod.Actual{}); g != 20 {
		t.Errorf("grace %d, want the pod's own", g)
	}
	rec.StopGrace = &asked
	if g := podview.StopGrace(rec, pod.Actual{}); g != 3 {
		t.Errorf("grace %d, want the requested one", g)
	}
}

// TestGraceDuration_LongerThanADuration_IsAHundredYears: the API accepts any number of seconds that is
// not negative.
func TestGraceDuration_LongerThanADuration_IsAHundredYears(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]time.Duration{
		0:             0,
		30:            30 * time.Second,
		1 << 40:       podview.LongestGrace * time.Second,
		math.MaxInt64: podview.LongestGrace * time.Second,
	} {
		if got := podview.GraceDuration(seconds); got != want {
			t.Errorf("%d s: %s, want %s", seconds, got, want)
		}
	}
}
