package pod

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// TestC_1_38_RefsOfItems: each key that a volume asks for is one of its own, optional
// as the volume is; a pull secret is optional always (C-1.39.5).
//
// Shows: C-1.38
func TestC_1_38_RefsOfItems(t *testing.T) {
	t.Parallel()
	yes := true
	items := []v1.KeyToPath{{Key: "a", Path: "x"}, {Key: "b", Path: "y"}}
	p := &v1.Pod{Spec: v1.PodSpec{
		Volumes: []v1.Volume{
			{Name: "m", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}, Items: items[:1], Optional: &yes}}},
			{Name: "p", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Items: items}},
			}}}},
		},
		ImagePullSecrets: []v1.LocalObjectReference{{Name: ""}, {Name: "pull"}},
	}}
	var got []string
	for _, r := range Refs(p) {
		got = append(got, fmt.Sprintf("%s %s/%s.%s %t %s", r.Path, r.Kind, r.Name, r.Key, r.Optional, r.Volume))
	}
	want := []string{
		"spec.volumes[0].configMap ConfigMap/c. true m",
		"spec.volumes[0].configMap.items[0].key ConfigMap/c.a true m",
		"spec.volumes[1].projected.sources[0].secret Secret/s. false p",
		"spec.volumes[1].projected.sources[0].secret.items[0].key Secret/s.a false p",
		"spec.volumes[1].projected.sources[0].secret.items[1].key Secret/s.b false p",
		"spec.imagePullSecrets[1] Secret/pull. true ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
