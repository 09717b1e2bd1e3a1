package critest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// mutating are the calls that change something.
var mutating = map[string]bool{
	"RunPodSandbox": true, "StopPodSandbox": true, "RemovePodSandbox": true, "PullImage": true, "RemoveImage": true,
	"CreateContainer": true, "StartContainer": true, "StopContainer": true, "RemoveContainer": true, "UpdateContainerResources": true,
	"ReopenContainerLog": true,
}

// Transcript returns the calls that changed something, in the order they came, each with the time
// since the start (or Reset), its object, and the code if it failed:
//
//	0s RunPodSandbox default/web attempt=0
//	1.5s CreateContainer default/web/app attempt=0
//	1.5s StartContainer default/web/app attempt=0 -> Unknown
func (rt *Runtime) Transcript() []string {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return append([]string(nil), rt.log...)
}

// AfterEach makes the runtime call f after every call that changes something, before its
// answer: there a test can cut the connection. n counts from 1 and is the line's number in
// the transcript. The call's goroutine waits for f.
func (rt *Runtime) AfterEach(f func(n int, line string)) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.after = f
}

// record adds a call to the transcript; it returns its line's number, 0 for a call that
// changes nothing. The caller holds the mutex.
func (rt *Runtime) record(name, text string) int {
	rt.calls[name]++
	if !mutating[name] {
		return 0
	}
	rt.log = append(rt.log, fmt.Sprintf("%s %s %s", time.Since(rt.start).Round(time.Millisecond), name, text))
	return len(rt.log)
}

// amend adds a call's error to its line of the transcript.
func (rt *Runtime) amend(n int, err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if n <= len(rt.log) {
		rt.log[n-1] += " -> " + status.Code(err).String()
	}
}

// done calls the test's function after a call took effect.
func (rt *Runtime) done(n int) {
	rt.mu.Lock()
	f, line := rt.after, ""
	if n <= len(rt.log) {
		line = rt.log[n-1]
	}
	rt.mu.Unlock()
	if f != nil {
		f(n, line)
	}
}

// describe returns the pod and container of a request, as values and as text. The caller
// holds the mutex.
func (rt *Runtime) describe(name string, q any) (call, string) {
	c := call{method: name}
	switch q := q.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		c.key = keyOf(q.GetConfig())
		return c, fmt.Sprintf("%s attempt=%d", c.key, q.GetConfig().GetMetadata().GetAttempt())
	case *runtimeapi.CreateContainerRequest:
		c.key, c.container = keyOf(q.GetSandboxConfig()), q.GetConfig().GetMetadata().GetName()
		return c, fmt.Sprintf("%s/%s attempt=%d", c.key, c.container, q.GetConfig().GetMetadata().GetAttempt())
	case *runtimeapi.PullImageRequest:
		return c, q.GetImage().GetImage()
	case *runtimeapi.ImageStatusRequest:
		return c, q.GetImage().GetImage()
	case interface{ GetPodSandboxId() string }:
		b := rt.sandboxes[q.GetPodSandboxId()]
		if b == nil {
			return c, "gone"
		}
		c.key = keyOf(b.config)
		return c, fmt.Sprintf("%s attempt=%d", c.key, b.config.GetMetadata().GetAttempt())
	case interface{ GetContainerId() string }:
		have := rt.containers[q.GetContainerId()]
		if have == nil {
			return c, "gone"
		}
		c.key, c.container = have.key(), have.config.GetMetadata().GetName()
		text := fmt.Sprintf("%s/%s attempt=%d", c.key, c.container, have.config.GetMetadata().GetAttempt())
		if q, ok := q.(*runtimeapi.StopContainerRequest); ok {
			text += fmt.Sprintf(" grace=%d", q.GetTimeout())
			if sig := have.config.GetStopSignal(); sig != runtimeapi.Signal_RUNTIME_DEFAULT {
				text += " signal=" + sig.String()
			}
		}
		return c, text
	case *runtimeapi.ListPodSandboxRequest:
		c.key = keyOfSelector(q.GetFilter().GetLabelSelector())
	case *runtimeapi.ListContainersRequest:
		c.key = keyOfSelector(q.GetFilter().GetLabelSelector())
	}
	return c, ""
}

func keyOfSelector(l map[string]string) pod.Key {
	return pod.Key{Namespace: l[pod.LabelPodNamespace], Name: l[pod.LabelPodName]}
}

// Check returns violations of the engine's promises, nil if there were none: two running
// containers of one name at once (I1), two ready sandboxes of one pod, a restart count that
// fell (I4).
func (rt *Runtime) Check() error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return errors.Join(rt.broken...)
}

// checkContainer checks the promises before a container is made. The caller holds the
// mutex.
func (rt *Runtime) checkContainer(b *sandbox, m *runtimeapi.ContainerMetadata) {
	if b.config.GetLabels()[pod.LabelNode] == "" {
		return // a pod of another agent
	}
	for _, c := range rt.containers {
		if c.key() == keyOf(b.config) && c.config.GetMetadata().GetName() == m.GetName() &&
			c.config.GetLabels()[pod.LabelNode] != "" && c.state != runtimeapi.ContainerState_CONTAINER_EXITED {
			rt.breach("I1: %s/%s attempt %d is made while attempt %d is %s", c.key(), m.GetName(), m.GetAttempt(),
				c.config.GetMetadata().GetAttempt(), c.stateText())
		}
	}
	id := strings.Join([]string{b.config.GetMetadata().GetUid(), keyOf(b.config).String(), m.GetName()}, "/")
	if last, seen := rt.counts[id]; seen && m.GetAttempt() < last {
		rt.breach("I4: %s/%s attempt fell from %d to %d", keyOf(b.config), m.GetName(), last, m.GetAttempt())
	}
	rt.counts[id] = m.GetAttempt()
}

// forgetCounts resets the attempts of a pod that has no sandboxes left. The caller holds
// the mutex.
func (rt *Runtime) forgetCounts(gone *sandbox) {
	uid := gone.config.GetMetadata().GetUid()
	for _, b := range rt.sandboxes {
		if b.config.GetMetadata().GetUid() == uid {
			return
		}
	}
	for id := range rt.counts {
		if strings.HasPrefix(id, uid+"/") {
			delete(rt.counts, id)
		}
	}
}

// checkSandbox checks the promises before a sandbox is made. The caller holds the mutex.
func (rt *Runtime) checkSandbox(config *runtimeapi.PodSandboxConfig) {
	if config.GetLabels()[pod.LabelNode] == "" {
		return
	}
	for _, b := range rt.sandboxes {
		if b.ready && keyOf(b.config) == keyOf(config) && b.config.GetLabels()[pod.LabelNode] != "" {
			rt.breach("I1: sandbox of %s attempt %d is made while attempt %d is ready", keyOf(config),
				config.GetMetadata().GetAttempt(), b.config.GetMetadata().GetAttempt())
		}
	}
}

func (rt *Runtime) breach(format string, args ...any) {
	rt.broken = append(rt.broken, fmt.Errorf("after %s: %s", time.Since(rt.start), fmt.Sprintf(format, args...)))
}
