package status_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// The mounts of a container of every kind are reported before it is created, while it exists
// and after it is removed. The mode IfPossible is reported once the runtime has shown whether
// it is possible.
//
// Shows: C-1.37.8
func TestC_1_37_8_MountsOfAContainer(t *testing.T) {
	t.Parallel()
	const spec = "volumeMounts: [{name: v, mountPath: /w}, {name: v, mountPath: /r, readOnly: true}, {name: v, mountPath: e, readOnly: true, recursiveReadOnly: Enabled}, " +
		"{name: v, mountPath: /p, readOnly: true, recursiveReadOnly: IfPossible}, {name: v, mountPath: /d, readOnly: true, recursiveReadOnly: Disabled}, " +
		"{name: v, mountPath: /x, readOnly: true, recursiveReadOnly: Enabled, mountPropagation: HostToContainer}]"
	want, err := plantest.Spec([]byte("metadata: {name: p}\nspec:\n  restartPolicy: Never\n  initContainers: [{name: init, image: i, " + spec + "}]\n" +
		"  containers: [{name: a, image: a, " + spec + "}, {name: none, image: b}]\n  ephemeralContainers: [{name: e, image: e, " + spec + "}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	all := func(st v1.PodStatus) map[string][]v1.VolumeMountStatus {
		got := map[string][]v1.VolumeMountStatus{}
		for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
			for _, s := range list {
				got[s.Name] = s.VolumeMounts
			}
		}
		return got
	}
	wanted := func(possible v1.RecursiveReadOnlyMode) map[string][]v1.VolumeMountStatus {
		mounts := []v1.VolumeMountStatus{
			{Name: "v", MountPath: "/w"},
			{Name: "v", MountPath: "/r", ReadOnly: true, RecursiveReadOnly: new(v1.RecursiveReadOnlyDisabled)},
			{Name: "v", MountPath: "e", ReadOnly: true, RecursiveReadOnly: new(v1.RecursiveReadOnlyEnabled)},
			{Name: "v", MountPath: "/p", ReadOnly: true, RecursiveReadOnly: new(possible)},
			{Name: "v", MountPath: "/d", ReadOnly: true, RecursiveReadOnly: new(v1.RecursiveReadOnlyDisabled)},
			{Name: "v", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: new(v1.RecursiveReadOnlyDisabled)},
		}
		return map[string][]v1.VolumeMountStatus{"init": mounts, "a": mounts, "none": nil, "e": mounts}
	}
	have := pod.Actual{Key: want.Key, UID: want.UID(), Sandbox: &pod.Sandbox{ID: "s", Ready: true}}
	check := func(when string, before v1.PodStatus, possible v1.RecursiveReadOnlyMode) v1.PodStatus {
		t.Helper()
		st := status.Of(want, have, pod.Health{}, before, status.Notes{}, plantest.Now)
		if diff := cmp.Diff(wanted(possible), all(st)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		return st
	}
	st := check("before the containers are created", v1.PodStatus{}, v1.RecursiveReadOnlyDisabled)
	have.Containers = map[string]pod.Container{}
	for _, name := range []string{"init", "a", "none", "e"} {
		have.Containers[name] = pod.Container{ID: name, Name: name, SandboxID: "s", State: pod.StateExited, Recursive: []string{"/e", "/p"}}
	}
	st = check("while the containers exist", st, v1.RecursiveReadOnlyEnabled)
	have.Containers = nil
	check("after the containers are removed", st, v1.RecursiveReadOnlyEnabled)
}
