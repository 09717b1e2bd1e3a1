package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/benchcluster/stage"
)

// course is the run of all cases on one cluster.
type course struct {
	*stage.Stage
	turn *stage.Turn
	pods *stage.Pods
	raw  *Raw

	mu sync.Mutex // of raw.Course
}

// patience is how long a case waits for one thing.
const patience = 45 * time.Second

// shown is how long a case stays in a state, so that the comparison counts it.
const shown = 3 * time.Second

// await waits until done accepts a pod, nil for a missing one. After its time limit the case
// continues, and its record says so.
func (c *course) await(ctx context.Context, of, pod, what string, done func(*v1.Pod) bool) {
	if c.pods.Await(ctx, patience, what, func(all map[string]stage.Versions) bool { return done(all[pod].Now()) }) != nil {
		c.note(of, fmt.Sprintf("waits in vain for %s %s", pod, what))
	}
}

// note records a failure of a case.
func (c *course) note(of, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Course[of] = append(c.raw.Course[of], what)
}

// apply makes the objects of manifests.
func (c *course) apply(ctx context.Context, manifests string) error {
	for _, text := range strings.Split(manifests, "\n---\n") {
		var meta metav1.PartialObjectMetadata
		body, err := yaml.YAMLToJSON([]byte(text))
		if err == nil {
			err = json.Unmarshal(body, &meta)
		}
		if err != nil {
			return err
		}
		err = c.Admin.Post().Namespace("default").Resource(strings.ToLower(meta.Kind)+"s").Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Error()
		if err != nil {
			return fmt.Errorf("%s %s: %w", meta.Kind, meta.Name, err)
		}
	}
	return nil
}

// patch changes a pod, or a subresource of it.
func (c *course) patch(ctx context.Context, pod, subresource, body string) error {
	q := c.Admin.Patch(types.StrategicMergePatchType).Namespace("default").Resource("pods").Name(pod)
	if subresource != "" {
		q = q.SubResource(subresource)
	}
	return q.Body([]byte(body)).Do(ctx).Error()
}

// remove deletes a pod and waits until it is gone; a nil grace is the pod's own.
func (c *course) remove(ctx context.Context, of, pod string, grace *int64) error {
	err := c.Admin.Delete().Namespace("default").Resource("pods").Name(pod).Body(&metav1.DeleteOptions{GracePeriodSeconds: grace}).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		c.await(ctx, of, pod, "to be gone", func(p *v1.Pod) bool { return p == nil })
	}
	return err
}

// views are the paths of the node's server that are looked at.
var views = []string{"pods", "stats/summary", "metrics", "metrics/resource", "metrics/cadvisor", "metrics/probes", "healthz", "configz", "runningpods/"}

// look reads the node's server while the steady pods run.
func (c *course) look(ctx context.Context) error {
	// By now a node has taken its periodic measurements, every ten or fifteen seconds.
	if err := arm.Pause(ctx, 5*time.Second); err != nil {
		return err
	}
	for _, path := range views {
		text, err := c.Admin.Get().AbsPath("/api/v1/nodes", nodeName, "proxy", path).Do(ctx).Raw()
		if err != nil {
			text = []byte("error: " + err.Error())
		}
		c.raw.Views[path] = text
	}
	c.raw.Node = &v1.Node{}
	if err := c.Admin.Get().Resource("nodes").Name(nodeName).Do(ctx).Into(c.raw.Node); err != nil {
		return err
	}
	c.raw.Node.ManagedFields = nil
	lease, err := c.Admin.Get().AbsPath("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", nodeName).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	c.raw.Lease = lease
	if err != nil {
		return err
	}
	for _, name := range steadyPods {
		if err := c.remove(ctx, "view", name, nil); err != nil {
			return err
		}
	}
	return arm.Pause(ctx, time.Second) // the audit log is written behind the answers
}

// events returns the node's events.
func (c *course) events(ctx context.Context) ([]v1.Event, error) {
	var list v1.EventList
	var all []v1.Event
	for _, namespace := range []string{"default"} {
		if err := c.Admin.Get().Namespace(namespace).Resource("events").Do(ctx).Into(&list); err != nil {
			return nil, err
		}
		for _, e := range list.Items {
			e.ManagedFields = nil
			if e.Source.Host == nodeName || e.ReportingInstance == nodeName {
				all = append(all, e)
			}
		}
	}
	return all, nil
}

// request is one line of the audit log.
type request struct {
	Verb, Resource, Subresource, Namespace, Name string
	Code                                         int
}

// requests returns the node's requests to the API server.
func requests(file string) ([]request, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var r struct {
			Stage, Verb    string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.User.Username != "system:node:"+nodeName || r.Stage == "ResponseStarted" && r.Verb != "watch" {
			continue
		}
		if r.Verb == "watch" && r.Stage == "ResponseComplete" {
			continue // counted when it began
		}
		if r.ResponseStatus.Code == http.StatusSwitchingProtocols {
			continue
		}
		o := r.ObjectRef
		all = append(all, request{r.Verb, o.Resource, o.Subresource, o.Namespace, o.Name, r.ResponseStatus.Code})
	}
	return all, lines.Err()
}

// subnet is how the addresses of pods begin.
func subnet(cidr string) string {
	network, _, _ := strings.Cut(cidr, "/")
	return network[:strings.LastIndexByte(network, '.')+1]
}
