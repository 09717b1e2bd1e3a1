package agent

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/event"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/suspect"
)

const (
	// registryTimeout is the time limit for the answer of a registry, and nameServerTimeout for the
	// answer of a name server after it.
	registryTimeout, nameServerTimeout = 2 * time.Second, time.Second
	// apiServerTimeout is the time limit for the API server's answer about a pod. watchDelay is how
	// much later the watch may show the version in that answer.
	apiServerTimeout, watchDelay = 2 * time.Second, time.Second
	// agentHangsAfter is the minimum duration of a call of the agent itself in a report about a pod.
	agentHangsAfter = 5 * time.Second
	// watchSilentAfter is the time without an event after which a report names the watch of an API
	// server's pod. Servers send a bookmark about every minute.
	watchSilentAfter = 90 * time.Second
	// maxWarnings limits the events in a report.
	maxWarnings = 3
)

// explainer implements server.Explainer.
type explainer struct {
	*Agent
	live    *feed.Live
	finder  *suspect.Finder
	answers func(ctx context.Context, registry string) bool
	lookup  func(ctx context.Context, host string) ([]string, error)
	pods    podReader     // nil without an API server
	host    func() string // of the API server
}

// podReader reads pods from an API server.
type podReader interface {
	// Pod returns the server's current version of a pod of a node; nil if the server has none.
	Pod(ctx context.Context, node, namespace, name string) (*v1.Pod, error)
}

// Why implements server.Explainer. It waits at most a few seconds for calls that may hang.
func (e explainer) Why(ctx context.Context, namespace, name string) (activity.Report, bool) {
	key := pod.Key{Namespace: namespace, Name: name}
	r := activity.Report{Namespace: namespace, Name: name, Now: time.Now(), Calls: e.board.Calls(key)}
	if s, ok := e.board.State(key); ok {
		r.State = &s
	}
	shown, known := e.live.Pod(key)
	desired := e.live.Desired(key)
	if !known && desired != nil {
		shown = desired.Pod
	}
	if shown == nil && r.State == nil && len(r.Calls) == 0 {
		r.Server = e.server(ctx, key, nil)
		r.Summarize()
		return r, r.Server != nil
	}
	if shown != nil {
		r.UID = string(shown.UID)
	}
	if known {
		r.Phase, r.Reason, r.Message = string(shown.Status.Phase), shown.Status.Reason, shown.Status.Message
		r.Stopping = desired == nil || shown.DeletionTimestamp != nil
		r.NotReady = notReady(shown)
	}
	r.Agent = slices.DeleteFunc(e.board.Calls(pod.Key{}), func(c activity.Call) bool {
		if c.Kind == activity.Watch {
			return desired == nil || !desired.Origin.FromAPI() || r.Now.Sub(c.Since) < watchSilentAfter
		}
		return r.Now.Sub(c.Since) < agentHangsAfter
	})
	if s, ok := e.board.State(pod.Key{}); ok {
		r.AgentWaits = s.WaitFor
	}
	r.Source = e.source(desired)
	for _, ev := range e.events.List(event.Filter{Kind: "Pod", Namespace: namespace, Name: name, UID: r.UID}) {
		if ev.Type == pod.EventWarning {
			r.Warnings = append(r.Warnings, activity.Warning{Reason: ev.Reason, Message: ev.Message, Count: int(max(ev.Count, 1)), At: ev.LastTimestamp.Time})
		}
	}
	r.Warnings = r.Warnings[max(len(r.Warnings)-maxWarnings, 0):]
	var wg sync.WaitGroup
	if desired != nil && desired.Origin.FromAPI() {
		wg.Go(func() { r.Server = e.server(ctx, key, desired) })
	}
	e.suspects(ctx, &r, shown)
	wg.Wait()
	r.Summarize()
	return r, true
}

// source returns the source of a desired pod if it does not answer or cannot be read.
func (e explainer) source(of *pod.Spec) *activity.Source {
	for _, s := range e.live.Sources() {
		if s.Error == "" && s.Ready || of == nil || of.Origin.Layer() != s.Name {
			continue
		}
		text := s.Error
		if text == "" {
			text = "it has not answered yet"
		}
		return &activity.Source{Name: s.Name, Error: text, Since: s.Since}
	}
	return nil
}

// server asks the API server for a pod, and compares the answer with the agent's version. A
// difference means that the watch is stuck. It returns nil if there is no difference. desired is
// nil for a pod that the agent does not know.
func (e explainer) server(ctx context.Context, key pod.Key, desired *pod.Spec) *activity.Server {
	if e.pods == nil {
		return nil
	}
	asked, cancel := context.WithTimeout(ctx, apiServerTimeout)
	defer cancel()
	served, err := e.pods.Pod(asked, strings.ToLower(e.cfg.NodeName), key.Namespace, key.Name)
	s := &activity.Server{Host: e.host()}
	switch {
	case err != nil && desired != nil:
		s.Error = "it does not return the pod: " + strings.TrimPrefix(err.Error(), s.Host+": ")
		return s
	case err != nil, desired == nil && served == nil:
		return nil
	}
	if s.Error = e.missingVersion(served, key); s.Error != "" && backoff.Sleep(ctx, watchDelay) {
		s.Error = e.missingVersion(served, key)
	}
	if s.Error == "" {
		return nil
	}
	return s
}

