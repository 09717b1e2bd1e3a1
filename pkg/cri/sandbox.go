package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
)

// RunSandbox makes and starts the sandbox of a pod and returns its ID. Failures come back
// as *pod.StartError with reason FailedCreatePodSandBox (C-1.22.2), final if this runtime
// cannot run the pod at all; a runtime that does not answer is ErrUnavailable. A sandbox
// that the runtime finished after the call timed out is used, by this call or by the next
// one with the same attempt (F3).
func (r *Runtime) RunSandbox(ctx context.Context, q pod.SandboxRequest) (string, error) {
	const reason = "FailedCreatePodSandBox"
	want, attempt := q.Want, q.Attempt
	config, err := r.sandboxConfig(q)
	if err != nil {
		return "", &pod.StartError{Reason: reason, Err: err}
	}
	handler, err := r.handlerFor(ctx, want)
	if err != nil {
		return "", &pod.StartError{Reason: reason, Err: err}
	}
	if err := r.suits(ctx, want.Pod, handler); err != nil {
		return "", err
	}
	r.warnOmitted(want.Pod, q.Warn)
	if dir := config.GetLogDirectory(); dir != "" {
		// World-readable, as in the kubelet, so that log collectors can follow.
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", &pod.StartError{Reason: reason, Err: fmt.Errorf("make log directory: %w", err)}
		}
	}
	a, err := act(ctx, r, "RunPodSandbox", r.cfg.Timeouts.Call, r.rt.RunPodSandbox,
		&runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		if id := r.finished(ctx, want, attempt, err); id != "" {
			return id, nil
		}
		r.cgroupsRead.Store(false) // the cgroup parent may be the cause
		return "", cannot(reason, err)
	}
	return a.GetPodSandboxId(), nil
}

// finished returns the ready sandbox of this attempt if err leaves open whether the runtime
// has made it; else "". While the runtime is still making it, its name is reserved, so that
// no second one can be made.
func (r *Runtime) finished(ctx context.Context, want *pod.Spec, attempt uint32, err error) string {
	var call *CallError
	if !errors.Is(err, ErrTimeout) && (!errors.As(err, &call) || !strings.Contains(call.Msg, "failed to reserve sandbox name")) {
		return ""
	}
	a, err := read(ctx, r, "ListPodSandbox", r.rt.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: r.identity(want), State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return ""
	}
	for _, b := range a.GetItems() {
		if b.GetMetadata().GetAttempt() == attempt {
			return b.GetId()
		}
	}
	return ""
}

// StopSandbox stops all that runs in the sandbox and tears its network down. A sandbox that
// does not exist counts as stopped.
func (r *Runtime) StopSandbox(ctx context.Context, id string) error {
	_, err := act(ctx, r, "StopPodSandbox", r.cfg.Timeouts.Call, r.rt.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return unlessGone(err)
}

// RemoveSandbox removes the sandbox and its containers. A sandbox that does not exist
// counts as removed.
func (r *Runtime) RemoveSandbox(ctx context.Context, id string) error {
	_, err := act(ctx, r, "RemovePodSandbox", r.cfg.Timeouts.Call, r.rt.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return unlessGone(err)
}

// sandboxConfig is the whole sandbox as CRI takes it. CreateContainer sends it again: it
// depends only on q, the configuration and the node's files, so that both calls send the
// same.
func (r *Runtime) sandboxConfig(q pod.SandboxRequest) (*runtimeapi.PodSandboxConfig, error) {
	want := q.Want
	dns, _, err := r.dns().config(want.Pod)
	if err != nil {
		return nil, err
	}
	security, err := sandboxSecurity(want.Pod, q.Place.Users)
	if err != nil {
		return nil, err
	}
	security.Seccomp = r.sandboxSeccomp()
	hostname, _, err := podenv.Hostname(want.Pod, r.cfg.ClusterDomain)
	if err != nil {
		return nil, err
	}
	overhead, resources := r.machine.sandboxResources(want.Pod)
	if want.HasOwnCPUs() && !r.machine.enforce.OwnCPUQuota && resources.CpuQuota > 0 {
		resources.CpuQuota = unlimited
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: want.Name, Namespace: want.Namespace, Uid: want.UID(), Attempt: q.Attempt,
		},
		Hostname:     hostname,
		LogDirectory: r.logDirectory(want),
		DnsConfig:    dns,
		PortMappings: portMappings(want.Pod),
		Labels:       r.sandboxLabels(want),
		Annotations:  sandboxAnnotations(want, q.Instance),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    cmp.Or(q.Place.CgroupParent, r.cgroupParent()),
			Sysctls:         sysctls(want.Pod),
			SecurityContext: security,
			Overhead:        overhead,
			Resources:       resources,
		},
	}, nil
}

