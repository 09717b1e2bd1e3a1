package sink

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/sink/apiserver"
	"github.com/nodectl/nodectl/test/cluster"
)

// TestF70_Outage: while the server is down nothing is lost and nothing piles up; when it is
// back each pod's newest status is sent once. The server is the one of all tests: this test
// runs before the parallel ones.
//
// Shows: F70
func TestF70_Outage(t *testing.T) {
	c := server(t)
	outage(t, c, "killed", 2, func() { c.APIServer.Kill(t) }, func() { c.APIServer.Start(t) })
}

// outage reports pods of a node, and again for so many rounds while the server is down.
func outage(t *testing.T, c *cluster.Cluster, name string, rounds int, begin, end func()) {
	t.Helper()
	const pods, qps, burst = 40, 20, 10
	a := start(t, c, name, func(cfg *apiserver.Config) { cfg.QPS, cfg.Burst = qps, burst })
	var all []*v1.Pod
	for i := range pods {
		p := c.CreatePod(t, cluster.Pod(name, fmt.Sprintf("%s-%02d", name, i)))
		all = append(all, p)
		a.says(p, running(p, false))
	}
	for _, p := range all {
		a.until(t, p.Name, "running", phase(v1.PodRunning))
	}
	begin()
	for round := range rounds { // each as long as one more request has no answer
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
	end()
	for _, p := range all {
		a.until(t, p.Name, "as it is", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 99 })
	}
	a.compared(t)
	sent := map[string]int{}
	n := 0
	for _, e := range a.wire.of(http.MethodPatch, "") {
		if e.code == http.StatusOK && strings.Contains(e.body, `"restartCount":99`) {
			sent[e.path]++
			n++
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
	if said := a.log.Count("Cannot send pods"); said != 1 {
		t.Errorf("the outage was said %d times", said)
	}
}
