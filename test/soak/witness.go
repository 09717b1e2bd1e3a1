package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/journal"
)

// A witness watches all the time, beside the agents: by containerd's own events
// that no container has two lives at once (I1), and by what agents report that
// restart counts never fall and that ends are final (I4).
type witness struct {
	rt     cri.RuntimeServiceClient
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	lives map[string]map[string]*span // by pod and container, then by ID
	told  map[string]told             // by house, pod and version
	seen  []string                    // what must not be
	flips int
}

// span is one life of a container.
type span struct{ from, to int64 }

// told is what was said last of one version of a pod.
type told struct {
	restarts map[string]int32
	phase    v1.PodPhase
	ready    bool
}

func (s *soak) watch(ctx context.Context) *witness {
	ctx, cancel := context.WithCancel(ctx)
	w := &witness{rt: s.lab.Node.Runtime, cancel: cancel, lives: map[string]map[string]*span{}, told: map[string]told{}}
	w.wg.Go(func() { w.events(ctx) })
	w.wg.Go(func() { w.journals(ctx, s.houses) })
	return w
}

func (w *witness) close() {
	w.cancel()
	w.wg.Wait()
}

// violations returns what was seen since the last time.
func (w *witness) violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

// events follows containerd, over its deaths.
func (w *witness) events(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := w.rt.GetContainerEvents(ctx, &cri.GetEventsRequest{})
		for err == nil {
			var e *cri.ContainerEventResponse
			if e, err = stream.Recv(); err == nil {
				w.note(ctx, e)
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (w *witness) note(ctx context.Context, e *cri.ContainerEventResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range e.ContainersStatuses {
		if s.StartedAt == 0 {
			continue
		}
		key := s.Labels["io.kubernetes.pod.name"] + "/" + s.Labels["io.kubernetes.container.name"]
		if w.lives[key] == nil {
			w.lives[key] = map[string]*span{}
		}
		old := w.lives[key][s.Id]
		w.lives[key][s.Id] = &span{s.StartedAt, s.FinishedAt}
		if old == nil {
			w.compare(ctx, key, s.Id)
		}
	}
}

// compare looks for another life of the container that had not ended when this
// one began. What ended while containerd was away is asked for.
func (w *witness) compare(ctx context.Context, key, id string) {
	from := w.lives[key][id].from
	for other, o := range w.lives[key] {
		if other == id || o.from > from {
			continue
		}
		if o.to == 0 {
			r, err := w.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: other})
			switch {
			case err != nil: // it is gone
				delete(w.lives[key], other)
				continue
			case r.Status.State != cri.ContainerState_CONTAINER_EXITED:
				w.seen = append(w.seen, fmt.Sprintf("I1: %s has two lives at once: %.12s and %.12s", key, other, id))
				continue
			}
			o.to = r.Status.FinishedAt
		}
		if o.to > from {
			w.seen = append(w.seen, fmt.Sprintf("I1: %s: %.12s ended %s after %.12s began", key, other, time.Duration(o.to-from), id))
		}
		delete(w.lives[key], other)
	}
}

// journals reads what agents report.
func (w *witness) journals(ctx context.Context, houses []*house) {
	for {
		for _, h := range houses {
			entries, err := journal.Read(h.journal())
			if err != nil {
				continue
			}
			w.compareReports(h, entries)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

func (w *witness) compareReports(h *house, entries map[pod.Key]journal.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, e := range entries {
		id := fmt.Sprintf("%s/%s/%s/%s", h.name, key, e.Pod.UID, e.Pod.Annotations[version])
		was, known := w.told[id]
		is := told{restarts: map[string]int32{}, phase: e.Pod.Status.Phase, ready: ready(e.Pod.Status)}
		for _, c := range slices.Concat(e.Pod.Status.InitContainerStatuses, e.Pod.Status.ContainerStatuses) {
			if is.restarts[c.Name] = c.RestartCount; c.RestartCount < was.restarts[c.Name] {
				w.seen = append(w.seen, fmt.Sprintf("I4: %s: restarts of %s fell from %d to %d", id, c.Name, was.restarts[c.Name], c.RestartCount))
			}
		}
		final := was.phase == v1.PodSucceeded || was.phase == v1.PodFailed
		if known && final && is.phase != was.phase {
			w.seen = append(w.seen, fmt.Sprintf("I4: %s was %s and is %s", id, was.phase, is.phase))
		}
		if was.ready && !is.ready && elderly(e.Pod) {
			w.flips++
		}
		w.told[id] = is
	}
}

// forget drops what was told of pods that are gone: all but the elders.
func (w *witness) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.told)
	clear(w.lives)
}

func ready(st v1.PodStatus) bool {
	return slices.ContainsFunc(st.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}
