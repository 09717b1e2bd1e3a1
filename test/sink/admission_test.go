package sink

import (
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/apiserver"
	"github.com/nodectl/nodectl/test/cluster"
)

// TestF75_RefusedByAdmission: NodeRestriction refuses a mirror pod (of a Node that was made
// again). The agent logs it once, still sends the statuses of other pods, and creates the
// mirror when it is allowed to.
//
// Shows: F75
func TestF75_RefusedByAdmission(t *testing.T) {
	t.Parallel()
	c := server(t)
	var known atomic.Pointer[types.UID] // the test writes it, the sink reads it
	known.Store(new(types.UID("of-the-node-before")))
	a := start(t, c, "n-refused", func(cfg *apiserver.Config) { cfg.NodeUID = func() types.UID { return *known.Load() } })
	static := staticPod("n-refused", "refused", "h")
	ours := c.CreatePod(t, cluster.Pod("n-refused", "ours"))
	const rounds = 10
	for i := range rounds {
		a.says(static, running(static, i%2 == 0), fromFile)
		a.says(ours, running(ours, i%2 == 0))
		a.until(t, "ours", "as it was reported", both(phase(v1.PodRunning), ready(i%2 == 0)))
	}
	a.wire.said.Has(t, 2, "POST /api/v1/namespaces/default/pods 403\n")
	if n, tries := a.log.Count("Static pod has no mirror"), len(a.wire.of("POST", "")); n != 1 || a.log.Count("UID mismatch") != 1 || tries >= rounds {
		t.Errorf("said %d times, tried %d times:\n%s", n, tries, a.log)
	}
	known.Store(&a.uid)
	is := a.until(t, "refused", "running", phase(v1.PodRunning))
	if is.Annotations[pod.AnnotationConfigMirror] != "h" {
		t.Errorf("mirror %+v", is.ObjectMeta)
	}
}
