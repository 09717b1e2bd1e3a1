package cri

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Waiting reasons of containers that cannot be made (C-1.22.9).
const (
	reasonConfig = "CreateContainerConfigError"
	reasonCreate = "CreateContainerError"
	reasonRun    = "RunContainerError"
)

// CreateContainer makes the container without starting it and returns its ID:
// ImageStatus, so that it is made from the image that is there now, then
// CreateContainer. What fails comes back as *pod.StartError.
func (r *Runtime) CreateContainer(ctx context.Context, q pod.CreateRequest) (string, error) {
	c, _ := q.Want.Container(q.Container)
	if c == nil {
		return "", unconfigurable(fmt.Errorf("pod %s has no container %q", q.Want.Key, q.Container))
	}
	box, err := r.sandboxConfig(pod.SandboxRequest{Want: q.Want, Instance: q.Sandbox.Instance, Attempt: q.Sandbox.Attempt, Place: q.Place})
	if err != nil {
		return "", unconfigurable(err)
	}
	config, err := r.containerConfig(q, c)
	if err != nil {
		return "", unconfigurable(err)
	}
	if err := r.joinTarget(ctx, q, config); err != nil {
		return "", err
	}
	img, err := r.image(ctx, config.GetImage().GetUserSpecifiedImage())
	if err != nil {
		return "", cannot(reasonCreate, err)
	}
	if img != nil {
		config.Image.Image = img.GetId()
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

// joinTarget lets an ephemeral container see the processes of the container it
// is made to look into.
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
		return &pod.StartError{Reason: reasonConfig, Err: fmt.Errorf("target container %s does not run", target)}
	}
	ns := config.Linux.SecurityContext.NamespaceOptions
	ns.Pid, ns.TargetId = runtimeapi.NamespaceMode_TARGET, a.GetContainers()[0].GetId()
	return nil
}

// StartContainer starts a created container. What fails comes back as
// *pod.StartError with reason RunContainerError; the runtime then shows the
// container as exited.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	_, err := act(ctx, r, "StartContainer", r.cfg.Timeouts.Call, r.rt.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	if err != nil {
		return cannot(reasonRun, err)
	}
	return nil
}

// StopContainer asks the container to end and kills it after grace; it returns
// when the container has ended. Grace counts in whole seconds, rounded up. A
// second call with a shorter grace, made meanwhile, shortens the stop. A
// container that is not there has ended (C-1.23.8). The end of ctx ends the
// wait, not the stop: the agent leaves and the container was asked (F4).
func (r *Runtime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	grace = max(grace, 0)
	seconds := int64((grace + time.Second - 1) / time.Second)
	limit := time.Duration(seconds)*time.Second + r.cfg.Timeouts.Call
	_, err := bounded(ctx, r, "StopContainer", limit, r.rt.StopContainer, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	return unlessGone(err)
}

// RemoveContainer removes the container's record and file system, and with them
// its logs, its termination message and the link to its log (C-1.33.5). A
// container that is not there is removed.
func (r *Runtime) RemoveContainer(ctx context.Context, id string, keepLog bool) error {
	var was *runtimeapi.ContainerStatus // what is not known of it stays until the pod goes
	if r.cfg.RootDir != "" || r.cfg.PodLogsDir != "" {
		a, err := read(ctx, r, "ContainerStatus", r.rt.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err == nil {
			was = a.GetStatus()
		}
	}
	_, err := act(ctx, r, "RemoveContainer", r.cfg.Timeouts.Call, r.rt.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	if err := unlessGone(err); err != nil {
		return err
	}
	if was != nil {
		r.clear(was, keepLog)
	}
	return nil
}

func unconfigurable(err error) error {
	return &pod.StartError{Reason: reasonConfig, Err: err, Final: true}
}

// containerConfig is the whole container as CRI takes it, the image by its
// name in the manifest.
func (r *Runtime) containerConfig(q pod.CreateRequest, c *v1.Container) (*runtimeapi.ContainerConfig, error) {
	vars := make(map[string]string, len(q.Env))
	pairs := make([]*runtimeapi.KeyValue, len(q.Env))
	for i, e := range q.Env {
		vars[e.Name] = e.Value
		pairs[i] = &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)}
	}
	mounts, err := mounts(q.Mounts)
	if err != nil {
		return nil, err
	}
	name := withTag(c.Image)
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: q.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name},
		Command:     pod.ExpandAll(c.Command, vars),
		Args:        pod.ExpandAll(c.Args, vars),
		WorkingDir:  c.WorkingDir,
		Envs:        pairs,
		Mounts:      mounts,
		Labels:      r.identity(q.Want),
		Annotations: containerAnnotations(q, c),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  stopSignal(c),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: resources(q.Want.Pod, c, r.memory),
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: namespaces(q.Want.Pod),
				Seccomp:          defaultSeccomp(),
				MaskedPaths:      maskedPaths(),
				ReadonlyPaths:    readonlyPaths(),
			},
		},
	}
	config.Labels[pod.LabelContainerName] = c.Name
	if r.cfg.PodLogsDir != "" {
		config.LogPath = path.Join(c.Name, strconv.Itoa(int(q.Attempt))+".log")
	}
	return config, nil
}

// maskedPaths are the files of /proc and /sys that tell of the machine or let
// it be attacked; a container sees nothing there. They have to be named:
// containerd takes a missing list for an empty one.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

// readonlyPaths are the parts of /proc through which the machine is changed.
func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

func mounts(in []pod.Mount) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for _, m := range in {
		p, err := propagation(m.Propagation)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.ContainerPath, err)
		}
		out = append(out, &runtimeapi.Mount{
			HostPath: m.HostPath, ContainerPath: m.ContainerPath, Readonly: m.ReadOnly, Propagation: p,
		})
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
