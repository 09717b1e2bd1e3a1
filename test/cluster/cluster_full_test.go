//go:build full

package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestClusterOutlivesRestarts(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := Start(t)
	t.Logf("a cluster takes %s", since(start))
	c.CreatePod(t, Pod("n1", "one"))
	before := c.Snapshot(t)
	c.CreatePod(t, Pod("n1", "two"))
	c.PatchPod(t, "default", "one", `{"status":{"phase":"Running"}}`, "status")
	start = time.Now()
	c.APIServer.Restart(t)
	t.Logf("a restart of the API server takes %s", since(start))
	if p := c.GetPod(t, "default", "one"); p == nil || p.Status.Phase != v1.PodRunning {
		t.Errorf("after a restart the pod is %v", p)
	}
	c.Compact(t)
	start = time.Now()
	c.Restore(t, before)
	t.Logf("a restoration takes %s", since(start))
	if p := c.GetPod(t, "default", "two"); p != nil {
		t.Error("the restored cluster knows a pod made after the snapshot")
	}
	if p := c.GetPod(t, "default", "one"); p == nil || p.Status.Phase != v1.PodPending {
		t.Errorf("in the restored cluster the pod is %v", p)
	}
	c.DeletePod(t, "default", "one", 30)
	if p := c.GetPod(t, "default", "one"); p == nil || p.DeletionTimestamp == nil {
		t.Errorf("a bound pod that was deleted is %v, want it marked", p)
	}
	c.DeletePod(t, "default", "one", 0)
	if p := c.GetPod(t, "default", "one"); p != nil {
		t.Errorf("a pod deleted at once is %v", p)
	}
}

func TestRBACLimitsNodes(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := Start(t, RBAC())
	t.Logf("a cluster with RBAC takes %s", since(start))
	c.CreateNode(t, "n1")
	c.CreatePod(t, Pod("n1", "mine"))
	c.CreatePod(t, Pod("n2", "other"))
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	node := c.ClientAs(t, c.NodeKubeconfig(t, "n1"))
	var list v1.PodList
	if err := node.Get().Resource("pods").Param("fieldSelector", "spec.nodeName=n1").Do(ctx).Into(&list); err != nil || len(list.Items) != 1 {
		t.Errorf("the node sees %d pods (error %v), want its one", len(list.Items), err)
	}
	patch := []byte(`{"status":{"phase":"Running"}}`)
	change := func(name string) error {
		return node.Patch("application/merge-patch+json").Namespace("default").Resource("pods").Name(name).SubResource("status").Body(patch).Do(ctx).Error()
	}
	if err := change("mine"); err != nil {
		t.Errorf("the node may not write its pod's status: %v", err)
	}
	if err := change("other"); !apierrors.IsForbidden(err) {
		t.Errorf("the node writes another's pod: error %v", err)
	}
	// pkg/apiclient's Reader.Pod relies on this.
	c.DeletePod(t, "default", "mine", 0)
	if err := node.Get().Namespace("default").Resource("pods").Param("fieldSelector", "metadata.name=mine,spec.nodeName=n1").Do(ctx).Into(&list); err != nil || len(list.Items) != 0 {
		t.Errorf("after its deletion the node sees %d pods (error %v), want none", len(list.Items), err)
	}
	if err := node.Get().Namespace("default").Resource("pods").Name("never-bound").Do(ctx).Error(); !apierrors.IsForbidden(err) {
		t.Errorf("the node gets a pod that does not exist: error %v, want 403", err)
	}
	stranger := c.ClientAs(t, c.Kubeconfig(t, Identity{User: "mallory"}))
	if err := stranger.Get().Resource("pods").Do(ctx).Error(); !apierrors.IsForbidden(err) {
		t.Errorf("an unknown user lists pods: error %v", err)
	}
	expired := c.ClientAs(t, c.Kubeconfig(t, Identity{User: "late", NotAfter: time.Now().Add(-time.Minute)}))
	if err := expired.Get().Resource("pods").Do(ctx).Error(); !apierrors.IsUnauthorized(err) {
		t.Errorf("an expired certificate is let in: error %v", err)
	}
}

func TestEtcdWithCertificatesAndUsers(t *testing.T) {
	t.Parallel()
	start := time.Now()
	e := StartEtcd(t, EtcdOptions{TLS: true, RootPassword: "r00t", Users: []EtcdUser{{"node", "pw", "/pods/"}}})
	t.Logf("an etcd with TLS and users takes %s", since(start))
	e.Put(t, "/pods/a", "1")
	e.Put(t, "/other", "1")
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	c := e.clientAs(t, "node", "pw")
	defer c.Close()
	if r, err := c.Get(ctx, "/pods/", clientv3.WithPrefix()); err != nil || len(r.Kvs) != 1 {
		t.Errorf("the user reads its prefix: error %v", err)
	}
	if _, err := c.Get(ctx, "/other"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("the user reads a key that is not its own: error %v", err)
	}
	e.Restart(t)
	if r, err := e.Client(t).Get(ctx, "/other"); err != nil || len(r.Kvs) != 1 {
		t.Errorf("after a restart: error %v", err)
	}
}

func TestEtcdOfThreeLosesItsQuorum(t *testing.T) {
	t.Parallel()
	start := time.Now()
	e := StartEtcd(t, EtcdOptions{Members: 3})
	t.Logf("an etcd of three takes %s", since(start))
	e.Put(t, "a", "1")
	e.Members[1].Kill(t)
	e.Members[2].Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := e.Client(t).Get(ctx, "a"); err == nil {
		t.Error("one of three answers a linearizable read")
	}
	e.Members[2].Resume(t)
	e.Members[1].Start(t)
	if before := e.Revision(t); before != 2 {
		t.Errorf("revision %d, want 2", before)
	}
}

func TestEtcdIsEmptyAgain(t *testing.T) {
	t.Parallel()
	start := time.Now()
	e := StartEtcd(t, EtcdOptions{})
	t.Logf("an etcd takes %s", since(start))
	e.Put(t, "a", "1")
	s := e.Snapshot(t)
	e.Put(t, "a", "2")
	e.Restore(t, s)
	if r := e.Revision(t); r != 2 {
		t.Errorf("revision %d after a restoration, want 2", r)
	}
	e.Restore(t, Snapshot{})
	if r := e.Revision(t); r != 1 {
		t.Errorf("revision %d of a new etcd, want 1", r)
	}
	if log := e.Members[0].Log(t); strings.Contains(log, "panic") {
		t.Errorf("etcd's log:\n%s", log)
	}
}

func since(start time.Time) time.Duration { return time.Since(start).Round(time.Millisecond) }
