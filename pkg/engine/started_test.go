package engine

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
)

// C-1.29.6, F1: the agent dies after a sidecar passed its startup probe and before the next
// container was created. The next agent continues there, without probing again.
//
// Shows: F1, C-1.29
func TestF1_StartedSidecarOfAnAgentBefore(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := mkpod("web", func(p *v1.Pod) {
			always := v1.ContainerRestartPolicyAlways
			p.Spec.InitContainers = []v1.Container{{Name: "proxy", Image: "app:1", ImagePullPolicy: v1.PullIfNotPresent, RestartPolicy: &always,
				StartupProbe: &v1.Probe{PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 10, TimeoutSeconds: 1,
					ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}}}}
		})
		m.rt.Fault(critest.Fault{Method: "CreateContainer", Container: "app", Hang: true, Times: 1})
		m.src.set(web)
		m.arrive()
		m.pass(10 * time.Second)
		m.die()
		m.arrive()
		m.pass(10 * time.Second)
		m.expect("web", "Running", true)
	})
}
