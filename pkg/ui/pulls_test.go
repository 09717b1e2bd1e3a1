package ui

import (
	"io"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A pod that waits for an image shows the progress of the pull, and any other pod its own status.
func TestPullingPodGrid_WaitingPods_ShowProgress(t *testing.T) {
	t.Parallel()
	now := time.Now()
	pulls := []Pull{
		{Image: "r.io/big:1", Since: now.Add(-time.Minute), Bytes: 45, Total: 100},
		{Image: "busybox:latest", Since: now.Add(-12 * time.Second)},
		{Image: "later:1", Since: now, Waiting: true},
		{Image: "odd:1", Since: now, Bytes: 11, Total: 10},
	}
	waiting := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	for _, c := range []struct {
		image, want string
		state       v1.ContainerState
		init        string // the image of an init container that waits
	}{
		{"r.io/big:1", "Pulling:45%", waiting, ""},
		{"busybox", "Pulling:12s", waiting, ""},
		{"later:1", "Pulling:queued", waiting, ""},
		{"odd:1", "Pulling:100%", waiting, ""},
		{"other:1", "ContainerCreating", waiting, ""},
		{"other:1", "Init:Pulling:45%", waiting, "r.io/big:1"},
		{"r.io/big:1", "Running", v1.ContainerState{Running: &v1.ContainerStateRunning{}}, ""},
		{"r.io/big:1", "ErrImagePull", v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}, ""},
	} {
		p := v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: c.image}}}}
		p.Name, p.Namespace, p.Status.Phase = "p", "ns", v1.PodPending
		p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", State: c.state}}
		if c.state.Running != nil {
			p.Status.Phase = v1.PodRunning
		}
		if c.init != "" {
			p.Spec.InitContainers = []v1.Container{{Name: "i", Image: c.init}}
			p.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "i", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}}}
		}
		v := New(io.Discard, Screen{})
		text := v.Grid(PullingPodGrid([]v1.Pod{p}, pulls, Columns{NoHeaders: true}, now), Columns{NoHeaders: true})
		if fields := strings.Fields(text); len(fields) < 4 || fields[3] != c.want {
			t.Errorf("%s: %q, want %s", c.image, text, c.want)
		}
		if plain := c.want == "ErrImagePull" || c.want == "Running"; WaitsForImages(p) == plain {
			t.Errorf("%s: WaitsForImages is %v", c.image, !plain)
		}
	}
}
