package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
)

const (
	nodeName = "n1"
	// quiet is how long nothing may change until the controllers count as done. The Job
	// controller waits for a second before it looks at its pods again.
	quiet = 2500 * time.Millisecond
	// patience is how long a step waits for that.
	patience = 40 * time.Second
	// atOnce is how many scenarios run beside each other: they wait most of their time. More of
	// them would keep the controllers from coming to rest within quiet.
	atOnce = 12
)

// controllers are those that make pods, and those that their objects need.
const controllers = "deployment-controller,replicaset-controller,statefulset-controller,daemonset-controller,job-controller," +
	"cronjob-controller,ttl-after-finished-controller,garbage-collector-controller,serviceaccount-controller"

// resources are the kinds whose changes show whether the controllers are done.
var resources = map[string]schema.GroupVersionResource{
	"Pod":         {Version: "v1", Resource: "pods"},
	"ReplicaSet":  {Group: "apps", Version: "v1", Resource: "replicasets"},
	"Deployment":  {Group: "apps", Version: "v1", Resource: "deployments"},
	"StatefulSet": {Group: "apps", Version: "v1", Resource: "statefulsets"},
	"DaemonSet":   {Group: "apps", Version: "v1", Resource: "daemonsets"},
	"Job":         {Group: "batch", Version: "v1", Resource: "jobs"},
	"CronJob":     {Group: "batch", Version: "v1", Resource: "cronjobs"},
}

// recorder has a control plane without a kubelet: the scripts are the node.
type recorder struct {
	t       *suite.TB
	cluster *cluster.Cluster
	client  *dynamic.DynamicClient

	mu     sync.Mutex
	places map[string]*place // by namespace
	failed error             // of a watch
}

// place is what one scenario's namespace shows. The recorder's mutex guards it.
type place struct {
	kind    string // of the workload
	book    *Book
	pods    map[string]*v1.Pod // by UID; those that exist
	objects map[string]*unstructured.Unstructured
	changed time.Time
}

// record plays scenarios on a real control plane, and returns the rounds of those that came to
// their end.
func record(ctx context.Context, dir string, scenarios []*Scenario, say func(string)) (map[string]Rounds, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := suite.New(ctx, dir)
	defer t.End()
	defer cancel() // the watches end before the server
	r := &recorder{t: t, places: map[string]*place{}}
	if err := suite.Try(func() { r.start(ctx) }); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var errs []error
	rounds := map[string]Rounds{}
	next := make(chan *Scenario, len(scenarios))
	for _, s := range scenarios {
		next <- s
	}
	close(next)
	var wg sync.WaitGroup
	for range min(atOnce, len(scenarios)) {
		wg.Go(func() {
			for s := range next {
				var got Rounds
				var err error
				if fatal := suite.Try(func() { got, err = r.play(ctx, s) }); fatal != nil {
					err = fatal
				}
				mu.Lock()
				if err == nil {
					rounds[s.Name] = got
				} else {
					errs = append(errs, fmt.Errorf("%s: %w", s.Name, err))
				}
				say(s.Name)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return rounds, errors.Join(append(errs, r.failed)...)
}

// start starts the control plane, makes the node, and watches.
func (r *recorder) start(ctx context.Context) {
	r.cluster = cluster.Start(r.t, cluster.Whole("127.0.0.1"), cluster.APIServerArgs("--endpoint-reconciler-type=none"), cluster.ControllerArgs(
		"--controllers="+controllers, "--kube-api-qps=1000", "--kube-api-burst=2000",
		"--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20", "--concurrent-statefulset-syncs=20",
		"--concurrent-job-syncs=20", "--concurrent-cron-job-syncs=20"))
	config := r.cluster.Config(r.t, r.cluster.AdminKubeconfig(r.t))
	client, err := dynamic.NewForConfig(config)
	if err == nil {
		r.client = client
		err = r.makeNode(ctx)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for kind, resource := range resources {
		if err := r.watch(ctx, kind, resource); err != nil {
			r.t.Fatal(err)
		}
	}
}

// makeNode makes a node that has room for all pods. No controller judges it, so that it needs no
// lease.
func (r *recorder) makeNode(ctx context.Context) error {
	node := &v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		return err
	}
	nodes := r.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	if _, err := nodes.Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, nodeName, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	status := `{"status":{"capacity":{"pods":"5000","cpu":"1000","memory":"1000Gi"},"allocatable":{"pods":"5000","cpu":"1000","memory":"1000Gi"},` +
		`"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	_, err = nodes.Patch(ctx, nodeName, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	return err
}

// watch notes every change of a kind in the places. The API server ends a watch that is slow: the
// next one continues after the newest version that was seen.
func (r *recorder) watch(ctx context.Context, kind string, resource schema.GroupVersionResource) error {
	seconds := int64(7200)
	options := metav1.ListOptions{TimeoutSeconds: &seconds}
	w, err := r.client.Resource(resource).Watch(ctx, options)
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			for e := range w.ResultChan() {
				object, ok := e.Object.(*unstructured.Unstructured)
				if !ok || e.Type == watch.Error {
					w.Stop()
					r.fail(fmt.Errorf("watch of %s: %s %v", kind, e.Type, e.Object))
					return
				}
				options.ResourceVersion = object.GetResourceVersion()
				r.see(kind, object, e.Type == watch.Deleted)
			}
			if w, err = r.client.Resource(resource).Watch(ctx, options); err != nil {
				if ctx.Err() == nil {
					r.fail(fmt.Errorf("watch of %s: %w", kind, err))
				}
				return
			}
		}
		w.Stop()
	}()
	return nil
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = errors.Join(r.failed, err)
}

// see notes one version of an object.
func (r *recorder) see(kind string, object *unstructured.Unstructured, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.places[object.GetNamespace()]
	if p == nil {
		return
	}
	p.changed = time.Now()
	if kind != "Pod" {
		key := kind + "/" + object.GetName()
		if p.objects[key] = object; deleted {
			delete(p.objects, key)
		}
		return
	}
	var is v1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &is); err != nil {
		r.failed = errors.Join(r.failed, err)
		return
	}
	id := string(is.UID)
	if p.book.byID(id) == nil {
		owner := ""
		if ref := metav1.GetControllerOf(&is); ref != nil {
			owner = ref.Name
		}
		p.book.Created(id, facts{kind: p.kind, name: is.Name, owner: owner, labels: is.Labels, annotations: is.Annotations})
	}
	if p.pods[id] = &is; deleted {
		delete(p.pods, id)
	}
	if deleted || is.DeletionTimestamp != nil {
		p.book.Deleted(id, deleted)
	}
}

// isDone reports whether the controllers have nothing to do in a place, as far as its objects
// show it.
func (p *place) isDone() bool {
	for _, o := range p.objects {
		generation, _, _ := unstructured.NestedInt64(o.Object, "metadata", "generation")
		observed, has, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
		if o.GetKind() != "Job" && o.GetKind() != "CronJob" && (!has || observed < generation) {
			return false
		}
		if o.GetKind() != "ReplicaSet" {
			continue
		}
		want, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		have, _, _ := unstructured.NestedInt64(o.Object, "status", "replicas")
		if want != have {
			return false
		}
	}
	for _, pod := range p.pods {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName == "" {
			return false // the scheduler has not bound it yet
		}
	}
	return true
}
