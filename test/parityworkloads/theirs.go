package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/test/arm"
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

// performance is one scenario on the control plane.
type performance struct {
	*recorder
	namespace string
	place     *place
	resource  schema.GroupVersionResource
	name      string
}

func (r *recorder) play(ctx context.Context, s *Scenario) (Rounds, error) {
	var object map[string]any
	if err := yaml.Unmarshal([]byte(s.Object), &object); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: object}
	p := &performance{
		recorder: r, namespace: s.Name, name: u.GetName(), resource: resources[u.GetKind()],
		place: &place{kind: u.GetKind(), book: newBook(), pods: map[string]*v1.Pod{}, objects: map[string]*unstructured.Unstructured{}},
	}
	r.mu.Lock()
	r.places[p.namespace] = p.place
	r.mu.Unlock()
	if err := p.makeNamespace(ctx); err != nil {
		return nil, err
	}
	if u.GetKind() == "CronJob" {
		if err := arm.Pause(ctx, untilMinute(time.Now())); err != nil {
			return nil, err
		}
	}
	if _, err := r.client.Resource(p.resource).Namespace(p.namespace).Create(ctx, u, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if err := p.rest(ctx); err != nil {
		return nil, err
	}
	p.close("create")
	for _, step := range s.Steps {
		if err := p.step(ctx, step); err != nil {
			return p.place.book.rounds, fmt.Errorf("step %q: %w", step.Text, err)
		}
	}
	return p.place.book.rounds, nil
}

// makeNamespace makes the namespace, and waits for its service account, without which no pod is
// admitted.
func (p *performance) makeNamespace(ctx context.Context) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": p.namespace}}}
	core := func(name string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: name}
	}
	if _, err := p.client.Resource(core("namespaces")).Create(ctx, u, metav1.CreateOptions{}); err != nil {
		return err
	}
	for {
		_, err := p.client.Resource(core("serviceaccounts")).Namespace(p.namespace).Get(ctx, "default", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return err
		}
		if err := arm.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// step does one step of the script.
func (p *performance) step(ctx context.Context, step Step) error {
	var err error
	switch step.Verb {
	case "settle":
		return p.settle(ctx)
	case "pass":
		err = arm.Pause(ctx, step.duration())
	case "minute":
		err = arm.Pause(ctx, untilMinute(time.Now()))
	case "edit", "image":
		err = p.edit(ctx, step)
	case "scale", "undo", "restart", "pause", "resume":
		err = p.command(step)
	case "gone":
		err = p.gone(ctx, step.Args...)
	default:
		err = p.change(ctx, step)
	}
	if err == nil {
		err = p.rest(ctx)
	}
	p.close(step.Text)
	return err
}

// rest waits until the controllers are done.
func (p *performance) rest(ctx context.Context) error {
	p.mu.Lock()
	p.place.changed = time.Now()
	p.mu.Unlock()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err := arm.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		p.mu.Lock()
		failed, done := p.failed, p.place.isDone() && time.Since(p.place.changed) > quiet
		p.mu.Unlock()
		if failed != nil || done {
			return failed
		}
	}
	return fmt.Errorf("the controllers are not done after %s", patience)
}

// settle makes pods ready, and lets deleted ones go, until nothing changes.
func (p *performance) settle(ctx context.Context) error {
	for n := 1; n <= mostRounds; n++ {
		err := p.change(ctx, Step{Verb: "ready", Args: []string{"all"}})
		if errors.Is(err, errNoPod) {
			err = nil
		}
		if err == nil {
			err = p.gone(ctx)
		}
		if err == nil {
			err = p.rest(ctx)
		}
		if err != nil {
			return err
		}
		if !p.close(fmt.Sprintf("settle %d", n)) {
			return nil
		}
	}
	return nil
}

var errNoPod = errors.New("no pod is meant")

// edit changes the object.
func (p *performance) edit(ctx context.Context, step Step) error {
	objects := p.client.Resource(p.resource).Namespace(p.namespace)
	if step.Verb == "edit" {
		patch, err := yaml.YAMLToJSON([]byte(step.Args[0]))
		if err != nil {
			return err
		}
		_, err = objects.Patch(ctx, p.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	for {
		u, err := objects.Get(ctx, p.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		container, err := firstContainer(u.Object)
		if err != nil {
			return err
		}
		container["image"] = step.Args[0]
		if _, err = objects.Update(ctx, u, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// command runs kubectl.
func (p *performance) command(step Step) error {
	object := strings.ToLower(p.place.kind) + "/" + p.name
	args := []string{"rollout", step.Verb, object}
	switch {
	case step.Verb == "scale":
		args = []string{"scale", object, "--replicas=" + step.Args[0]}
	case len(step.Args) > 0:
		args = append(args, "--to-revision="+step.Args[0])
	}
	if out, err := p.cluster.Kubectl(p.t, append(args, "-n", p.namespace)...).CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// change gives pods the status of a step, or deletes them as a person does.
func (p *performance) change(ctx context.Context, step Step) error {
	var pods []*v1.Pod
	p.mu.Lock()
	for _, b := range p.place.book.Select(step.selectors()...) {
		if is := p.place.pods[b.id]; is != nil {
			p.place.book.Touch(b, step)
			pods = append(pods, is)
		}
	}
	p.mu.Unlock()
	if len(pods) == 0 {
		return errNoPod
	}
	all := p.client.Resource(resources["Pod"]).Namespace(p.namespace)
	for _, is := range pods {
		if step.Verb == "delete" {
			if err := all.Delete(ctx, is.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			continue
		}
		status := statusAfter(step, &is.Status, is.Spec.Containers[0].Name, time.Now())
		patch, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			return err
		}
		if _, err := all.Patch(ctx, is.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	return nil
}

// gone ends the pods that were deleted, as their node does when nothing is left of them.
func (p *performance) gone(ctx context.Context, selectors ...string) error {
	var names []string
	p.mu.Lock()
	for _, b := range p.place.book.Leaving(selectors...) {
		if is := p.place.pods[b.id]; is != nil {
			names = append(names, is.Name)
		}
	}
	p.mu.Unlock()
	now := int64(0)
	for _, name := range names {
		err := p.client.Resource(resources["Pod"]).Namespace(p.namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// close ends a round.
func (p *performance) close(step string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteConditions()
	return p.place.book.Close(step)
}

func (p *performance) noteConditions() {
	u := p.place.objects[p.place.kind+"/"+p.name]
	if u == nil {
		return
	}
	switch p.place.kind {
	case "Deployment":
		var d appsv1.Deployment
		if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &d) == nil {
			noteDeployment(p.place.book, &d.Status)
		}
	case "Job":
		var j batchv1.Job
		if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &j) == nil {
			noteJob(p.place.book, &j.Status)
		}
	}
}
