package agent

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/event"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// servedPods are the pods of an API server.
type servedPods func(ctx context.Context) (*v1.Pod, error)

func (s servedPods) Pod(ctx context.Context, _, _, _ string) (*v1.Pod, error) { return s(ctx) }

// The API server does not answer, or its watch sends nothing: the report about a pod of the
// server names it within five seconds, also for a pod that the agent does not know.
//
// Shows: F22
func TestWhy_APIServerOrWatchHangs_IsNamed(t *testing.T) {
	const host = "https://api.test:6443"
	at := func(version string) *v1.Pod {
		p := &v1.Pod{}
		p.Namespace, p.Name, p.ResourceVersion = "default", "web", version
		return p
	}
	hangs := func(ctx context.Context) (*v1.Pod, error) {
		<-ctx.Done()
		return nil, errors.New(host + ": timeout")
	}
	answers := func(p *v1.Pod) servedPods { return func(context.Context) (*v1.Pod, error) { return p, nil } }
	for name, c := range map[string]struct {
		known  bool
		pods   servedPods
		watch  string // the version that it has shown; "": there is no watch
		want   string // of the summary; "": nothing is missing
		absent bool   // the agent knows nothing of the pod
	}{
		"the watch has shown it":     {known: true, pods: answers(at("120")), watch: "120"},
		"server":                     {known: true, pods: hangs, watch: "120", want: "it does not return the pod: timeout"},
		"watch":                      {known: true, pods: answers(at("121")), watch: "120", want: "it has version 121 of the pod, and the watch has shown nothing newer than version 120 for"},
		"watch, a deleted pod":       {known: true, pods: answers(nil), watch: "120", want: "it has deleted the pod, and the watch has shown nothing newer"},
		"no watch":                   {known: true, pods: answers(at("121")), want: "the agent does not watch its pods now"},
		"watch, a new pod":           {pods: answers(at("121")), watch: "120", want: "it has version 121 of the pod"},
		"a pod that does not exist":  {pods: answers(nil), watch: "120", absent: true},
		"an unknown pod, and server": {pods: hangs, watch: "120", absent: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				board := activity.NewBoard()
				if c.watch != "" {
					board.Begin(pod.Key{}, activity.Call{Kind: activity.Watch, Name: "watch", Target: "pods/", Host: host, Version: c.watch})
				}
				var cfg Config
				cfg.NodeName = "n1"
				e := explainer{
					Agent: &Agent{cfg: cfg, board: board, events: event.Open(event.Config{Path: dir + "/events"})},
					live:  knownPods(c.known), pods: c.pods, host: func() string { return host },
				}
				began := time.Now()
				r, ok := e.Why(t.Context(), "default", "web")
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the report took %s", took)
				}
				switch {
				case ok == c.absent:
					t.Errorf("the agent knows the pod: %t", ok)
				case c.want != "" && !strings.HasPrefix(r.Summary, "API server "+host+": "+c.want):
					t.Errorf("summary %q, want %q in it", r.Summary, c.want)
				case c.want == "" && r.Server != nil:
					t.Errorf("the report names the API server: %+v", r.Server)
				}
			})
		})
	}
}

// knownPods shows the pod web of an API server, or none.
func knownPods(known bool) *feed.Live {
	state := &podconfig.Merged{Layers: []podconfig.LayerState{{Name: "api:/k", Ready: true}}}
	if known {
		p := &v1.Pod{}
		p.Namespace, p.Name = "default", "web"
		spec := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: pod.SourceAPI, Location: "/k"}}
		state.Pods = sorted.Of(spec)
	}
	publisher := feed.NewPublisher(state.Layers)
	publisher.PublishBatch(podconfig.Batch{State: state})
	return publisher.Live()
}

// The registry of a hanging pull does not answer: the report says whether its name could be
// resolved.
//
// Shows: F22
func TestWhy_RegistryIsNotResolved_IsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		lookup func(ctx context.Context) error
		want   string
	}{
		"no such name": {func(context.Context) error { return &net.DNSError{Err: "no such host", IsNotFound: true} }, "its name cannot be resolved: no such host"},
		"no name server": {func(ctx context.Context) error {
			<-ctx.Done()
			return &net.DNSError{Err: "timeout", IsTimeout: true}
		}, "no name server answers for registry.test"},
		"resolved": {func(context.Context) error { return nil }, "it does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := explainer{
					Agent:   &Agent{runtime: &containerRuntime{puller: image.New(image.Config{})}},
					answers: func(ctx context.Context, _ string) bool { <-ctx.Done(); return false },
					lookup:  func(ctx context.Context, _ string) ([]string, error) { return nil, c.lookup(ctx) },
				}
				began := time.Now()
				got := e.registry(t.Context(), activity.Call{Kind: activity.Pull, Target: "registry.test:5000/app:1", Host: "registry.test:5000"})
				if took := time.Since(began); got.Error != c.want || took > 5*time.Second {
					t.Errorf("after %s: %q, want %q", took, got.Error, c.want)
				}
			})
		})
	}
}
