package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/compare"
)

// A recorder collects the events of the pods of all cases, from the tap's calls, the runtime's
// events and the agent's own list. It never changes anything.
type recorder struct {
	runtime cri.RuntimeServiceClient

	mu        sync.Mutex
	pods      map[string]*PodRecord // by name in the manifest
	sandboxes map[string]*Sandbox   // by ID
	runs      map[string]*Run       // by ID
	last      map[string][]byte     // the newest status of a pod
}

// flatten splits a request to the runtime into facts.
func flatten(path string, v any) compare.Facts {
	return compare.Flatten(path, v, "name", "key", "container_path", "type")
}

func newRecorder(runtime cri.RuntimeServiceClient) *recorder {
	return &recorder{
		runtime: runtime, pods: map[string]*PodRecord{}, sandboxes: map[string]*Sandbox{},
		runs: map[string]*Run{}, last: map[string][]byte{},
	}
}

// pod returns the record of a pod by the name it has on the node. The caller
// holds the lock.
func (r *recorder) pod(name string) *PodRecord {
	name = strings.TrimSuffix(name, "-"+nodeName)
	p := r.pods[name]
	if p == nil {
		p = &PodRecord{}
		r.pods[name] = p
	}
	return p
}

// see records one call of the agent.
func (r *recorder) see(ctx context.Context, c call) {
	switch q := c.request.(type) {
	case *cri.RemoveContainerRequest:
		r.status(ctx, q.ContainerId) // the last chance
	case *cri.StopContainerRequest:
		r.status(ctx, q.ContainerId) // one that ended by itself is not stopped
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch q := c.request.(type) {
	case *cri.RunPodSandboxRequest:
		p, config := r.pod(q.GetConfig().GetMetadata().GetName()), flatten("", q.Config)
		if q.RuntimeHandler != "" {
			config["runtime_handler"] = q.RuntimeHandler
		}
		if c.err != nil {
			p.refused("sandbox", config, c.err)
			return
		}
		s := &Sandbox{ID: c.reply.(*cri.RunPodSandboxResponse).PodSandboxId, Created: c.at, Attempt: q.Config.Metadata.Attempt, Config: config}
		r.sandboxes[s.ID] = s
		p.Slowest = max(p.Slowest, time.Since(c.at))
		p.Sandboxes = append(p.Sandboxes, s)
	case *cri.StopPodSandboxRequest:
		if s := r.sandboxes[q.PodSandboxId]; s != nil && s.Stopped.IsZero() {
			s.Stopped = c.at
		}
	case *cri.RemovePodSandboxRequest:
		if s := r.sandboxes[q.PodSandboxId]; s != nil && c.err == nil {
			s.Removed = time.Now()
		}
	case *cri.PullImageRequest:
		p := r.pod(q.GetSandboxConfig().GetMetadata().GetName())
		if line := pullLine(q, c.err); !slices.Contains(p.Pulls, line) {
			p.Pulls = append(p.Pulls, line)
		}
	case *cri.CreateContainerRequest:
		if c.err != nil {
			r.pod(q.GetSandboxConfig().GetMetadata().GetName()).refused(q.GetConfig().GetMetadata().GetName(), flatten("", q.Config), c.err)
			return
		}
		run := &Run{
			ID: c.reply.(*cri.CreateContainerResponse).ContainerId, Sandbox: q.PodSandboxId, Container: q.Config.Metadata.Name,
			Attempt: q.Config.Metadata.Attempt, Created: c.at, Config: flatten("", q.Config),
			pod:  q.SandboxConfig.GetMetadata().GetName(),
			path: filepath.Join(q.SandboxConfig.GetLogDirectory(), q.Config.LogPath),
		}
		r.runs[run.ID] = run
		p := r.pod(q.SandboxConfig.GetMetadata().GetName())
		p.Slowest = max(p.Slowest, time.Since(c.at))
		p.Runs = append(p.Runs, run)
	case *cri.StartContainerRequest:
		if run := r.runs[q.ContainerId]; run != nil {
			p := r.pod(run.pod)
			p.Slowest = max(p.Slowest, time.Since(c.at))
		}
	case *cri.StopContainerRequest:
		if run := r.runs[q.ContainerId]; run != nil && run.Asked.IsZero() && run.Finished.IsZero() {
			run.Asked, run.Grace = c.at, q.Timeout
		}
	case *cri.RemoveContainerRequest:
		if run := r.runs[q.ContainerId]; run != nil {
			run.Removed = c.at
		}
	case *cri.UpdateContainerResourcesRequest:
		if run := r.runs[q.ContainerId]; run != nil && c.err == nil {
			run.Resized = append(run.Resized, flatten("linux", q.Linux))
		}
	}
}

// refused keeps the first request that the runtime refused.
func (p *PodRecord) refused(what string, config compare.Facts, err error) {
	if p.Refused == nil {
		p.Refused = map[string]compare.Facts{}
	}
	if p.Refused[what] == nil {
		config["error"] = grpcstatus.Convert(err).Message()
		p.Refused[what] = config
	}
}

// pullLine describes an agent's image pull.
func pullLine(q *cri.PullImageRequest, err error) string {
	line := q.GetImage().GetImage()
	if q.GetImage().GetRuntimeHandler() != "" {
		line += " for " + q.Image.RuntimeHandler
	}
	if a := q.GetAuth(); a != nil {
		line += fmt.Sprintf(" as %s:%s%s of %s", a.Username, a.Password, a.Auth, a.ServerAddress)
	}
	if err != nil {
		line += ": " + grpcstatus.Code(err).String()
	}
	return line
}

// status asks the runtime for a container's status, and records the final values.
func (r *recorder) status(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	answer, err := r.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return // removed, and read before that
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	run, s := r.runs[id], answer.Status
	if run == nil {
		return
	}
	if s.StartedAt > 0 {
		run.Started = time.Unix(0, s.StartedAt)
	}
	if run.file == nil && run.path != "" {
		run.file, _ = os.Open(run.path)
	}
	if s.State == cri.ContainerState_CONTAINER_EXITED {
		run.Finished, run.Exit, run.Reason = time.Unix(0, s.FinishedAt), s.ExitCode, s.Reason
	}
}

// follow listens to the runtime's events until ctx ends.
func (r *recorder) follow(ctx context.Context) error {
	stream, err := r.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		switch e.ContainerEventType {
		case cri.ContainerEventType_CONTAINER_STARTED_EVENT, cri.ContainerEventType_CONTAINER_STOPPED_EVENT:
			r.status(ctx, e.ContainerId)
		}
	}
}

