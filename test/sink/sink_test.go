// Package sink tests the sink of statuses, mirror pods and events with a real API server,
// with the node authorizer, RBAC and NodeRestriction. The tests share it; each has its own
// node and pod names.
package sink

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/apiserver"
	source "github.com/nodectl/nodectl/pkg/source/apiserver"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

// server takes no object that is larger than 40,000 bytes.
var server = suite.Once(func(t testing.TB) *cluster.Cluster {
	return cluster.Start(t, cluster.RBAC(), cluster.EtcdArgs("--max-request-bytes=40000"))
})

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// wire records the requests of a connection by method, path and answer.
type wire struct {
	next http.RoundTripper

	mu   sync.Mutex
	sent []exchange
	said said.Log // a line each: method, path, code
}

type exchange struct {
	method, path string
	code         int // 0: no answer
	body         string
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	e := exchange{method: r.Method, path: r.URL.Path}
	if r.Method == http.MethodPatch {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		e.body = string(text)
	}
	answer, err := w.next.RoundTrip(r)
	if err == nil {
		e.code = answer.StatusCode
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, e)
	fmt.Fprintf(&w.said, "%s %s %d\n", e.method, e.path, e.code)
	return answer, err
}

// of returns the requests of a method about a pod; "" is every one.
func (w *wire) of(method, name string) []exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []exchange
	for _, e := range w.sent {
		if (method == "" || e.method == method) && (name == "" || strings.HasSuffix(e.path, "/pods/"+name) || strings.HasSuffix(e.path, "/pods/"+name+"/status")) {
			list = append(list, e)
		}
	}
	return list
}

// awaits is of, once there are n: a change on the server is visible before its answer
// arrives.
func (w *wire) awaits(t *testing.T, n int, method, name string) []exchange {
	t.Helper()
	wait.NoError(t, func() error {
		if got := len(w.of(method, name)); got < n {
			return fmt.Errorf("%d requests %s about %s, want %d", got, method, name, n)
		}
		return nil
	})
	return w.of(method, name)
}

func (w *wire) forbidden(t *testing.T) {
	t.Helper()
	for _, e := range w.of("", "") {
		if e.code == http.StatusForbidden {
			t.Errorf("403 for %s %s", e.method, e.path)
		}
	}
}

// agent is a node with a sink, and a source that delivers the server's pods.
type agent struct {
	*apiserver.Sink
	c    *cluster.Cluster
	name string
	uid  types.UID
	wire *wire
	log  *said.Log
	stop func()

	lastReports *lastReports
}

// lastReports is the last reported status of each pod; it outlives the agent that reported it, as an
// engine's records do.
type lastReports struct {
	mu   sync.Mutex
	pods map[toldKey][]v1.PodCondition
}

type toldKey struct {
	pod.Key
	uid types.UID
}

func start(t *testing.T, c *cluster.Cluster, name string, change ...func(*apiserver.Config)) *agent {
	t.Helper()
	a := &agent{c: c, name: name, uid: c.CreateNode(t, name).UID, log: new(said.Log), lastReports: &lastReports{pods: map[toldKey][]v1.PodCondition{}}}
	a.known(t)
	a.run(t, change...)
	return a
}

// known returns when the server accepts mirror pods: NodeRestriction sees a new Node with a
// delay, and until then it answers that there is none.
func (a *agent) known(t *testing.T) {
	t.Helper()
	p := cluster.Pod(a.name, "known")
	p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "h"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: a.name, UID: a.uid, Controller: new(true)}}
	client := a.c.ClientAs(t, a.c.NodeKubeconfig(t, a.name))
	wait.NoError(t, func() error {
		return client.Post().Namespace(p.Namespace).Resource("pods").Param("dryRun", metav1.DryRunAll).Body(p).Do(t.Context()).Error()
	})
}

