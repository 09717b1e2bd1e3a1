package podspec

import (
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestC_1_34_6_OtherSpellingIsNoResize is the same for whole pods, which podconfig
// and the forecast compare.
//
// Shows: C-1.34.6
func TestC_1_34_6_OtherSpellingIsNoResize(t *testing.T) {
	t.Parallel()
	of := func(memory string) *pod.Spec {
		return specOf(t, "metadata: {name: web}\nspec:\n  containers: [{name: web, image: web, resources: {limits: {memory: "+memory+"}}}]\n")
	}
	if r := Resizes(of("1Gi"), of("1073741824")); r != nil {
		t.Errorf("another spelling resizes %v", r)
	}
	if r := Resizes(of("1Gi"), of("2Gi")); len(r) != 1 {
		t.Errorf("twice the memory resizes %v", r)
	}
}
