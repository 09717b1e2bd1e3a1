//go:build full

package e2e

import (
	"sync"
	"testing"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/criproxy"
)

// TestF1_TaskOfAContainerThatNeverStarted: an agent that is killed while it starts a
// container may leave one that containerd lists as exited, but whose task it keeps, so that
// it refuses to remove it. The pod still continues, and when it is removed nothing is left of
// it.
//
// Shows: F1
func TestF1_TaskOfAContainerThatNeverStarted(t *testing.T) {
	s := parallelStage(t)
	var first sync.Once
	s.through(criproxy.Hooks{Before: func(c criproxy.Call) {
		if c.Method == "StartContainer" {
			first.Do(func() {
				// An interrupted start leaves this: the next one fails on it.
				if err := s.leaveTask(c.Request.Materialize()); err != nil {
					s.Error(err)
				}
			})
		}
	}})
	s.write("web.yaml", simple("web"))
	s.serve()
	s.awaitRunning("web", "main")
	if st := s.status("web").Status; containerStatus(st, "main").LastTerminationState.Terminated == nil {
		t.Errorf("the first start did not fail: %s", describe(st))
	}
	s.remove("web.yaml")
	s.awaitGone("web")
	s.nothingLeft()
	if err := bundle.EndTask(t.Context(), s.node.Endpoint, "nothing"); err != nil {
		t.Errorf("of a container that is not there: %v", err)
	}
}
