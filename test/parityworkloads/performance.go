package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/test/arm"
)

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
