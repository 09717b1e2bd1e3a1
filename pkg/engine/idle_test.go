package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Running pods that do not change cost one list for all of them together, and no read of a
// single one. This holds from the first minute on.
//
// Shows: I5
func TestIdlePodsAreNotLookedAt(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		var pods []*pod.Spec
		for i := range 20 {
			pods = append(pods, mkpod(fmt.Sprint("p", i)))
		}
		m.arrive()
		m.pass(8 * time.Second)
		m.src.set(pods...)
		m.pass(8 * time.Second)
		m.rt.Reset()
		m.pass(10 * time.Minute)
		for _, method := range []string{"ContainerStatus", "PodSandboxStatus"} {
			if n := m.rt.Calls()[method]; n > 0 {
				t.Errorf("%d calls of %s in ten minutes of nothing", n, method)
			}
		}
		if n := m.rt.Calls()["ListContainers"]; n > 11 {
			t.Errorf("%d lists in ten minutes of nothing", n)
		}
	})
}
