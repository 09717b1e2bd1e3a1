package cri

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Streams are the streams of an exec or attach. With a TTY, stderr is part of stdout.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// NoContainerError says that a pod runs no container of that name now.
type NoContainerError struct{ Name string }

// Error is the kubelet's message.
func (e *NoContainerError) Error() string { return fmt.Sprintf("container not found (%q)", e.Name) }

// Is makes it match ErrNotFound.
func (e *NoContainerError) Is(target error) bool { return target == ErrNotFound }

// RunningContainer returns the ID of the running container of that name in the pod of that
// UID; a *NoContainerError if there is none.
func (r *Runtime) RunningContainer(ctx context.Context, uid, name string) (string, error) {
	sel := r.selector()
	sel[pod.LabelPodUID], sel[pod.LabelContainerName] = uid, name
	a, err := read(ctx, r, "ListContainers", r.rt.ListContainers, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: sel,
	}})
	if err != nil {
		return "", err
	}
	var last *runtimeapi.Container
	for _, c := range a.GetContainers() {
		if last == nil || c.GetCreatedAt() > last.GetCreatedAt() {
			last = c
		}
	}
	if last == nil {
		return "", &NoContainerError{name}
	}
	return last.GetId(), nil
}

// ExecURL returns the URL at which the runtime streams a command in a running container,
// for one connection that is made soon (C-1.40.9). The call is not cancelled with its
// caller: the runtime would keep a URL that nothing uses.
func (r *Runtime) ExecURL(ctx context.Context, uid, container string, cmd []string, s Streams) (*url.URL, error) {
	id, err := r.RunningContainer(ctx, uid, container)
	if err != nil {
		return nil, err
	}
	a, err := act(ctx, r, "Exec", r.cfg.Timeouts.Read, r.rt.Exec, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: cmd, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr && !s.TTY,
	})
	if err != nil {
		return nil, err
	}
	return streamURL("Exec", a.GetUrl())
}

// AttachURL returns the URL at which the runtime streams a running container's input and
// output, for one connection that is made soon.
func (r *Runtime) AttachURL(ctx context.Context, uid, container string, s Streams) (*url.URL, error) {
	id, err := r.RunningContainer(ctx, uid, container)
	if err != nil {
		return nil, err
	}
	a, err := act(ctx, r, "Attach", r.cfg.Timeouts.Read, r.rt.Attach, &runtimeapi.AttachRequest{
		ContainerId: id, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr && !s.TTY,
	})
	if err != nil {
		return nil, err
	}
	return streamURL("Attach", a.GetUrl())
}

// PortForwardURL returns the URL at which the runtime forwards to ports of a pod, for one
// connection that is made soon.
func (r *Runtime) PortForwardURL(ctx context.Context, uid string) (*url.URL, error) {
	sel := r.selector()
	sel[pod.LabelPodUID] = uid
	boxes, err := read(ctx, r, "ListPodSandbox", r.rt.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		LabelSelector: sel,
	}})
	if err != nil {
		return nil, err
	}
	var last *runtimeapi.PodSandbox
	for _, b := range boxes.GetItems() {
		if last == nil || b.GetCreatedAt() > last.GetCreatedAt() {
			last = b
		}
	}
	if last == nil {
		return nil, fmt.Errorf("the pod does not run: %w", ErrNotFound)
	}
	a, err := act(ctx, r, "PortForward", r.cfg.Timeouts.Read, r.rt.PortForward, &runtimeapi.PortForwardRequest{PodSandboxId: last.GetId()})
	if err != nil {
		return nil, err
	}
	return streamURL("PortForward", a.GetUrl())
}

// streamURL parses the URL in the runtime's answer.
func streamURL(method, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &CallError{Method: method, Msg: "container runtime answered " + method + " with an invalid URL"}
	}
	return u, nil
}

// CheckpointContainer makes the runtime write a running container to an archive at path;
// timeout is for the runtime, 0 is its default (C-1.40.10). A runtime that does not support
// it is errors.ErrUnsupported.
func (r *Runtime) CheckpointContainer(ctx context.Context, uid, container, path string, timeout time.Duration) error {
	id, err := r.RunningContainer(ctx, uid, container)
	if err != nil {
		return err
	}
	seconds := int64((timeout + time.Second - 1) / time.Second)
	_, err = act(ctx, r, "CheckpointContainer", max(r.cfg.Timeouts.Call, timeout+execSlack), r.rt.CheckpointContainer,
		&runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: path, Timeout: seconds})
	if e := (*CallError)(nil); errors.As(err, &e) && e.kind == nil && lacksCRIU(e.Msg) {
		e.kind = errors.ErrUnsupported
	}
	return err
}

// lacksCRIU reports whether the runtime's error says that it cannot write checkpoints:
// containerd and CRI-O give such errors no code of their own.
func lacksCRIU(message string) bool {
	return slices.ContainsFunc([]string{
		"criu support is disabled",                  // containerd 2.4, by its configuration
		"criu binary not found",                     // containerd 2.4, CRI-O
		"checkpoint/restore requires at least criu", // containerd 2.4: it is too old
		"checkpoint/restore support not available",  // CRI-O, by its configuration
	}, func(text string) bool { return strings.Contains(strings.ToLower(message), text) })
}

// LogPath returns the path of a container's log, whether it runs or not.
func (r *Runtime) LogPath(ctx context.Context, containerID string) (string, error) {
	a, err := read(ctx, r, "ContainerStatus", r.rt.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: containerID})
	if err != nil {
		return "", err
	}
	return a.GetStatus().GetLogPath(), nil
}
