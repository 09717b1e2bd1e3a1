package device

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The rate limit of requests: per second, and as a burst. The values are the kubelet's.
const (
	requestRate  = 100
	requestBurst = 10
)

// ResourcesConfig configures PodResources.
type ResourcesConfig struct {
	// Dir is Config.Dir: the socket is pod-resources/kubelet.sock below it.
	Dir string
	// Pods returns the pods of this node with their status.
	Pods func() []v1.Pod
	// Allocations returns the allocations of containers, by pod UID and container name.
	Allocations func(context.Context) (map[string]map[string]pod.Allocation, error)
	// Devices lists the devices of plugins.
	Devices func() []Resource
	// CPUs and Memory are the CPUs and memory that containers can have exclusively.
	CPUs   []int
	Memory []pod.Block
	// OnRequest is a callback for metrics after each request; it may be nil.
	OnRequest func(version, method string, failed bool)
}

// PodResources implements the kubelet's service podresources, from which monitoring agents read the
// devices, CPUs and memory of containers.
type PodResources struct {
	podresources.UnimplementedPodResourcesListerServer
	cfg     ResourcesConfig
	reading sync.Mutex // one request at a time reads the runtime
}

// NewPodResources returns the service.
func NewPodResources(cfg ResourcesConfig) *PodResources { return &PodResources{cfg: cfg} }

// PodAllocation is a pod that has not terminated, with its regular containers and sidecars: only
// these keep an allocation as long as the pod runs.
type PodAllocation struct {
	Namespace, Name string
	Containers      []ContainerAllocation
}

// ContainerAllocation is the allocation of a container.
type ContainerAllocation struct {
	Name string
	pod.Allocation
}

// Allocations returns the pods of this node with the allocations of their containers, which it
// reads from the runtime. As in the kubelet, it leaves out init containers that are not sidecars.
func (p *PodResources) Allocations(ctx context.Context) ([]PodAllocation, error) {
	p.reading.Lock()
	has, err := p.cfg.Allocations(ctx)
	p.reading.Unlock()
	if err != nil {
		return nil, err
	}
	var all []PodAllocation
	for _, of := range p.cfg.Pods() {
		if pod.IsPhaseTerminal(of.Status.Phase) {
			continue
		}
		one := PodAllocation{Namespace: of.Namespace, Name: of.Name}
		add := func(c *v1.Container) {
			one.Containers = append(one.Containers, ContainerAllocation{c.Name, has[string(of.UID)][c.Name]})
		}
		for i := range of.Spec.InitContainers {
			if c := &of.Spec.InitContainers[i]; pod.Restartable(c) {
				add(c)
			}
		}
		for i := range of.Spec.Containers {
			add(&of.Spec.Containers[i])
		}
		all = append(all, one)
	}
	return all, nil
}

// List implements the service.
func (p *PodResources) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (_ *podresources.ListPodResourcesResponse, err error) {
	defer func() { p.asked("v1", "list", err) }()
	pods, err := p.Allocations(ctx)
	if err != nil {
		return nil, err
	}
	near, answer := p.near(), &podresources.ListPodResourcesResponse{}
	for _, one := range pods {
		answer.PodResources = append(answer.PodResources, near.of(one))
	}
	return answer, nil
}

