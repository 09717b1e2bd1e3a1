package engine

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// C-1.29: a network probe reaches the pod, never the node in its place.
//
// Shows: C-1.29
func TestC_1_29_PodWithoutAnAddressIsNotAskedOverTheNetwork(t *testing.T) {
	port := v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(22)}}
	command := v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}
	for _, c := range []struct {
		name    string
		handler v1.ProbeHandler
		host    bool
		ips     []string
		want    int
	}{
		{"no address", port, false, nil, 0},
		{"no address, a command", command, false, nil, 1},
		{"an address", port, false, []string{"10.0.0.2"}, 1},
		{"the node's own network", port, true, nil, 1},
	} {
		web := mkpod("web", func(p *v1.Pod) {
			p.Spec.HostNetwork = c.host
			p.Spec.Containers[0].LivenessProbe = &v1.Probe{ProbeHandler: c.handler}
		})
		have := pod.Actual{Sandbox: &pod.Sandbox{IPs: c.ips}, Containers: map[string]pod.Container{"app": {Name: "app", ID: "1", State: pod.StateRunning}}}
		if got := len(probeTargets(web, have, &v1.PodStatus{}, false)); got != c.want {
			t.Errorf("%s: %d probes, want %d", c.name, got, c.want)
		}
	}
}
