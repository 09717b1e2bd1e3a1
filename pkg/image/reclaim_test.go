package image

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// TestReclaim_ImageHasAUserByNow_Stays: an eviction sees which registries do not answer, and its
// steps are checked again before they are carried out.
//
// Shows: C-1.33.12
func TestReclaim_ImageHasAUserByNow_Stays(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 10, map[string]int{"a:1": 1, "b:1": 5, "c:1": 3, "quay.io/silent:1": 53})
	cfg.RegistryAnswers = func(_ context.Context, registry string) bool { return registry == "docker.io" }
	known := false
	cfg.Desired = func() (map[string][]string, bool) { return nil, known }
	v := NewInventory(cfg)
	if _, err := v.ObserveForEviction(t.Context()); !errors.Is(err, ErrPodsUnknown) {
		t.Errorf("while not all pods are known: %v", err)
	}
	known = true
	images, err := v.ObserveForEviction(t.Context())
	if err != nil || len(images) != 4 {
		t.Fatalf("%v, %v", images, err)
	}
	var steps []reclaim.Step
	for _, i := range images {
		if want := i.ID == "sha256:quay.io/silent"; (i.UnresponsiveRegistry == "quay.io") != want {
			t.Errorf("%s comes from a registry that does not answer: %q", i.ID, i.UnresponsiveRegistry)
		}
		if i.UnresponsiveRegistry == "" {
			steps = append(steps, reclaim.Step{Action: reclaim.RemoveImage, ID: i.ID, Name: i.Name()})
		}
	}
	s.users = []pod.ImageUser{{ID: "c1", Images: []string{"sha256:b"}}}
	s.fails["sha256:c"] = true
	done, err := v.Reclaim(t.Context(), append(steps, reclaim.Step{Action: reclaim.RemoveImage, ID: "sha256:gone"}))
	if fmt.Sprint(s.removed) != "[sha256:a]" || err == nil {
		t.Errorf("removed %v, %v", s.removed, err)
	}
	if len(done) != 2 {
		t.Errorf("done: %v", done)
	}
}
