package feed

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Publisher is the engine's side of a Live: only through it does what readers see change. No
// method waits for a reader.
type Publisher struct{ live *Live }

// NewPublisher returns a publisher of an agent with these layers.
func NewPublisher(layers []podconfig.LayerState) *Publisher { return &Publisher{newLive(layers)} }

// Live returns the readers' side. It may be read before Begin and after End.
func (p *Publisher) Live() *Live { return p.live }

// Begin starts the sources' time to answer.
func (p *Publisher) Begin(now time.Time) { p.live.begin(now) }

// Publish shows a batch.
func (p *Publisher) Publish(b podconfig.Batch) { p.live.publish(b) }

// Report shows the newest status of a pod, or that it is gone.
func (p *Publisher) Report(key pod.Key, r pod.StatusReport) { p.live.report(key, r) }

// MarkPodsObserved says, once, that the engine has observed every pod.
func (p *Publisher) MarkPodsObserved() {
	p.live.mu.Lock()
	defer p.live.mu.Unlock()
	close(p.live.observed)
	p.live.noteKnown()
}

// End ends the readers of updates once they have taken what was published.
func (p *Publisher) End() { p.live.end() }
