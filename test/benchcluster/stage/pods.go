package stage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// Pods are all versions of all pods as a watch on the API server has shown them.
type Pods struct {
	watch watch.Interface
	wg    sync.WaitGroup

	mu    sync.Mutex
	all   map[string]Versions
	newer chan struct{} // closed and replaced when there is more
	err   error
}

// A Version is a pod as a watch showed it.
type Version struct {
	At      time.Time
	Deleted bool
	Pod     *v1.Pod
}

// Versions are those of one pod, by its name, in order.
type Versions []Version

// Present returns the versions since the pod was last deleted: none of a pod that is gone.
func (v Versions) Present() Versions {
	for i := len(v); i > 0; i-- {
		if v[i-1].Deleted {
			return v[i:]
		}
	}
	return v
}

// Now is the newest version of a pod; nil for one that is gone.
func (v Versions) Now() *v1.Pod {
	if v = v.Present(); len(v) == 0 {
		return nil
	}
	return v[len(v)-1].Pod
}

// Watch starts a watch of the pods of the default namespace. The caller closes it.
func (s *Stage) Watch(ctx context.Context) (*Pods, error) {
	w, err := s.Admin.Get().Namespace("default").Resource("pods").
		VersionedParams(&metav1.ListOptions{Watch: true}, scheme.ParameterCodec).Watch(ctx)
	if err != nil {
		return nil, err
	}
	p := &Pods{watch: w, all: map[string]Versions{}, newer: make(chan struct{})}
	p.wg.Go(func() {
		for e := range w.ResultChan() {
			p.add(time.Now(), e)
		}
		p.add(time.Now(), watch.Event{})
	})
	return p, nil
}

// add adds an event; one without an object says that the watch ended.
func (p *Pods) add(at time.Time, e watch.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod, ok := e.Object.(*v1.Pod); ok {
		pod.ManagedFields = nil
		p.all[pod.Name] = append(p.all[pod.Name], Version{At: at, Deleted: e.Type == watch.Deleted, Pod: pod})
	} else {
		p.err = errors.Join(p.err, fmt.Errorf("the watch ended: %v", e.Object))
	}
	close(p.newer)
	p.newer = make(chan struct{})
}

// Close ends the watch, and returns all it has shown.
func (p *Pods) Close() map[string]Versions {
	p.watch.Stop()
	p.wg.Wait()
	return p.all
}

// Await returns when done accepts the state in the watch. done runs with the lock held.
func (p *Pods) Await(ctx context.Context, limit time.Duration, what string, done func(map[string]Versions) bool) error {
	late := time.After(limit)
	for {
		p.mu.Lock()
		ok, err, newer := done(p.all), p.err, p.newer
		p.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-newer:
		case <-late:
			return fmt.Errorf("%s: not within %s", what, limit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
