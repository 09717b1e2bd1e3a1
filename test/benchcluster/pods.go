package main

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

	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/node"
)

// pods is the state of all pods as a watch on the API server has shown it.
type pods struct {
	watch watch.Interface
	wg    sync.WaitGroup

	mu      sync.Mutex
	running map[string]time.Time // when a pod's phase was first seen to be Running
	there   map[string]bool
	newer   chan struct{} // closed and replaced when there is more
	err     error
}

// watch starts a watch. The caller closes it.
func (b *bench) watch(ctx context.Context) (*pods, error) {
	w, err := b.Admin.Get().Namespace("default").Resource("pods").
		VersionedParams(&metav1.ListOptions{Watch: true}, scheme.ParameterCodec).Watch(ctx)
	if err != nil {
		return nil, err
	}
	p := &pods{watch: w, running: map[string]time.Time{}, there: map[string]bool{}, newer: make(chan struct{})}
	p.wg.Go(p.follow)
	return p, nil
}

func (p *pods) close() { p.watch.Stop(); p.wg.Wait() }

func (p *pods) follow() {
	for e := range p.watch.ResultChan() {
		at := time.Now()
		pod, ok := e.Object.(*v1.Pod)
		p.mu.Lock()
		switch {
		case !ok:
			p.err = fmt.Errorf("watch: %v", e.Object)
		case e.Type == watch.Deleted:
			delete(p.there, pod.Name)
			delete(p.running, pod.Name)
		default:
			p.there[pod.Name] = true
			if _, known := p.running[pod.Name]; !known && pod.Status.Phase == v1.PodRunning {
				p.running[pod.Name] = at
			}
		}
		close(p.newer)
		p.newer = make(chan struct{})
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, errors.New("the watch ended"))
	close(p.newer)
	p.newer = make(chan struct{})
}

// await returns when done returns true; it calls done with the lock held.
func (p *pods) await(ctx context.Context, what string, done func() bool) error {
	late := time.After(3 * time.Minute)
	for {
		p.mu.Lock()
		ok, err, newer := done(), p.err, p.newer
		n, running := len(p.there), len(p.running)
		p.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-newer:
		case <-late:
			return fmt.Errorf("%s: not in time; there are %d pods, %d of them Running", what, n, running)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *pods) awaitNone(ctx context.Context) error {
	return p.await(ctx, "end of all pods", func() bool { return len(p.there) == 0 })
}

// start creates pods on the agent's node, as fast as the API server accepts them, and returns
// how long each took from its creation to Running. With several pods, the time of each starts
// at the moment before the first creation.
func (b *bench) start(ctx context.Context, t *stage.Turn, prefix string, n int) ([]time.Duration, error) {
	names := make([]string, n)
	begin := time.Now()
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
		err := b.Admin.Post().Namespace("default").Resource("pods").Body(ordinary(t.NodeName, names[i])).Do(ctx).Error()
		if err != nil {
			return nil, err
		}
	}
	var took []time.Duration
	err := b.pods.await(ctx, fmt.Sprintf("%d pods Running", n), func() bool {
		took = took[:0]
		for _, name := range names {
			if at, ok := b.pods.running[name]; ok {
				took = append(took, at.Sub(begin))
			}
		}
		return len(took) == n
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, t.Tail())
	}
	return took, nil
}

// ordinary is a typical pod: on the pod network, with the token of its service account. It is
// bound, so that no scheduler takes part.
func ordinary(host, name string) *v1.Pod {
	grace := int64(1)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "bench"}},
		Spec: v1.PodSpec{
			NodeName:                      host,
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []v1.Container{{Name: "main", Image: node.Stamp, Args: []string{"forever"}}},
		},
	}
}

// remove deletes a pod and returns when it is gone from the API server.
func (b *bench) remove(ctx context.Context, name string) error {
	if err := b.Admin.Delete().Namespace("default").Resource("pods").Name(name).Do(ctx).Error(); err != nil {
		return err
	}
	return b.pods.awaitNone(ctx)
}
