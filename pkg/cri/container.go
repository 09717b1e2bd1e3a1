package cri

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
)

// Waiting reasons of containers that cannot be created (C-1.22.9).
const (
	reasonConfig = "CreateContainerConfigError"
	reasonCreate = "CreateContainerError"
	reasonRun    = "RunContainerError"
)

// CreateContainer makes the container without starting it and returns its ID. It calls
// ImageStatus first, to use the image that is present now. Failures come back as
// *pod.StartError.
func (r *Runtime) CreateContainer(ctx context.Context, q pod.CreateRequest) (string, error) {
	c, _ := q.Want.Container(q.Container)
	if c == nil {
		return "", unconfigurable(fmt.Errorf("pod %s has no container %q", q.Want.Key, q.Container))
	}
	box, err := r.sandboxConfig(pod.SandboxRequest{Want: q.Want, Instance: q.Sandbox.Instance, Attempt: q.Sandbox.Attempt, Place: q.Place})
	if err != nil {
		return "", unconfigurable(err)
	}
	img, err := r.present(ctx, c.Image)
	if err != nil {
		return "", err
	}
	config, err := r.containerConfig(q, c, img)
	if err != nil {
		return "", unconfigurable(err)
	}
	if err := r.joinTarget(ctx, q, config); err != nil {
		return "", err
	}
	for _, m := range config.Mounts {
		if m.Image == nil {
			continue
		}
		img, err := r.present(ctx, m.Image.UserSpecifiedImage)
		if err != nil {
			return "", err
		}
		m.Image.Image = img.GetId()
	}
	if m := r.messageMount(q, c); m != nil {
		config.Mounts = append(config.Mounts, m)
	}
	a, err := act(ctx, r, "CreateContainer", r.cfg.Timeouts.Call, r.rt.CreateContainer,
		&runtimeapi.CreateContainerRequest{PodSandboxId: q.Sandbox.ID, Config: config, SandboxConfig: box})
	if err != nil {
		return "", cannot(reasonCreate, err)
	}
	r.link(a.GetContainerId(), box, config)
	return a.GetContainerId(), nil
}

// present returns the runtime's data of an image that was pulled before. It fails if the
// image is gone: the user that it names for its processes is then unknown.
func (r *Runtime) present(ctx context.Context, name string) (*runtimeapi.Image, error) {
	name = withTag(name)
	img, err := r.image(ctx, name)
	if err != nil {
		return nil, cannot(reasonCreate, err)
	}
	if img.GetId() == "" {
		return nil, &pod.StartError{Reason: reasonCreate, Err: fmt.Errorf("image %s is not present any more", name)}
	}
	return img, nil
}

// joinTarget lets an ephemeral container see the processes of its target container.
func (r *Runtime) joinTarget(ctx context.Context, q pod.CreateRequest, config *runtimeapi.ContainerConfig) error {
	target := ""
	for _, e := range q.Want.Pod.Spec.EphemeralContainers {
		if e.Name == q.Container {
			target = e.TargetContainerName
		}
	}
	if target == "" {
		return nil
	}
	sel := r.identity(q.Want)
	sel[pod.LabelContainerName] = target
	a, err := read(ctx, r, "ListContainers", r.rt.ListContainers, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		PodSandboxId: q.Sandbox.ID, LabelSelector: sel,
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return cannot(reasonConfig, err)
	}
	if len(a.GetContainers()) == 0 {
		return &pod.StartError{Reason: reasonConfig, Err: fmt.Errorf("target container %s is not running", target)}
	}
	if ns := config.Linux.SecurityContext.NamespaceOptions; ns.Pid == runtimeapi.NamespaceMode_CONTAINER { // in the other modes it sees them already
		ns.Pid, ns.TargetId = runtimeapi.NamespaceMode_TARGET, a.GetContainers()[0].GetId()
	}
	return nil
}

// StartContainer starts a created container. Failures come back as *pod.StartError with
// reason RunContainerError; the runtime then lists the container as exited.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	_, err := act(ctx, r, "StartContainer", r.cfg.Timeouts.Call, r.rt.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	if err != nil {
		return cannot(reasonRun, err)
	}
	return nil
}