// Get implements the service.
func (p *PodResources) Get(ctx context.Context, q *podresources.GetPodResourcesRequest) (_ *podresources.GetPodResourcesResponse, err error) {
	defer func() { p.asked("v1", "get", err) }()
	pods, err := p.Allocations(ctx)
	if err != nil {
		return nil, err
	}
	for _, one := range pods {
		if one.Namespace == q.GetPodNamespace() && one.Name == q.GetPodName() {
			return &podresources.GetPodResourcesResponse{PodResources: p.near().of(one)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", q.GetPodName(), q.GetPodNamespace())
}

// GetAllocatableResources implements the service.
func (p *PodResources) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	p.asked("v1", "get_allocatable", nil)
	answer := &podresources.AllocatableResourcesResponse{Memory: memoryOf(p.cfg.Memory)}
	for _, id := range p.cfg.CPUs {
		answer.CpuIds = append(answer.CpuIds, int64(id))
	}
	near := p.near()
	for _, r := range p.cfg.Devices() {
		for _, d := range r.Devices {
			if d.Listed && d.Healthy {
				answer.Devices = append(answer.Devices, near.device(r.Name, d.ID)...)
			}
		}
	}
	return answer, nil
}

func (p *PodResources) asked(version, method string, err error) {
	if p.cfg.OnRequest != nil {
		p.cfg.OnRequest(version, method, err != nil)
	}
}

// earlier implements the version v1alpha1 of the service, which has only devices of plugins.
type earlier struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	of *PodResources
}

// List implements the service.
func (e earlier) List(ctx context.Context, _ *v1alpha1.ListPodResourcesRequest) (_ *v1alpha1.ListPodResourcesResponse, err error) {
	defer func() { e.of.asked("v1alpha1", "list", err) }()
	pods, err := e.of.Allocations(ctx)
	if err != nil {
		return nil, err
	}
	near, answer := e.of.near(), &v1alpha1.ListPodResourcesResponse{}
	for _, one := range pods {
		out := &v1alpha1.PodResources{Namespace: one.Namespace, Name: one.Name}
		for _, c := range near.of(one).GetContainers() {
			is := &v1alpha1.ContainerResources{Name: c.GetName()}
			for _, d := range c.GetDevices() {
				is.Devices = append(is.Devices, &v1alpha1.ContainerDevices{ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds()})
			}
			out.Containers = append(out.Containers, is)
		}
		answer.PodResources = append(answer.PodResources, out)
	}
	return answer, nil
}

// nodes are the NUMA nodes of devices, by resource and device ID.
type nodes map[string]map[string][]int64

func (p *PodResources) near() nodes {
	all := make(nodes)
	for _, r := range p.cfg.Devices() {
		all[r.Name] = make(map[string][]int64, len(r.Devices))
		for _, d := range r.Devices {
			all[r.Name][d.ID] = d.NUMA
		}
	}
	return all
}

// device returns a device in the form of the service: one entry for each of its NUMA nodes.
func (n nodes) device(resource, id string) (all []*podresources.ContainerDevices) {
	for _, node := range n[resource][id] {
		all = append(all, &podresources.ContainerDevices{
			ResourceName: resource, DeviceIds: []string{id},
			Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: node}}},
		})
	}
	if all == nil {
		all = append(all, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
	}
	return all
}

// of returns a pod in the form of the service.
func (n nodes) of(one PodAllocation) *podresources.PodResources {
	out := &podresources.PodResources{Namespace: one.Namespace, Name: one.Name}
	for _, c := range one.Containers {
		is := &podresources.ContainerResources{Name: c.Name, Memory: memoryOf(c.Memory)}
		if set, err := cpuset.Parse(c.CPUs); err == nil {
			for _, id := range set.List() {
				is.CpuIds = append(is.CpuIds, int64(id))
			}
		}
		for _, a := range c.Devices {
			for _, id := range a.Devices {
				is.Devices = append(is.Devices, n.device(a.Resource, id)...)
			}
		}
		for _, a := range c.Claims {
			is.DynamicResources = append(is.DynamicResources, dynamicOf(a))
		}
		out.Containers = append(out.Containers, is)
	}
	return out
}

// dynamicOf returns a claim in the form of the service.
func dynamicOf(a pod.ClaimAllocation) *podresources.DynamicResource {
	out := &podresources.DynamicResource{ClaimName: a.Name, ClaimNamespace: a.Namespace}
	for _, d := range a.Devices {
		one := &podresources.ClaimResource{DriverName: d.Driver, PoolName: d.Pool, DeviceName: d.Device}
		for _, name := range d.CDI {
			one.CdiDevices = append(one.CdiDevices, &podresources.CDIDevice{Name: name})
		}
		if d.ShareID != "" {
			one.ShareId = &d.ShareID
		}
		out.ClaimResources = append(out.ClaimResources, one)
	}
	return out
}

func memoryOf(blocks []pod.Block) (all []*podresources.ContainerMemory) {
	for _, b := range blocks {
		at := &podresources.TopologyInfo{}
		for _, id := range b.NUMAAffinity {
			at.Nodes = append(at.Nodes, &podresources.NUMANode{ID: int64(id)})
		}
		all = append(all, &podresources.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: at})
	}
	return all
}

// limited returns an interceptor that rejects requests beyond the rate limit, in the kubelet's
// words.
func limited() grpc.UnaryServerInterceptor {
	limiter := rate.NewLimiter(requestRate, requestBurst)
	return func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (any, error) {
		if !limiter.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return answer(ctx, q)
	}
}
