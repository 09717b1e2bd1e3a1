package feed

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Watch yields the updates of the layers of config as they happen, beginning with each layer's
// first reading. It ends when ctx is done, the caller leaves the loop, or every source has
// ended. A slow caller never blocks a source: one that is more than 1,024 updates behind
// loses updates and gets DROPPED and the whole set, as in Live.Watch. A layer that has not
// answered after AnswerTimeout is an ERROR, until it answers.
func Watch(ctx context.Context, config *podconfig.PodConfig) iter.Seq[Update] {
	return watch(ctx, config.Layers(), config.Batches, watchLimit)
}

// watch is Watch for any sequence of batches. It makes a Live with one reader, which joins
// before the first batch. One goroutine reads the batches; it ends before watch returns.
func watch(ctx context.Context, layers []podconfig.LayerState, batches func(context.Context) iter.Seq[podconfig.Batch], limit int) iter.Seq[Update] {
	return func(yield func(Update) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		live := newLive(layers)
		live.begin(time.Now())
		r, _ := live.join(podconfig.Incremental, limit) // Incremental converts nothing: batches come in the mode of config
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