// run runs the sink and the source until stop.
func (a *agent) run(t *testing.T, change ...func(*apiserver.Config)) {
	t.Helper()
	kubeconfig := a.c.NodeKubeconfig(t, a.name)
	access := a.c.Config(t, kubeconfig)
	access.Wrap(func(next http.RoundTripper) http.RoundTripper {
		a.wire = &wire{next: next}
		return a.wire
	})
	log := a.log.Logger()
	cfg := apiserver.Config{REST: access, Node: a.name, NodeUID: func() types.UID { return a.uid }, QPS: 50, Burst: 100, EventQPS: 50, EventBurst: 100, Log: log}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if a.Sink, err = apiserver.New(cfg); err != nil {
		t.Fatal(err)
	}
	api, err := apiclient.Open(apiclient.Config{File: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	src, err := source.New(source.Config{
		Kubeconfig: kubeconfig, Reader: apiclient.NewReader(apiclient.ReaderConfig{Client: api}), Node: a.name, OnPod: a.ObservePod,
		Spec: func(p *v1.Pod, file string) (*pod.Spec, []pod.Problem) {
			return &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: "api", File: file}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	parts.Go(func() {
		for range src.Sets(ctx) {
		}
	})
	var once sync.Once
	a.stop = func() { once.Do(func() { cancel(); parts.Wait() }) }
	t.Cleanup(a.stop)
}

// says makes the node report a status of p, changed by f.
func (a *agent) says(p *v1.Pod, f func(*v1.PodStatus), change ...func(*pod.StatusReport)) {
	out := *p
	out.Status = *p.Status.DeepCopy()
	f(&out.Status)
	a.lastReports.keepTimes(&out)
	r := pod.StatusReport{Pod: &out, Origin: pod.Origin{Source: "api"}, At: time.Now()}
	for _, g := range change {
		g(&r)
	}
	if err := a.Report(r); err != nil {
		panic(err)
	}
}

// keepTimes keeps the transition time of conditions that have not changed, as an engine does.
func (d *lastReports) keepTimes(p *v1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := toldKey{pod.KeyOf(p), p.UID}
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		for _, was := range d.pods[key] {
			if was.Type == c.Type && was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	d.pods[key] = p.Status.Conditions
}

// until waits until so accepts the server's pod; nil is no pod.
func (a *agent) until(t *testing.T, name, what string, so func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	var p *v1.Pod
	wait.NoError(t, func() error {
		if p = a.c.GetPod(t, "default", name); so(p) {
			return nil
		}
		status := "it is not there"
		if p != nil {
			status = fmt.Sprintf("%s %+v", p.UID, p.Status)
		}
		return fmt.Errorf("pod %s is not %s: %s\n%s", name, what, status, a.log)
	})
	return p
}

// compared returns when the agent has compared all pods with the server's copies once more
// (C-1.27.5): it corrects a status that the test wrote for one more pod.
func (a *agent) compared(t *testing.T) {
	t.Helper()
	name := "compared-" + a.name
	p := a.c.CreatePod(t, cluster.Pod(a.name, name))
	a.says(p, running(p, true))
	a.until(t, name, "ready", ready(true))
	a.c.PatchPod(t, "default", name, `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "status")
	a.until(t, name, "put right", ready(true))
}

func there(p *v1.Pod) bool   { return p != nil }
func missing(p *v1.Pod) bool { return p == nil }

func phase(want v1.PodPhase) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return p != nil && p.Status.Phase == want }
}

func both(a, b func(*v1.Pod) bool) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return a(p) && b(p) }
}

func ready(is bool) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		if p == nil {
			return false
		}
		c := find(p, v1.PodReady)
		return c != nil && is == (c.Status == v1.ConditionTrue)
	}
}

func started(p *v1.Pod) metav1.Time {
	return metav1.NewTime(p.CreationTimestamp.Add(time.Second).Truncate(time.Second))
}

func condition(t v1.PodConditionType, is bool) v1.PodCondition {
	c := v1.PodCondition{Type: t, Status: v1.ConditionFalse, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))}
	if is {
		c.Status = v1.ConditionTrue
	}
	return c
}

// pending, running and ended are the engine's statuses of an ordinary pod.
func pending(p *v1.Pod) func(*v1.PodStatus) {
	return func(s *v1.PodStatus) {
		s.Phase, s.StartTime = v1.PodPending, new(started(p))
		s.ObservedGeneration = p.Generation
		s.HostIP, s.HostIPs = "192.0.2.1", []v1.HostIP{{IP: "192.0.2.1"}}
		s.Conditions = []v1.PodCondition{condition(v1.PodReadyToStartContainers, false), condition(v1.PodInitialized, true), condition(v1.PodReady, false), condition(v1.ContainersReady, false), condition(v1.PodScheduled, true)}
		s.ContainerStatuses = []v1.ContainerStatus{{Name: "main", Image: "nodectl.dev/test/stamp:1", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}, Started: new(false)}}
	}
}

func sandboxed(p *v1.Pod) func(*v1.PodStatus) {
	return func(s *v1.PodStatus) {
		pending(p)(s)
		s.Conditions[0] = condition(v1.PodReadyToStartContainers, true)
		s.PodIP, s.PodIPs = "10.0.0.7", []v1.PodIP{{IP: "10.0.0.7"}}
	}
}

func running(p *v1.Pod, ready bool) func(*v1.PodStatus) {
	return func(s *v1.PodStatus) {
		sandboxed(p)(s)
		s.Phase = v1.PodRunning
		s.Conditions[2], s.Conditions[3] = condition(v1.PodReady, ready), condition(v1.ContainersReady, ready)
		s.ContainerStatuses[0].State = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: started(p)}}
		s.ContainerStatuses[0].Ready, s.ContainerStatuses[0].Started = ready, new(true)
		s.ContainerStatuses[0].ContainerID = "containerd://1"
	}
}

func ended(p *v1.Pod, phase v1.PodPhase, code int32) func(*v1.PodStatus) {
	return func(s *v1.PodStatus) {
		running(p, false)(s)
		s.Phase = phase
		s.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: "Completed", FinishedAt: started(p)}}
	}
}

func finished(r *pod.StatusReport)    { r.Finished = true }
func goneForGood(r *pod.StatusReport) { r.Finished, r.Gone = true, true }

func deleting(p *v1.Pod) bool { return p != nil && p.DeletionTimestamp != nil }

func find(p *v1.Pod, kind v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}
