package pod

import (
	"slices"
	"testing"
)

func TestFeatures_AreSortedAndOnUnlessNamed(t *testing.T) {
	t.Parallel()
	all := Features()
	if len(all) != 10 || !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("features %q", all)
	}
	off := Disabled{FeatureDeclared}
	for _, name := range all {
		if off.Has(name) != (name == FeatureDeclared) || Disabled(nil).Has(name) {
			t.Errorf("%s", name)
		}
	}
}
