package sink

import (
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/cluster"
)

// TestF74_TooLargeForTheServer: an object too large for etcd is reported in short, with the
// server's own words of refusal.
//
// Shows: F74
func TestF74_TooLargeForTheServer(t *testing.T) {
	t.Parallel()
	c := server(t)
	a := start(t, c, "n-large")
	p := cluster.Pod("n-large", "large")
	p.Annotations = map[string]string{"filler": strings.Repeat("x", 30000)}
	p = c.CreatePod(t, p)
	a.says(p, func(s *v1.PodStatus) {
		running(p, true)(s)
		s.ContainerStatuses[0].LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 3, Message: strings.Repeat("y", 12000)}
	})
	is := a.until(t, "large", "running", phase(v1.PodRunning))
	if end := is.Status.ContainerStatuses[0].LastTerminationState.Terminated; end == nil || end.ExitCode != 3 || len(end.Message) > 256 {
		t.Errorf("status %+v", is.Status)
	}
	if n := len(a.wire.awaits(t, 2, http.MethodPatch, "large")); n != 2 || a.log.Count("too large") != 1 {
		t.Errorf("%d patches\n%s", n, a.log)
	}
	a.wire.forbidden(t)
}
