package sink

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/sink/apiserver"
	"github.com/nodectl/nodectl/test/cluster"
)

// TestF70_Outage: while the server is away nothing is lost and nothing piles up;
// when it is back each pod's newest status comes once, at the rate that is allowed.
func TestF70_Outage(t *testing.T) {
	t.Parallel()
	const pods, qps, burst = 40, 20, 10
	for name, outage := range map[string]struct {
		begin, end func(*cluster.Process, testing.TB)
	}{
		"Killed": {(*cluster.Process).Kill, (*cluster.Process).Start},
		"Paused": {(*cluster.Process).Pause, (*cluster.Process).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.RBAC())
			a := start(t, c, "n1", func(cfg *apiserver.Config) { cfg.QPS, cfg.Burst = qps, burst })
			var all []*v1.Pod
			for i := range pods {
				p := c.CreatePod(t, cluster.Pod("n1", fmt.Sprintf("p%02d", i)))
				all = append(all, p)
				a.says(p, running(p, false))
			}
			for _, p := range all {
				a.until(t, p.Name, "running", phase(v1.PodRunning))
			}
			outage.begin(c.APIServer, t)
			for round := range 8 { // each as long as one more request has no answer
				for _, p := range all {
					a.says(p, func(s *v1.PodStatus) {
						running(p, round%2 == 0)(s)
						s.ContainerStatuses[0].RestartCount = int32(round)
					})
				}
				a.wire.said.Has(t, round+1, " 0\n")
			}
			for _, p := range all {
				a.says(p, func(s *v1.PodStatus) { running(p, true)(s); s.ContainerStatuses[0].RestartCount = 99 })
			}
			tries := len(a.wire.of("", ""))
			back := time.Now()
			outage.end(c.APIServer, t)
			for _, p := range all {
				a.within(t, 60*time.Second, p.Name, "as it is", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 99 })
			}
			took := time.Since(back)
			t.Logf("%d requests before; all was said %s after the server was back", tries, took.Round(time.Millisecond))
			a.compared(t)
			sent := map[string]int{}
			var first, last time.Time
			n := 0
			for _, e := range a.wire.of(http.MethodPatch, "") {
				if e.code == http.StatusOK && strings.Contains(e.body, `"restartCount":99`) {
					sent[e.path]++
					n++
					if first.IsZero() || e.at.Before(first) { // they are in the order of their ends
						first = e.at
					}
					if e.at.After(last) {
						last = e.at
					}
				}
			}
			for path, times := range sent {
				if times != 1 || len(sent) != pods {
					t.Errorf("%s was sent %d times", path, times)
				}
			}
			if n != pods {
				t.Errorf("%d statuses were taken, want one of each of %d pods", n, pods)
			}
			if least := time.Duration(pods-burst-1) * time.Second / qps; last.Sub(first) < least {
				t.Errorf("%d statuses in %s, at %d a second at most", n, last.Sub(first), qps)
			}
			if said := a.log.Count("is not told of pods"); said != 1 {
				t.Errorf("the outage was said %d times", said)
			}
		})
	}
}
