package image_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
)

// pullAtOnce pulls one image of each pod, all at the same time. It returns how long that took and
// the errors.
func pullAtOnce(t *testing.T, m *machine, pods []*pod.Spec) (took time.Duration, failed []error) {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, want := range pods {
		all.Go(func() {
			if err := m.PullImage(t.Context(), want, "c0"); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	}
	all.Wait()
	return time.Since(began), failed
}

// withRate sets a pull rate, and no limit of a registry that a test reaches.
func withRate(qps, burst int) func(*image.Config) {
	return func(c *image.Config) { c.PerRegistry, c.QPS, c.Burst = 1000, qps, burst }
}

// A pull above the rate waits for its turn, up to ten seconds, and fails with the kubelet's text
// otherwise. A rate of 0 is no limit.
//
// Shows: C-1.39.8
func TestPullImage_AboveTheRate_WaitsOrFails(t *testing.T) {
	for _, c := range []struct {
		qps, burst, pods int
		took             time.Duration // with the second of the last pull
		failed           int
	}{
		{qps: 0, burst: 0, pods: 30, took: time.Second},
		{qps: 5, burst: 10, pods: 10, took: time.Second},
		{qps: 5, burst: 10, pods: 30, took: 5 * time.Second},
		{qps: 1, burst: 2, pods: 20, took: 11 * time.Second, failed: 8},
	} {
		t.Run(fmt.Sprintf("%d pods at %d", c.pods, c.qps), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRegistries()
				m := on(t, r, t.TempDir(), withRate(c.qps, c.burst))
				defer m.stop()
				var pods []*pod.Spec
				for i := range c.pods {
					pods = append(pods, wanted(fmt.Sprint("p", i), fmt.Sprintf("r.io/app:%d", i)))
				}
				took, failed := pullAtOnce(t, m, pods)
				if took.Round(10*time.Millisecond) != c.took || len(failed) != c.failed || len(r.allPulls()) != c.pods-c.failed {
					t.Errorf("took %s, %d pulls, errors %v", took, len(r.allPulls()), failed)
				}
				for _, err := range failed {
					start, ok := errors.AsType[*pod.StartError](err)
					if !ok || start.Reason != "ErrImagePull" || start.Err.Error() != "pull QPS exceeded" || start.Final {
						t.Errorf("error %v", err)
					}
				}
			})
		})
	}
}

// With the default rate, 110 pods that always pull the same image share one pull.
//
// Shows: C-1.39.8, F30
func TestPullImage_ManyPodsOfOneImage_RateDelaysNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		m := on(t, r, t.TempDir(), withRate(5, 10))
		defer m.stop()
		var pods []*pod.Spec
		for i := range 110 {
			pods = append(pods, always(wanted(fmt.Sprint("p", i), "r.io/app:1")))
		}
		if took, failed := pullAtOnce(t, m, pods); took != r.took || len(failed) > 0 || len(r.allPulls()) != 1 {
			t.Errorf("took %s, %d pulls, errors %v", took, len(r.allPulls()), failed)
		}
	})
}

// A pull that takes long is reported after one minute, and then in growing intervals; a report says
// whether it waits for another pull.
func TestPullImage_LongPull_IsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.took = 4 * time.Minute
		m := on(t, r, t.TempDir(), func(c *image.Config) { c.PerRegistry = 1 })
		defer m.stop()
		var reports [2]string
		var all sync.WaitGroup
		for i := range reports {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				err := m.Puller.PullImage(t.Context(), wanted(fmt.Sprint("p", i), fmt.Sprintf("r.io/app:%d", i)), "c0", func(n pod.PullProgress) {
					if n.Pending {
						reports[i] += fmt.Sprintf("%s %s queued %t; ", n.Image, n.Waited, n.Queued)
					}
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if want := [2]string{
			"r.io/app:0 1m0s queued false; r.io/app:0 3m0s queued false; ",
			"r.io/app:1 1m0s queued true; r.io/app:1 3m0s queued true; r.io/app:1 7m0s queued false; ",
		}; reports != want {
			t.Errorf("reports %q, want %q", reports, want)
		}
	})
}
