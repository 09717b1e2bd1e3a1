package critest

import (
	"context"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Version implements CRI.
func (rt *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "critest", RuntimeVersion: "v0.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status implements CRI.
func (rt *Runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var conditions []*runtimeapi.RuntimeCondition
	for i, name := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		c := &runtimeapi.RuntimeCondition{Type: name, Status: rt.ready[i].ok}
		if !c.Status {
			c.Reason, c.Message = name+"IsNot", rt.ready[i].message
		}
		conditions = append(conditions, c)
	}
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: conditions}, RuntimeHandlers: rt.handlers,
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: rt.groupsPolicy},
	}, nil
}

// RuntimeConfig implements CRI.
func (rt *Runtime) RuntimeConfig(ctx context.Context, q *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.driver == nil {
		return rt.UnimplementedRuntimeServiceServer.RuntimeConfig(ctx, q)
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: *rt.driver}}, nil
}

// RunPodSandbox implements CRI.
func (rt *Runtime) RunPodSandbox(_ context.Context, q *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	m := q.GetConfig().GetMetadata()
	if m.GetName() == "" || m.GetNamespace() == "" || m.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must include metadata")
	}
	name, owner := sandboxName(m), ""
	if rt.making[name] {
		owner = "sandbox-in-the-making"
	}
	for _, b := range rt.sandboxes {
		if sandboxName(b.config.GetMetadata()) == name {
			owner = b.id
		}
	}
	if owner != "" {
		return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name %q: name %q is reserved for %q", name, name, owner)
	}
	if err := rt.checkHandler(q.GetRuntimeHandler()); err != nil {
		return nil, err
	}
	rt.checkSandbox(q.GetConfig())
	rt.serial++
	b := &sandbox{
		id: fmt.Sprintf("sandbox-%s-%d-%d", m.GetName(), m.GetAttempt(), rt.serial), config: q.GetConfig(),
		serial: rt.serial, handler: q.GetRuntimeHandler(), ready: true, created: time.Now().UnixNano(),
	}
	if !hostNetwork(b.config) {
		if !rt.ready[1].ok {
			return nil, status.Errorf(codes.Unknown, "failed to setup network for sandbox %q: cni plugin not initialized", b.id)
		}
		b.ip = fmt.Sprintf("10.88.%d.%d", rt.serial/250, 2+rt.serial%250)
	}
	rt.sandboxes[b.id] = b
	rt.publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, b.id, b.id)
	rt.publish(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, b.id, b.id)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: b.id}, nil
}

// sandboxName is the reserved name of a sandbox, which must be unique.
func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// StopPodSandbox implements CRI: running containers of the sandbox are killed.
func (rt *Runtime) StopPodSandbox(_ context.Context, q *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.stopSandbox(q.GetPodSandboxId())
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (rt *Runtime) stopSandbox(id string) {
	b := rt.sandboxes[id]
	if b == nil {
		return
	}
	for _, c := range rt.containers {
		if c.sandboxID == id && c.running() {
			rt.exit(c, 137, "", "")
		}
	}
	if b.ready {
		b.ready, b.ip = false, ""
		rt.publish(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, id, id)
	}
}

// RemovePodSandbox implements CRI: its containers are removed too.
func (rt *Runtime) RemovePodSandbox(_ context.Context, q *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	id := q.GetPodSandboxId()
	rt.stopSandbox(id)
	for _, c := range rt.containers {
		if c.sandboxID == id {
			rt.remove(c)
		}
	}
	if b := rt.sandboxes[id]; b != nil {
		delete(rt.sandboxes, id)
		rt.forgetCounts(b)
		rt.publish(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, id, id)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus implements CRI.
func (rt *Runtime) PodSandboxStatus(_ context.Context, q *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	b := rt.sandboxes[q.GetPodSandboxId()]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find sandbox %q: not found", q.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: b.status()}, nil
}

func (b *sandbox) status() *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{
		Id: b.id, RuntimeHandler: b.handler, Metadata: b.config.GetMetadata(), State: b.state(), CreatedAt: b.created,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: b.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: b.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels: maps.Clone(b.config.GetLabels()), Annotations: maps.Clone(b.config.GetAnnotations()),
	}
}

func (b *sandbox) state() runtimeapi.PodSandboxState {
	if b.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// ListPodSandbox implements CRI.
func (rt *Runtime) ListPodSandbox(_ context.Context, q *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	a := &runtimeapi.ListPodSandboxResponse{}
	for _, b := range rt.sandboxes {
		f := q.GetFilter()
		if f.GetId() != "" && f.GetId() != b.id || f.GetState() != nil && f.GetState().GetState() != b.state() ||
			!selects(f.GetLabelSelector(), b.config.GetLabels()) {
			continue
		}
		s := b.status()
		a.Items = append(a.Items, &runtimeapi.PodSandbox{
			Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
		})
	}
	return a, nil
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func hostNetwork(b *runtimeapi.PodSandboxConfig) bool {
	return b.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// RunForeign runs a pod of another agent: with the kubelet's labels, but not our node's.
func (rt *Runtime) RunForeign(key pod.Key, container string) error {
	labels := map[string]string{
		pod.LabelPodName: key.Name, pod.LabelPodNamespace: key.Namespace, pod.LabelPodUID: "foreign", pod.LabelContainerName: container,
	}
	ctx := context.Background()
	box := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: key.Name, Namespace: key.Namespace, Uid: "foreign"}, Labels: labels,
	}
	a, err := rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		return err
	}
	c, err := rt.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: a.GetPodSandboxId(), SandboxConfig: box,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: container}, Labels: labels,
			Image: &runtimeapi.ImageSpec{Image: "foreign:1", UserSpecifiedImage: "foreign:1"},
		}})
	if err != nil {
		return err
	}
	_, err = rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
	return err
}
