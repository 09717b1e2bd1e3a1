package feed

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Watch yields the updates of the layers of config as they happen. It ends when ctx is done,
// the caller leaves the loop, or no layer can change any more. It never blocks a source: a
// caller more than 1,024 updates behind gets DROPPED with their count and then the whole set.
// A layer that has not answered for 5 s is an ERROR, until it answers.
func Watch(ctx context.Context, config *podconfig.PodConfig) iter.Seq[Update] {
	return watch(ctx, config.Layers(), config.Batches, watchLimit)
}

// watch is Watch for any sequence of batches: a Live with one reader, which is
// there before the first batch. Its one goroutine reads batches, and ends before
// watch returns.
func watch(ctx context.Context, layers []podconfig.LayerState, batches func(context.Context) iter.Seq[podconfig.Batch], limit int) iter.Seq[Update] {
	return func(yield func(Update) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		live := newLive(layers)
		live.begin(time.Now())
		r, _ := live.join(podconfig.Incremental, limit) // config has its mode
		defer live.leave(r)
		wg.Go(func() {
			defer live.end()
			for b := range batches(ctx) {
				live.publish(b)
			}
		})
		live.follow(ctx, r, yield)
	}
}
