package engine

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// endedAtServer gives a pod the end that its API server shows.
func endedAtServer(p *v1.Pod) { p.Status.Phase = v1.PodFailed }

// Pods whose end their API server shows, and which never ran here, are not read from the
// runtime again: a server may have very many of them.
//
// Shows: I5
func TestIdle_PodsEndedAtTheirServer_AreNotLookedAt(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		var pods []*pod.Spec
		for i := range 20 {
			pods = append(pods, ofServer(mkpod(fmt.Sprint("job-", i), endedAtServer)))
		}
		m.src.set(pods...)
		m.arrive()
		m.pass(8 * time.Second)
		m.rt.Reset()
		m.pass(10 * time.Minute)
		if n := m.rt.Calls()["ListContainers"]; n > 11 {
			t.Errorf("%d lists in ten minutes of nothing", n)
		}
	})
}