// missingVersion returns a text with the version of a pod that the watch has not shown; "" if the
// watch has shown the server's version. served is the server's version, nil if there is none.
func (e explainer) missingVersion(served *v1.Pod, key pod.Key) string {
	all := e.board.Calls(pod.Key{})
	i := slices.IndexFunc(all, func(c activity.Call) bool { return c.Kind == activity.Watch && c.Target == podsWatch })
	switch {
	case served == nil && e.live.Desired(key) == nil:
		return ""
	case i < 0:
		return "the agent does not watch its pods now"
	case served == nil:
		return "it has deleted the pod, and " + e.lastShown(all[i])
	case apiclient.Older(all[i].Version, served.ResourceVersion):
		return "it has version " + served.ResourceVersion + " of the pod, and " + e.lastShown(all[i])
	}
	return ""
}

// podsWatch is the target of the watch of this node's pods.
const podsWatch = "pods/"

func (e explainer) lastShown(watch activity.Call) string {
	return "the watch has shown nothing newer than version " + watch.Version + " for " + time.Since(watch.Since).Truncate(time.Second).String()
}

// notReady names the containers of a pod that run and are not ready.
func notReady(p *v1.Pod) (names []string) {
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if c.State.Running != nil && !c.Ready {
			names = append(names, "container "+c.Name)
		}
	}
	return names
}

// suspects adds the mounts, processes and registries that the pod may hang on.
func (e explainer) suspects(ctx context.Context, r *activity.Report, of *v1.Pod) {
	hanging := r.Hanging()
	if len(hanging) == 0 && len(r.NotReady) == 0 && r.State == nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.Mounts = e.finder.Mounts(ctx, pathsOf(hanging, of), e.directories(r.UID)) })
	wg.Go(func() {
		files := slices.ContainsFunc(hanging, func(c activity.Call) bool {
			return c.Kind == activity.Volume || c.Kind == activity.Log || c.Kind == activity.Record
		})
		r.Processes = e.finder.Processes(ctx, suspect.Target{Key: pod.Key{Namespace: r.Namespace, Name: r.Name}, UID: r.UID, Agent: files})
	})
	for _, c := range hanging {
		if c.Kind == activity.Pull {
			wg.Go(func() { r.Registries = []activity.Registry{e.registry(ctx, c)} })
			break // a pod pulls one image at a time
		}
	}
	wg.Wait()
	// Mounts that answer matter only if a hanging call uses them.
	r.Mounts = slices.DeleteFunc(r.Mounts, func(m activity.Mount) bool {
		return !m.Hangs && m.Error == "" && (m.Path == "/" || !slices.ContainsFunc(hanging, func(c activity.Call) bool {
			return c.Path == m.Path || strings.HasPrefix(c.Path, m.Path+"/")
		}))
	})
}

// pathsOf returns the paths of hanging calls, and the hostPaths of the pod.
func pathsOf(hanging []activity.Call, of *v1.Pod) (paths []string) {
	for _, c := range hanging {
		if c.Path != "" {
			paths = append(paths, c.Path)
		}
	}
	if of == nil {
		return paths
	}
	for i := range of.Spec.Volumes {
		if h := of.Spec.Volumes[i].HostPath; h != nil {
			paths = append(paths, filepath.Clean(h.Path))
		}
	}
	return paths
}

// directories returns the directories in which the pod's volumes are mounted.
func (e explainer) directories(uid string) []string {
	if !filepath.IsLocal(uid) {
		return nil
	}
	return []string{filepath.Join(e.cfg.RootDir, "pods", uid)}
}

// registry asks the registry of a pull whether it answers. It skips a queued pull, which has not
// contacted the registry yet.
func (e explainer) registry(ctx context.Context, c activity.Call) activity.Registry {
	r := activity.Registry{Host: c.Host}
	for _, p := range e.runtime.puller.Pulls() {
		if p.Image == c.Target && p.Waiting {
			r.Waiting = true
			return r
		}
	}
	asked, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	if e.answers(asked, c.Host) {
		return r
	}
	r.Error = "it does not answer"
	name := c.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	named, cancel := context.WithTimeout(ctx, nameServerTimeout)
	defer cancel()
	_, err := e.lookup(named, name)
	switch dns, _ := errors.AsType[*net.DNSError](err); {
	case err == nil:
	case named.Err() != nil:
		r.Error = "no name server answers for " + name
	case dns != nil:
		r.Error = "its name cannot be resolved: " + dns.Err
	}
	return r
}

// newExplainer returns the explainer of a serving agent.
func (a *Agent) newExplainer(live *feed.Live) explainer {
	answers := func(ctx context.Context, registry string) bool {
		return image.RegistryAnswers(ctx, registry, a.cfg.mirrors(registry)...)
	}
	e := explainer{Agent: a, live: live, finder: suspect.New(), answers: answers, lookup: net.DefaultResolver.LookupHost}
	if a.api != nil {
		e.pods, e.host = a.api.reader, a.api.client.Host
	}
	return e
}
