package pod

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestImages_EveryKindOfUse_IsNamedOnce(t *testing.T) {
	t.Parallel()
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers:      []v1.Container{{Image: "init"}, {Image: "app"}},
		Containers:          []v1.Container{{Image: "app"}, {Image: "side"}},
		EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Image: "debug"}}},
		Volumes:             []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data"}}}, {}},
	}}
	if got, want := Images(p), []string{"init", "app", "side", "debug", "data"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
