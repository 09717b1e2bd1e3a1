package status_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// The status shows the user and the stop signal of a container of every kind, as the runtime
// shows them. It keeps them after the container is removed.
//
// Shows: C-1.26.1
func TestC_1_26_1_UserOfAContainer(t *testing.T) {
	t.Parallel()
	want, err := plantest.Spec([]byte("metadata: {name: p}\nspec:\n  restartPolicy: Never\n  initContainers: [{name: init, image: i}]\n" +
		"  containers: [{name: a, image: a}, {name: b, image: b}]\n  ephemeralContainers: [{name: e, image: e}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	user := &v1.LinuxContainerUser{UID: 1000, GID: 2000, SupplementalGroups: []int64{2000, 3000}}
	have := pod.Actual{Key: want.Key, UID: want.UID(), Sandbox: &pod.Sandbox{ID: "s", Ready: true}, Containers: map[string]pod.Container{}}
	for _, name := range []string{"init", "a", "b", "e"} {
		c := pod.Container{ID: name, Name: name, SandboxID: "s", State: pod.StateExited, StopSignal: "SIGUSR1"}
		if name != "b" { // the runtime does not show it
			c.User = user
		}
		have.Containers[name] = c
	}
	all := func(st v1.PodStatus) map[string]*v1.ContainerUser {
		got := map[string]*v1.ContainerUser{}
		for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
			for _, s := range list {
				got[s.Name] = s.User
				if s.StopSignal == nil || *s.StopSignal != "SIGUSR1" {
					t.Errorf("%s has the stop signal %v", s.Name, s.StopSignal)
				}
			}
		}
		return got
	}
	shown := &v1.ContainerUser{Linux: user}
	wanted := map[string]*v1.ContainerUser{"init": shown, "a": shown, "b": nil, "e": shown}
	st := status.Of(want, have, pod.Health{}, v1.PodStatus{}, status.Notes{}, plantest.Now)
	if diff := cmp.Diff(wanted, all(st)); diff != "" {
		t.Errorf("while the containers exist (-want +got):\n%s", diff)
	}
	have.Containers = map[string]pod.Container{}
	if diff := cmp.Diff(wanted, all(status.Of(want, have, pod.Health{}, st, status.Notes{}, plantest.Now))); diff != "" {
		t.Errorf("after the containers are removed (-want +got):\n%s", diff)
	}
}
