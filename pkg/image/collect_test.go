package image

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// hangs waits as long as a registry that drops packets keeps two requests waiting.
func hangs(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-time.After(2*answerLimit - time.Second):
	}
	return false
}

// Registries that hang delay a collection by askLimit at most, and do not delay a user's request.
// Later collections ask the registries that were left out, so that the image of one that answers is
// removed in the end. A registry that is known to hang is not asked again for an hour.
func TestCollect_RegistriesHang_DelayItBoundedly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hours := map[string]int{"quay.io/good:1": 1}
		for i := range 100 {
			hours[fmt.Sprintf("r%d.evil.example/x:1", i)] = 5
		}
		s, cfg := stocked(t, 0, hours)
		var asked, now, most atomic.Int64
		cfg.RegistryAnswers = func(ctx context.Context, registry string) bool {
			asked.Add(1)
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return registry == "quay.io" || hangs(ctx)
		}
		v := NewInventory(cfg)
		began := time.Now()
		var wg sync.WaitGroup
		collect := func() {
			if err := v.Collect(t.Context()); err == nil {
				t.Error("the disk stays full, and there is no error")
			}
		}
		wg.Go(collect)
		synctest.Wait()
		if v.mu.TryLock() {
			v.mu.Unlock()
		} else {
			t.Error("no other request can look at the images while registries are asked")
		}
		wg.Wait()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %s", took)
		}
		if asked.Load() > 60 || most.Load() > 8 {
			t.Errorf("%d registries asked, %d at a time", asked.Load(), most.Load())
		}
		for range 11 { // within the hour
			collect()
		}
		if !slices.Equal(s.removed, []string{"sha256:quay.io/good"}) {
			t.Errorf("removed %v", s.removed)
		}
		if asked.Load() > 150 {
			t.Errorf("%d questions about 100 registries that hang and one that answers", asked.Load())
		}
	})
}

// An image stays if the registry of any of its names does not answer: the node might not get it
// again.
func TestCollect_RegistryIsSilent_ItsImagesStay(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 0, map[string]int{"a:1": 1, "evil.example/x:1": 5, "b:1": 3})
	s.images[1].Names = append(s.images[1].Names, pulledImage("evil.example/b:1").Names...)
	cfg.RegistryAnswers = func(_ context.Context, registry string) bool { return registry == "docker.io" }
	if err := NewInventory(cfg).Collect(t.Context()); err == nil || !slices.Equal(s.removed, []string{"sha256:a"}) {
		t.Errorf("%v, removed %v", err, s.removed)
	}
}

// A pod that appears during a collection keeps its image, whichever of the image's names it uses.
func TestCollect_PodAppearsMeanwhileByAnotherName_ItsImageStays(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"b:2", pulledImage("b:1").Names[0], "sha256:b"} {
		s, cfg := stocked(t, 0, map[string]int{"a:1": 2, "b:1": 1})
		s.images[1].Names = append(s.images[1].Names, full("b:2"))
		cfg.Desired = func() (map[string][]string, bool) {
			if len(s.removed) == 0 {
				return nil, true
			}
			return map[string][]string{"pod default/new": {name}}, true
		}
		if err := NewInventory(cfg).Collect(t.Context()); err == nil || !slices.Equal(s.removed, []string{"sha256:a"}) {
			t.Errorf("%s: %v, removed %v", name, err, s.removed)
		}
	}
}

// An image that is listed during its pull, with a tag and no digest yet, is collected later like any
// other.
func TestCollect_ImageSeenDuringItsPull_IsNoArchive(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 10, map[string]int{"a:1": 2, "b:1": 1})
	whole := slices.Clone(s.images)
	for i := range s.images {
		s.images[i].Names = s.images[i].Names[1:]
	}
	v := NewInventory(cfg)
	n, _, err := v.Observe(t.Context())
	if err != nil || !n.Images[0].Archive {
		t.Fatalf("%v, without a digest: %+v", err, n.Images)
	}
	s.images = []pod.Image{whole[0], whole[1]}
	if err := v.Collect(t.Context()); err != nil || len(s.removed) != 2 {
		t.Errorf("%v, removed %v", err, s.removed)
	}
}
