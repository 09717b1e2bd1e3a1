package feed

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Publisher is the engine's side of a Live: the engine publishes the readers' state through it. No
// method waits for a reader.
type Publisher struct{ live *Live }

// NewPublisher returns a Publisher for an engine that runs the pods of these layers.
func NewPublisher(layers []podconfig.LayerState) *Publisher { return &Publisher{newLive(layers)} }

// Live returns the readers' side. Readers may use it before Begin and after End.
func (p *Publisher) Live() *Live { return p.live }

// Begin sets the time at which the engine first asked the sources. A layer that has not
// answered AnswerTimeout later is an ERROR; before Begin there are no errors.
func (p *Publisher) Begin(now time.Time) { p.live.begin(now) }

// PublishBatch sends the updates of a batch to the readers.
func (p *Publisher) PublishBatch(b podconfig.Batch) { p.live.publish(b) }

// PublishStatus shows the newest status of a pod, or that it is gone, to the readers of pods.
func (p *Publisher) PublishStatus(key pod.Key, r pod.StatusReport) { p.live.setStatus(key, r) }

// MarkPodsObserved notes that the engine has observed every pod. It may be called only once.
func (p *Publisher) MarkPodsObserved() {
	p.live.mu.Lock()
	defer p.live.mu.Unlock()
	close(p.live.observed)
	p.live.noteKnown()
}

// End notes that the engine publishes nothing more. Each reader of updates ends after the last
// update in its queue.
func (p *Publisher) End() { p.live.end() }
