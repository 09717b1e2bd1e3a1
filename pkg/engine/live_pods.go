package engine

import (
	"context"
	"iter"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The words of WatchPods, as a watch of an API server has them.
const (
	PodAdded    = "ADDED"
	PodModified = "MODIFIED"
	PodDeleted  = "DELETED"
	PodBookmark = "BOOKMARK" // of no pod: all there are have been told
)

// podReader is one who watches pods. Live's lock guards what is told and what waits.
type podReader struct {
	told    map[pod.Key]*v1.Pod // as the reader knows it
	changed map[pod.Key]bool    // since; no more than one entry for a pod, however slow the reader is
	wake    chan struct{}       // cap 1: Live sends, WatchPods receives; when full, it is about to look anyway
}

// Pod returns the pod of that name with the status reported last; false when there is
// none. What it points to is shared and must not be written to.
func (l *Live) Pod(key pod.Key) (*v1.Pod, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.pods[key]
	return p, ok
}

// WatchPods yields the pods there are as ADDED, one BOOKMARK once they were Looked at, then what
// changes, until ctx is done or the caller leaves the loop. A caller that is slow gets the newest of each pod; a
// pod that was replaced by another one of its name is DELETED, then ADDED. What pods
// point to is shared and must not be written to.
func (l *Live) WatchPods(ctx context.Context) iter.Seq2[string, *v1.Pod] {
	return func(yield func(string, *v1.Pod) bool) {
		r := l.joinPods()
		defer l.leavePods(r)
		looked := l.Looked()
		for marks := false; ctx.Err() == nil; {
			news := l.takePods(r)
			if marks {
				news = append(news, podNews{PodBookmark, &v1.Pod{}})
				marks, looked = false, nil
			}
			for _, n := range news {
				if ctx.Err() != nil || !yield(n.how, n.pod) {
					return
				}
			}
			select {
			case <-looked: // what was looked at is there to be taken
				marks = true
			case <-r.wake:
			case <-ctx.Done():
			}
		}
	}
}

type podNews struct {
	how string
	pod *v1.Pod
}

func (l *Live) joinPods() *podReader {
	r := &podReader{told: make(map[pod.Key]*v1.Pod), changed: make(map[pod.Key]bool), wake: make(chan struct{}, 1)}
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

// takePods says what a reader does not know yet, by key.
func (l *Live) takePods(r *podReader) (all []podNews) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range sortedKeys(r.changed) {
		was, now := r.told[key], l.pods[key]
		switch {
		case was == now:
			continue
		case now == nil:
			all = append(all, podNews{PodDeleted, was})
			delete(r.told, key)
			continue
		case was == nil:
			all = append(all, podNews{PodAdded, now})
		case was.UID != now.UID:
			all = append(all, podNews{PodDeleted, was}, podNews{PodAdded, now})
		default:
			all = append(all, podNews{PodModified, now})
		}
		r.told[key] = now
	}
	clear(r.changed)
	return all
}

// tellPods has every reader of pods look. The lock is held.
func (l *Live) tellPods(key pod.Key) {
	for r := range l.podReaders {
		r.changed[key] = true
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}
