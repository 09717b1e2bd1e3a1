package critest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer implements CRI.
func (rt *Runtime) CreateContainer(_ context.Context, q *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	b := rt.sandboxes[q.GetPodSandboxId()]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", q.GetPodSandboxId())
	}
	if !b.ready {
		return nil, status.Errorf(codes.Unknown, "failed to get sandbox container task: no running task found: sandbox %q is not ready", b.id)
	}
	m := q.GetConfig().GetMetadata()
	for _, c := range rt.containers {
		if c.sandbox.GetMetadata().GetUid() == b.config.GetMetadata().GetUid() && c.key() == keyOf(b.config) &&
			c.config.GetMetadata().GetName() == m.GetName() && c.config.GetMetadata().GetAttempt() == m.GetAttempt() {
			name := fmt.Sprintf("%s_%s_%s_%d", m.GetName(), b.config.GetMetadata().GetName(), b.config.GetMetadata().GetNamespace(), m.GetAttempt())
			return nil, status.Errorf(codes.Unknown, "failed to reserve container name %q: name %q is reserved for %q", name, name, c.id)
		}
	}
	image := q.GetConfig().GetImage().GetImage()
	if !rt.present(rt.imageName(image)) {
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q: not found", image)
	}
	rt.checkContainer(b, m)
	rt.serial++
	c := &container{
		id: fmt.Sprintf("container-%s-%s-%d-%d", b.config.GetMetadata().GetName(), m.GetName(), m.GetAttempt(), rt.serial), serial: rt.serial,
		sandboxID: b.id, sandbox: b.config, config: q.GetConfig(), does: rt.behaviourOf(q.GetConfig()),
		state: runtimeapi.ContainerState_CONTAINER_CREATED, created: time.Now().UnixNano(), done: make(chan struct{}),
	}
	rt.containers[c.id] = c
	rt.publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, c.id, b.id)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

