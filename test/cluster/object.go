package cluster

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod returns a small pod of namespace default that is bound to node.
func Pod(node, name string) *v1.Pod {
	no := int64(0)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: &no,
			Containers:                    []v1.Container{{Name: "main", Image: "nodectl.dev/test/stamp:1"}},
		},
	}
}

// CreatePod creates a pod and returns it as the API server stores it.
func (c *Cluster) CreatePod(t testing.TB, p *v1.Pod) *v1.Pod {
	t.Helper()
	return must(t, func(ctx context.Context) (*v1.Pod, error) {
		var is v1.Pod
		return &is, c.Client(t).Post().Namespace(p.Namespace).Resource("pods").Body(p).Do(ctx).Into(&is)
	})
}

// GetPod returns a pod as the API server stores it; nil if it does not exist.
func (c *Cluster) GetPod(t testing.TB, namespace, name string) *v1.Pod {
	t.Helper()
	return must(t, func(ctx context.Context) (*v1.Pod, error) {
		var is v1.Pod
		err := c.Client(t).Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(&is)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return &is, err
	})
}

// DeletePod requests a pod's deletion with a grace period in seconds. A bound pod then has a
// deletionTimestamp until its node, or a second call with grace 0, removes it.
func (c *Cluster) DeletePod(t testing.TB, namespace, name string, grace int64) {
	t.Helper()
	must(t, func(ctx context.Context) (struct{}, error) {
		options := &metav1.DeleteOptions{GracePeriodSeconds: &grace}
		return struct{}{}, c.Client(t).Delete().Namespace(namespace).Resource("pods").Name(name).Body(options).Do(ctx).Error()
	})
}

// PatchPod applies a JSON merge patch to a pod, or to the subresource (as "status") if one is
// given.
func (c *Cluster) PatchPod(t testing.TB, namespace, name, patch string, subresource ...string) *v1.Pod {
	t.Helper()
	return must(t, func(ctx context.Context) (*v1.Pod, error) {
		var is v1.Pod
		return &is, c.Client(t).Patch(types.MergePatchType).Namespace(namespace).Resource("pods").Name(name).
			SubResource(subresource...).Body([]byte(patch)).Do(ctx).Into(&is)
	})
}

// CreateNode makes a Node object.
func (c *Cluster) CreateNode(t testing.TB, name string) *v1.Node {
	t.Helper()
	return must(t, func(ctx context.Context) (*v1.Node, error) {
		var is v1.Node
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return &is, c.Client(t).Post().Resource("nodes").Body(n).Do(ctx).Into(&is)
	})
}

// createNamespace creates a namespace unless it exists.
func (c *Cluster) createNamespace(t testing.TB, name string) {
	t.Helper()
	must(t, func(ctx context.Context) (struct{}, error) {
		n := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		err := c.Client(t).Post().Resource("namespaces").Body(n).Do(ctx).Error()
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return struct{}{}, err
	})
}

// must returns the result of do, and fails the test if do fails.
func must[T any](t testing.TB, do func(context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	start := time.Now()
	v, err := do(ctx)
	if err != nil {
		t.Fatalf("after %s: %v", time.Since(start).Round(time.Millisecond), err)
	}
	return v
}
