package feed

import (
	"context"
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// The types of events of WatchPods, as in a watch of an API server.
const (
	PodAdded    = "ADDED"
	PodModified = "MODIFIED"
	PodDeleted  = "DELETED"
	PodBookmark = "BOOKMARK" // with an empty pod: the reader has got all existing pods
)

// podReader is one reader of pods. Live's lock guards known and changed.
type podReader struct {
	known   map[pod.Key]*v1.Pod // each pod as the reader last got it
	changed map[pod.Key]bool    // the pods reported since then: one entry for each, however slow the reader is
	wake    wakeup.Signal       // Live sends, WatchPods receives
}

// podEvent is one event of WatchPods.
type podEvent struct {
	kind string
	pod  *v1.Pod
}

// Pods returns every existing pod, one that was reported and is not gone, with its newest status,
// sorted by key. The caller must not change the objects, which are shared.
func (l *Live) Pods() []v1.Pod {
	l.mu.Lock()
	all := maps.Clone(l.pods)
	l.mu.Unlock()
	out := make([]v1.Pod, 0, len(all))
	for _, key := range sortedKeys(all) {
		out = append(out, *all[key])
	}
	return out
}

// Pod returns the existing pod with that key and its newest status; false if there is none.
// The caller must not change the pod: it is shared.
func (l *Live) Pod(key pod.Key) (*v1.Pod, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pods[key]
	return p, ok
}

// Desired returns the desired pod with that key, nil if there is none. It is shared.
func (l *Live) Desired(key pod.Key) *pod.Spec {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Pod(key)
}

// PodsObserved is closed once the engine has observed every pod. Until then, pods may exist
// that Pods does not return. While the runtime does not answer, it stays open.
func (l *Live) PodsObserved() <-chan struct{} { return l.observed }

// WatchPods yields every existing pod as ADDED, then changes as they happen, until ctx is done
// or the caller leaves the loop. Once the engine has observed every pod, WatchPods yields one
// BOOKMARK. A slow caller skips statuses between: it gets the newest status of each pod that
// has changed. If another pod of the same name (with another UID) takes a pod's place, the old
// one is DELETED, then the new one is ADDED. The caller must not change the pods: they are
// shared.
func (l *Live) WatchPods(ctx context.Context) iter.Seq2[string, *v1.Pod] {
	return func(yield func(string, *v1.Pod) bool) {
		r := l.joinPods()
		defer l.leavePods(r)
		observed := l.PodsObserved()
		for bookmark := false; ctx.Err() == nil; {
			events := l.takePods(r)
			if bookmark {
				events = append(events, podEvent{PodBookmark, &v1.Pod{}})
				bookmark, observed = false, nil
			}
			for _, e := range events {
				if ctx.Err() != nil || !yield(e.kind, e.pod) {
					return
				}
			}
			select {
			case <-observed: // takePods returns every observed pod from now on
				bookmark = true
			case <-r.wake:
			case <-ctx.Done():
			}
		}
	}
}

func (l *Live) joinPods() *podReader {
	r := &podReader{known: make(map[pod.Key]*v1.Pod), changed: make(map[pod.Key]bool), wake: wakeup.New()}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.pods {
		r.changed[key] = true
	}
	l.podReaders[r] = struct{}{}
	return r
}

func (l *Live) leavePods(r *podReader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.podReaders, r)
}

// takePods returns the changes since the last call for this reader, sorted by key.
func (l *Live) takePods(r *podReader) (events []podEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range sortedKeys(r.changed) {
		was, now := r.known[key], l.pods[key]
		switch {
		case was == now:
			continue
		case now == nil:
			events = append(events, podEvent{PodDeleted, was})
			delete(r.known, key)
			continue
		case was == nil:
			events = append(events, podEvent{PodAdded, now})
		case was.UID != now.UID:
			events = append(events, podEvent{PodDeleted, was}, podEvent{PodAdded, now})
		default:
			events = append(events, podEvent{PodModified, now})
		}
		r.known[key] = now
	}
	clear(r.changed)
	return events
}

// setStatus stores the newest status of a pod, or removes a pod that is gone, and wakes the
// readers of pods.
func (l *Live) setStatus(key pod.Key, report pod.StatusReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if report.Gone {
		delete(l.pods, key)
	} else {
		l.pods[key] = report.Pod
	}
	for r := range l.podReaders {
		r.changed[key] = true
		r.wake.Send()
	}
}

// DesiredAndExisting returns the desired pods and the existing pods. A pod that is both is in
// the result twice: as desired, and as it exists, which may be an older version. complete is
// false until every layer has answered or was restored, and the engine has observed every pod:
// until then pods may be missing. The caller must not change the pods: they are shared.
func (l *Live) DesiredAndExisting() (pods []*v1.Pod, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for spec := range l.state.Pods.All() {
		pods = append(pods, spec.Pod)
	}
	for _, p := range l.pods {
		pods = append(pods, p)
	}
	return pods, l.complete()
}

// PodsKnown is closed once DesiredAndExisting is complete.
func (l *Live) PodsKnown() <-chan struct{} { return l.known }

// complete reports whether the engine has observed every pod, and every layer has answered or
// was restored.
func (l *Live) complete() bool {
	return closed(l.observed) && !slices.ContainsFunc(l.state.Layers, func(layer podconfig.LayerState) bool {
		return !layer.Ready && !layer.Restored
	})
}

// noteKnown closes known if DesiredAndExisting is complete.
func (l *Live) noteKnown() {
	if l.complete() && !closed(l.known) {
		close(l.known)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
