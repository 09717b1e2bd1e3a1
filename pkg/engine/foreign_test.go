package engine

import (
	"fmt"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Pods of another root that are created and removed leave nothing behind in the sync loop,
// whatever their names are.
func TestListing_PodsOfAnotherRootAreGone_AreForgotten(t *testing.T) {
	l := orderLoop(Config{})
	l.state, l.start.phase = &podconfig.Merged{}, phaseReady
	for i := range 100 {
		key := in(fmt.Sprintf("foreign-%d", i))
		l.handleHint(t.Context(), key)
		l.handleListing(t.Context(), listing{only: []pod.Key{key}, pods: []pod.Actual{{Key: key, UID: "uid", Sandbox: &pod.Sandbox{Ready: true, Layer: "file:/other"}}}})
		if len(l.orphans) != 1 {
			t.Fatalf("%d orphaned pods while one is here", len(l.orphans))
		}
		clear(l.jobs.lister.hinted)
		l.handleHint(t.Context(), key)
		if !l.jobs.lister.hinted[key] {
			t.Fatal("a hint at the pod is ignored")
		}
		l.handleListing(t.Context(), listing{only: []pod.Key{key}})
		if len(l.orphans) != 0 {
			t.Fatalf("%d orphaned pods after they are gone", len(l.orphans))
		}
	}
}