// StopContainer stops the container and kills it after grace; it returns when the container
// has exited. Grace counts in whole seconds, rounded up. A second call with a shorter
// grace, made meanwhile, shortens the stop. A container that does not exist counts as
// stopped (C-1.23.8). The end of ctx ends the wait, not the stop: the agent may leave after
// the request (F4).
func (r *Runtime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	grace = max(grace, 0)
	seconds := int64((grace + time.Second - 1) / time.Second)
	limit := time.Duration(seconds)*time.Second + r.cfg.Timeouts.Call
	_, err := bounded(ctx, r, "StopContainer", limit, r.rt.StopContainer, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	return unlessGone(err)
}

// RemoveContainer removes the container with its file system, its logs, its termination
// message and the link to its log (C-1.33.5). With keepLog its log stays, and those of
// earlier attempts are removed (C-1.21.3). A container that does not exist counts as
// removed.
func (r *Runtime) RemoveContainer(ctx context.Context, id string, keepLog bool) error {
	var was *runtimeapi.ContainerStatus // nil if it cannot be read: then the files stay until the pod's are removed
	if r.cfg.RootDir != "" || r.cfg.PodLogsDir != "" {
		a, err := read(ctx, r, "ContainerStatus", r.rt.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err == nil {
			was = a.GetStatus()
		}
	}
	remove := func() error {
		_, err := act(ctx, r, "RemoveContainer", r.cfg.Timeouts.Call, r.rt.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return unlessGone(err)
	}
	err := remove()
	if r.cfg.EndTask != nil && keepsTask(err) {
		if ended := r.endTask(ctx, id); ended != nil {
			err = fmt.Errorf("%w; %w", err, ended)
		} else {
			err = remove()
		}
	}
	if err != nil {
		return err
	}
	if was != nil {
		r.clear(was, keepLog)
	}
	return nil
}

// keepsTask reports whether containerd refuses to remove a container because the container
// still has a task. A start whose caller left midway leaves such a task, and the container
// counts as exited (F1). No call of CRI ends the task.
func keepsTask(err error) bool {
	var call *CallError
	return errors.As(err, &call) && call.code == codes.FailedPrecondition
}

func (r *Runtime) endTask(ctx context.Context, id string) error {
	r.cfg.Log.Warn("Killing container that still runs although the runtime reports it as exited", "id", id)
	within, cancel := context.WithTimeout(ctx, r.cfg.Timeouts.Call)
	defer cancel()
	return r.cfg.EndTask(within, id)
}

func unconfigurable(err error) error {
	return &pod.StartError{Reason: reasonConfig, Err: err, Final: true}
}

// containerConfig is the whole container as CRI takes it, made from img. Its image volumes
// have the image names of the manifest, and CreateContainer then sets their IDs.
func (r *Runtime) containerConfig(q pod.CreateRequest, c *v1.Container, img *runtimeapi.Image) (*runtimeapi.ContainerConfig, error) {
	devices, err := devicesOf(q)
	if err != nil {
		return nil, err
	}
	vars, pairs := devices.vars, devices.envs // the container's own variables win
	for _, e := range q.Env {
		vars[e.Name] = e.Value
		pairs = append(pairs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	mounts, err := r.node.mounts(q)
	if err != nil {
		return nil, err
	}
	security, err := r.node.containerSecurity(q.Want.Pod, c, q.Place.Users, img)
	if err != nil {
		return nil, err
	}
	command, err := podenv.ExpandAll(c.Command, vars)
	if err != nil {
		return nil, fmt.Errorf("command%w", err)
	}
	args, err := podenv.ExpandAll(c.Args, vars)
	if err != nil {
		return nil, fmt.Errorf("args%w", err)
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: q.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: img.GetId(), UserSpecifiedImage: c.Image},
		Command:     command,
		Args:        args,
		WorkingDir:  c.WorkingDir,
		Envs:        pairs,
		Mounts:      append(devices.mounts, mounts...),
		Devices:     devices.nodes,
		CDIDevices:  devices.cdi,
		Labels:      r.identity(q.Want),
		Annotations: containerAnnotations(q, c),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  stopSignal(c),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       r.resources(q.Want, c),
			SecurityContext: security,
		},
	}
	if res := config.Linux.Resources; res.CpusetCpus == "" {
		res.CpusetCpus = q.Placement().Shared
	}
	config.Labels[pod.LabelContainerName] = c.Name
	if r.cfg.PodLogsDir != "" {
		config.LogPath = path.Join(c.Name, strconv.Itoa(int(q.Attempt))+".log")
	}
	return config, nil
}

// mounts converts the mounts of q to CRI.
func (n *node) mounts(q pod.CreateRequest) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for _, m := range q.Mounts {
		p, err := propagation(m.Propagation)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.ContainerPath, err)
		}
		mount := &runtimeapi.Mount{
			HostPath: m.HostPath, ContainerPath: m.ContainerPath, Propagation: p,
			Readonly: m.ReadOnly || m.RecursiveReadOnly, RecursiveReadOnly: m.RecursiveReadOnly,
			SelinuxRelabel: m.Relabel && n.selinux,
			UidMappings:    mappings(m.Users), GidMappings: mappings(m.Users),
		}
		switch {
		case m.Image != "" && m.HostPath != "", m.Image == "" && (m.SubPath != "" || m.HostPath == ""):
			return nil, fmt.Errorf("mount %s needs either a path or an image", m.ContainerPath)
		case m.RecursiveReadOnly && p != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
			return nil, fmt.Errorf("mount %s: recursiveReadOnly cannot be combined with propagation %s", m.ContainerPath, m.Propagation)
		case m.Image != "":
			mount.Image = &runtimeapi.ImageSpec{Image: m.Image, UserSpecifiedImage: m.Image, Annotations: q.Want.Pod.Annotations}
			mount.ImageSubPath = m.SubPath
		}
		out = append(out, mount)
	}
	return out, nil
}

func propagation(p string) (runtimeapi.MountPropagation, error) {
	switch v1.MountPropagationMode(p) {
	case "", v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("unknown mount propagation %q", p)
}
