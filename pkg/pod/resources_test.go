package pod

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
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
