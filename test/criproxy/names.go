package criproxy

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podName is the label by which agents mark the pod of a container.
const podName = "io.kubernetes.pod.name"

// names finds out which pod and container a message is about. Most messages have IDs only:
// names asks the runtime about them, on its own connection.
type names struct {
	conn *grpc.ClientConn
	rt   cri.RuntimeServiceClient

	mu    sync.Mutex
	known map[string]owner
}

type owner struct{ pod, container string }

// whom is the object of a message: "" for unknown parts.
type whom struct {
	owner
	id string // the container's or the sandbox's that it names
}

func newNames(endpoint string) (*names, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &names{conn: conn, rt: cri.NewRuntimeServiceClient(conn), known: make(map[string]owner)}, nil
}

// ofRequest returns the object of a request.
func (n *names) ofRequest(ctx context.Context, method string, q mem.BufferSlice) whom {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(method[1:], "/", ".")))
	if err != nil {
		return whom{}
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.(protoreflect.MethodDescriptor).Input().FullName())
	if err != nil {
		return whom{}
	}
	m := t.New().Interface()
	if proto.Unmarshal(q.Materialize(), m) != nil {
		return whom{}
	}
	pod, container := "", ""
	switch m := m.(type) {
	case *cri.RunPodSandboxRequest:
		pod = m.GetConfig().GetMetadata().GetName()
	case *cri.CreateContainerRequest:
		pod, container = m.GetSandboxConfig().GetMetadata().GetName(), m.GetConfig().GetMetadata().GetName()
	case *cri.PullImageRequest:
		pod = m.GetSandboxConfig().GetMetadata().GetName()
	case *cri.ListPodSandboxRequest:
		pod = m.GetFilter().GetLabelSelector()[podName]
	case *cri.ListContainersRequest:
		pod = m.GetFilter().GetLabelSelector()[podName]
	case interface{ GetContainerId() string }:
		return n.ofID(ctx, m.GetContainerId())
	case interface{ GetPodSandboxId() string }:
		return n.ofID(ctx, m.GetPodSandboxId())
	}
	return whom{owner: owner{pod, container}}
}

// ofEvent returns the object of an event. A sandbox's own event has no container.
func (n *names) ofEvent(ctx context.Context, m mem.BufferSlice) whom {
	var e cri.ContainerEventResponse
	if proto.Unmarshal(m.Materialize(), &e) != nil {
		return whom{}
	}
	pod := e.GetPodSandboxStatus().GetMetadata().GetName()
	if pod == "" {
		return n.ofID(ctx, e.GetContainerId())
	}
	for _, s := range e.GetContainersStatuses() {
		if s.GetId() == e.GetContainerId() {
			return whom{owner{pod, s.GetMetadata().GetName()}, s.GetId()}
		}
	}
	return whom{owner{pod: pod}, e.GetContainerId()}
}

// ofID returns the pod and container of a container's or sandbox's ID.
func (n *names) ofID(ctx context.Context, id string) whom {
	n.mu.Lock()
	o, ok := n.known[id]
	n.mu.Unlock()
	if !ok {
		if o, ok = n.ask(ctx, id); ok {
			n.mu.Lock()
			n.known[id] = o
			n.mu.Unlock()
		}
	}
	return whom{o, id}
}

func (n *names) ask(ctx context.Context, id string) (owner, bool) {
	if id == "" {
		return owner{}, false
	}
	c, err := n.rt.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: id}})
	if err == nil && len(c.Containers) == 1 {
		return owner{c.Containers[0].Labels[podName], c.Containers[0].GetMetadata().GetName()}, true
	}
	b, err := n.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: id}})
	if err == nil && len(b.Items) == 1 {
		return owner{pod: b.Items[0].GetMetadata().GetName()}, true
	}
	return owner{}, false
}