// StartContainer implements CRI.
func (rt *Runtime) StartContainer(_ context.Context, q *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	c := rt.containers[q.GetContainerId()]
	if c == nil {
		return nil, rt.noContainer(q.GetContainerId())
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.Unknown, "failed to set starting state for container %q: container is in %s state", c.id, c.state)
	}
	if b := rt.sandboxes[c.sandboxID]; b == nil || !b.ready {
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", c.sandboxID)
	}
	if c.does.StartError != "" {
		rt.ended(c, 128, "StartError", c.does.StartError) // without an event, like containerd
		return nil, status.Error(codes.Unknown, c.does.StartError)
	}
	if err := c.openLog(c.does.Output); err != nil {
		return nil, status.Errorf(codes.Unknown, "failed to create container loggers: %v", err)
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	rt.publish(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c.id, c.sandboxID)
	if c.does.Ends {
		c.timer = time.AfterFunc(c.does.After, func() { rt.endIf(c, c.does.Code) })
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// endIf ends c with code unless it has ended before.
func (rt *Runtime) endIf(c *container, code int32) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if c.running() {
		rt.exit(c, code, "", "")
	}
}

// exit records the end of a container and publishes it. The caller holds the mutex.
func (rt *Runtime) exit(c *container, code int32, reason, message string) {
	rt.ended(c, code, reason, message)
	rt.publish(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.id, c.sandboxID)
}

func (rt *Runtime) ended(c *container, code int32, reason, message string) {
	c.stopTimer()
	if c.started != 0 && reason == "" && code != 137 { // a killed process writes no message
		c.leave(c.does.Message)
	}
	if reason == "" && c.childKilled {
		reason = "OOMKilled"
	}
	if reason == "" {
		reason = "Error"
		if code == 0 {
			reason = "Completed"
		}
	}
	c.state, c.code, c.reason, c.message = runtimeapi.ContainerState_CONTAINER_EXITED, code, reason, message
	c.finished = time.Now().UnixNano()
	close(c.done)
}

// StopContainer implements CRI: the stop signal, the grace period, SIGKILL. A container
// that ignores SIGTERM still ends on another signal. If ctx ends, no further signal is
// sent.
func (rt *Runtime) StopContainer(ctx context.Context, q *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	rt.mu.Lock()
	c := rt.containers[q.GetContainerId()]
	if c == nil || !c.running() {
		rt.mu.Unlock()
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if ends, code := c.onStop(); q.GetTimeout() > 0 && ends {
		if c.does.TermDelay == 0 {
			rt.exit(c, code, "", "")
		} else {
			time.AfterFunc(c.does.TermDelay, func() { rt.endIf(c, code) })
		}
	}
	rt.mu.Unlock()

	if q.GetTimeout() > 0 {
		grace := time.NewTimer(time.Duration(q.GetTimeout()) * time.Second)
		defer grace.Stop()
		select {
		case <-c.done:
		case <-grace.C:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	rt.endIf(c, 137)
	return &runtimeapi.StopContainerResponse{}, nil
}

// onStop reports whether the stop signal ends the container, and returns the exit code.
func (c *container) onStop() (ends bool, code int32) {
	sig := c.config.GetStopSignal()
	if sig == runtimeapi.Signal_RUNTIME_DEFAULT || sig == runtimeapi.Signal_SIGTERM {
		return !c.does.IgnoreTerm, c.does.TermCode
	}
	if c.does.TermCode != uncaughtTerm {
		return true, c.does.TermCode
	}
	return true, 128 + int32(unix.SignalNum(sig.String()))
}

// RemoveContainer implements CRI: a running container is killed first.
func (rt *Runtime) RemoveContainer(_ context.Context, q *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if c := rt.containers[q.GetContainerId()]; c != nil {
		rt.remove(c)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (rt *Runtime) remove(c *container) {
	if c.running() {
		rt.exit(c, 137, "", "")
	}
	delete(rt.containers, c.id)
	rt.publish(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.id, c.sandboxID)
}

// ListContainers implements CRI.
func (rt *Runtime) ListContainers(_ context.Context, q *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	a := &runtimeapi.ListContainersResponse{}
	for _, c := range rt.containers {
		f := q.GetFilter()
		if f.GetId() != "" && f.GetId() != c.id || f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandboxID ||
			f.GetState() != nil && f.GetState().GetState() != c.state || !selects(f.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		s := rt.containerStatus(c)
		a.Containers = append(a.Containers, &runtimeapi.Container{
			Id: s.Id, PodSandboxId: c.sandboxID, Metadata: s.Metadata, Image: s.Image, ImageRef: s.ImageRef, ImageId: s.ImageId,
			State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
		})
	}
	return a, nil
}

// ContainerStatus implements CRI.
func (rt *Runtime) ContainerStatus(_ context.Context, q *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	c := rt.containers[q.GetContainerId()]
	if c == nil {
		return nil, rt.noContainer(q.GetContainerId())
	}
	return &runtimeapi.ContainerStatusResponse{Status: rt.containerStatus(c)}, nil
}

func (rt *Runtime) noContainer(id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
}

func (rt *Runtime) containerStatus(c *container) *runtimeapi.ContainerStatus {
	s := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state, CreatedAt: c.created, StartedAt: c.started, FinishedAt: c.finished,
		ExitCode: c.code, Reason: c.reason, Message: c.message, Image: c.config.GetImage(),
		ImageRef: imageID(rt.imageName(c.config.GetImage().GetImage())), Labels: maps.Clone(c.config.GetLabels()),
		Annotations: maps.Clone(c.config.GetAnnotations()), Mounts: c.config.GetMounts(),
		Resources: &runtimeapi.ContainerResources{Linux: c.limits()}, StopSignal: c.config.GetStopSignal(),
		User: rt.user(c),
	}
	s.ImageId = s.ImageRef
	if dir, file := c.sandbox.GetLogDirectory(), c.config.GetLogPath(); dir != "" && file != "" {
		s.LogPath = path.Join(dir, file)
	}
	return s
}
