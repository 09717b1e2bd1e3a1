package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/node"
)

// patience is how long pods may take.
const patience = 3 * time.Minute

// awaitNone returns when no pod is there.
func (b *bench) awaitNone(ctx context.Context) error {
	return b.pods.Await(ctx, patience, "end of all pods", func(all map[string]stage.Versions) bool {
		for _, v := range all {
			if v.Now() != nil {
				return false
			}
		}
		return true
	})
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
	err := b.pods.Await(ctx, patience, fmt.Sprintf("%d pods Running", n), func(all map[string]stage.Versions) bool {
		took = took[:0]
		for _, name := range names {
			present := all[name].Present()
			if i := slices.IndexFunc(present, func(v stage.Version) bool { return v.Pod.Status.Phase == v1.PodRunning }); i >= 0 {
				took = append(took, present[i].At.Sub(begin))
			}
		}
		return len(took) == n
	})
	if err != nil {
		return nil, fmt.Errorf("%w; %d are Running\n%s", err, len(took), t.Tail())
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
	return b.awaitNone(ctx)
}