// period is how often the recorder polls the agent for its pods.
const period = 250 * time.Millisecond

// poll asks the agent for its pods until ctx ends. It retries after an error: the agent may
// be starting.
func (r *recorder) poll(ctx context.Context, a *arm.Agent, place arm.Place) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for ctx.Err() == nil {
		at := time.Now()
		var list v1.PodList
		if err := a.Pods(ctx, place, &list); err == nil {
			r.observe(at, list.Items)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (r *recorder) observe(at time.Time, pods []v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range pods {
		name, status := pods[i].Name, &pods[i].Status
		text, err := json.Marshal(status)
		if err != nil {
			continue // it was decoded from JSON
		}
		p := r.pod(name)
		if n := len(p.Seen); n > 0 && bytes.Equal(r.last[name], text) {
			p.Seen[n-1].To = at
			continue
		}
		if n := len(p.Seen); n > 0 && at.Sub(p.Seen[n-1].To) < 3*period {
			p.Seen[n-1].To = at
		}
		r.last[name] = text
		p.Seen = append(p.Seen, Seen{From: at, To: at, Status: *status})
	}
}

// forget removes the record of a pod, so that it starts empty.
func (r *recorder) forget(pod string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, pod)
	delete(r.last, pod+"-"+nodeName)
}

// left reports whether the runtime has a sandbox of a case.
func (r *recorder) left(ctx context.Context, cases []*Case) (bool, error) {
	list, err := r.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return false, err
	}
	there := map[string]bool{}
	for _, s := range list.Items {
		there[s.Metadata.Name] = true
	}
	for _, c := range cases {
		names, err := c.pods()
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(names, func(pod string) bool { return there[pod+"-"+nodeName] }) {
			return true, nil
		}
	}
	return false, nil
}

// started reports whether a container of a pod ever ran.
func (r *recorder) started(pod string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[pod] != nil && slices.ContainsFunc(r.pods[pod].Runs, func(run *Run) bool { return !run.Started.IsZero() })
}

// running returns the runs of a pod that have started and not ended.
func (r *recorder) running(pod string) []*Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[pod]
	if p == nil {
		return nil
	}
	var found []*Run
	for _, run := range p.Runs {
		if !run.Started.IsZero() && run.Finished.IsZero() {
			c := *run
			found = append(found, &c)
		}
	}
	return found
}

// take returns a copy of a pod's record with the logs of its runs, which no longer grow.
func (r *recorder) take(ctx context.Context, pod string) *PodRecord {
	r.mu.Lock()
	var open []string
	for _, run := range r.pod(pod).Runs {
		if run.Finished.IsZero() {
			open = append(open, run.ID)
		}
	}
	r.mu.Unlock()
	for _, id := range open {
		r.status(ctx, id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := *r.pod(pod)
	p.Runs, p.Sandboxes, p.Seen = slices.Clone(p.Runs), slices.Clone(p.Sandboxes), slices.Clone(p.Seen)
	for i, run := range p.Runs {
		if run.file != nil {
			text, _ := io.ReadAll(run.file)
			run.Log = string(text)
			run.file.Close()
			run.file = nil
			run.path = ""
		}
		c := *run
		p.Runs[i] = &c
	}
	for i, s := range p.Sandboxes {
		c := *s
		p.Sandboxes[i] = &c
	}
	return &p
}

// inside keeps how a pod's containers look.
func (r *recorder) inside(pod string, looks map[string]Look, files []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pod(pod)
	p.Inside, p.Files = looks, files
}
