package pod

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestC_1_34_4_AmountsAreCompared: another spelling of an amount is no change of
// resources, for texts that older agents wrote on containers either.
//
// Shows: C-1.34.4
func TestC_1_34_4_AmountsAreCompared(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want []v1.ResourceName
	}{
		{"none", "none", nil},
		{"memory=/1Gi", "memory=/1073741824", nil},
		{"memory=1e9/1e9", "memory=1G/1000M", nil},
		{"cpu=1/1,memory=/64Mi", "cpu=1000m/1,memory=/65536Ki", nil},
		{"memory=1Gi/", "memory=/1Gi", []v1.ResourceName{"memory"}},
		{"memory=1Gi/1Gi", "memory=1Gi/1G", []v1.ResourceName{"memory"}},
		{"cpu=0/", "cpu=/", []v1.ResourceName{"cpu"}},
		{"cpu=1/1", "cpu=1/1,memory=/64Mi", []v1.ResourceName{"memory"}},
		{"cpu=100m/1,memory=/1Gi", "none", []v1.ResourceName{"cpu", "memory"}},
		{"cpu=garbage/", "cpu=other/", []v1.ResourceName{"cpu"}},
	} {
		for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			if got := ResourcesChanged(pair[0], pair[1]); !slices.Equal(got, test.want) {
				t.Errorf("%q and %q differ in %v, want %v", pair[0], pair[1], got, test.want)
			}
		}
	}
}

// TestResources_OfAPodAsAWhole: a container's text names the limits that it has from its pod,
// and a text without them is no difference.
//
// Shows: C-1.34.7
func TestResources_OfAPodAsAWhole(t *testing.T) {
	limits := func(memory string) *v1.ResourceRequirements {
		return &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}}
	}
	own := v1.Container{Name: "own", Resources: *limits("64Mi")}
	s := &Spec{Pod: &v1.Pod{Spec: v1.PodSpec{Resources: limits("1Gi"), Containers: []v1.Container{own, {Name: "none"}}}}}
	for name, want := range map[string]string{"own": "memory=/64Mi,pod:cpu=/,pod:memory=/", "none": "none,pod:cpu=/,pod:memory=/1Gi", "x": ""} {
		if got := s.Resources(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, c := range []struct {
		a, b string
		want []v1.ResourceName
	}{
		{"none,pod:cpu=/,pod:memory=/1Gi", "none,pod:cpu=/,pod:memory=/2Gi", []v1.ResourceName{"memory"}},
		{"none,pod:cpu=/,pod:memory=/1Gi", "none,pod:cpu=/,pod:memory=/1024Mi", nil},
		{"none", "none,pod:cpu=/,pod:memory=/2Gi", nil},
		{"memory=/1Gi", "none,pod:cpu=/,pod:memory=/2Gi", []v1.ResourceName{"memory"}},
		{"memory=/1Gi,pod:cpu=/,pod:memory=/", "none,pod:cpu=/,pod:memory=/1Gi", []v1.ResourceName{"memory"}},
	} {
		if got := ResourcesChanged(c.a, c.b); !slices.Equal(got, c.want) {
			t.Errorf("%s → %s: %v", c.a, c.b, got)
		}
	}
	if r := ParseResources("cpu=1/2,pod:memory=/1Gi"); len(r.Limits) != 1 || len(r.Requests) != 1 {
		t.Errorf("%+v", r)
	}
}