// sysctls names them as the kernel does, with dots (C-1.22.12).
func sysctls(p *v1.Pod) map[string]string {
	if p.Spec.SecurityContext == nil || len(p.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	m := make(map[string]string, len(p.Spec.SecurityContext.Sysctls))
	for _, s := range p.Spec.SecurityContext.Sysctls {
		m[dotted(s.Name)] = s.Value
	}
	return m
}

// dotted turns a name with slashes between its parts, like net/ipv4/conf/eth0.1/forwarding,
// into one with dots, and leaves other names unchanged.
func dotted(name string) string {
	i := strings.IndexAny(name, "./")
	if i < 0 || name[i] == '.' {
		return name
	}
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// logDirectory is the log directory of one pod (C-1.22.10); "" disables logs.
func (r *Runtime) logDirectory(want *pod.Spec) string {
	if r.cfg.PodLogsDir == "" {
		return ""
	}
	return filepath.Join(r.cfg.PodLogsDir, want.Namespace+"_"+want.Name+"_"+want.UID())
}

// sandboxLabels are the pod's own labels and ours, which the pod cannot override: the agent
// finds the pod by them.
func (r *Runtime) sandboxLabels(want *pod.Spec) map[string]string {
	labels := maps.Clone(want.Pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, r.identity(want))
	return labels
}

// identity is the labels that every sandbox and container carries (C-1.22.11).
func (r *Runtime) identity(want *pod.Spec) map[string]string {
	return map[string]string{
		pod.LabelPodName:      want.Name,
		pod.LabelPodNamespace: want.Namespace,
		pod.LabelPodUID:       want.UID(),
		pod.LabelNode:         r.cfg.Node,
	}
}

func sandboxAnnotations(want *pod.Spec, instance int) map[string]string {
	notes := maps.Clone(want.Pod.Annotations)
	if notes == nil {
		notes = map[string]string{}
	}
	notes[pod.AnnotationInstance] = strconv.Itoa(instance)
	notes[pod.AnnotationSpecHash] = want.Hash
	notes[pod.AnnotationSandboxHash] = want.SandboxHash
	notes[pod.AnnotationLayer] = want.Origin.Layer()
	delete(notes, pod.AnnotationGrace)
	if grace := want.Pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		notes[pod.AnnotationGrace] = strconv.FormatInt(*grace, 10)
	}
	return notes
}

// portMappings are the host ports of the pod's long-running containers. On the
// host network a port needs no mapping.
func portMappings(p *v1.Pod) []*runtimeapi.PortMapping {
	if p.Spec.HostNetwork {
		return nil
	}
	var maps []*runtimeapi.PortMapping
	add := func(c v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			maps = append(maps, &runtimeapi.PortMapping{
				Protocol:      protocol(port.Protocol),
				ContainerPort: port.ContainerPort,
				HostPort:      port.HostPort,
				HostIp:        port.HostIP,
			})
		}
	}
	for _, c := range p.Spec.InitContainers {
		if pod.Restartable(&c) {
			add(c)
		}
	}
	for _, c := range p.Spec.Containers {
		add(c)
	}
	return maps
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}
