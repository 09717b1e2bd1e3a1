package critest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdateContainerResources implements CRI: zero fields are unchanged, as in containerd.
func (rt *Runtime) UpdateContainerResources(_ context.Context, q *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	c := rt.containers[q.GetContainerId()]
	if c == nil {
		return nil, rt.noContainer(q.GetContainerId())
	}
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		return nil, status.Errorf(codes.Unknown, "failed to update resources: container %q is in removing or exited state", c.id)
	}
	now, next := c.limits(), q.GetLinux()
	if limit := next.GetMemoryLimitInBytes(); limit > 0 && uint64(limit) < c.memory { // as cgroup v1
		return nil, status.Errorf(codes.Unknown, "failed to update resources: failed to write \"%d\" to memory.limit_in_bytes: device or resource busy", limit)
	}
	for _, n := range []struct {
		to   *int64
		from int64
	}{
		{&now.CpuShares, next.GetCpuShares()}, {&now.CpuPeriod, next.GetCpuPeriod()}, {&now.CpuQuota, next.GetCpuQuota()},
		{&now.MemoryLimitInBytes, next.GetMemoryLimitInBytes()}, {&now.MemorySwapLimitInBytes, next.GetMemorySwapLimitInBytes()},
	} {
		if n.from != 0 {
			*n.to = n.from
		}
	}
	for _, set := range []struct {
		to   *string
		from string
	}{{&now.CpusetCpus, next.GetCpusetCpus()}, {&now.CpusetMems, next.GetCpusetMems()}} {
		if set.from != "" {
			*set.to = set.from
		}
	}
	c.resources = now
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// limits returns a copy of the container's resources.
func (c *container) limits() *runtimeapi.LinuxContainerResources {
	now := c.resources
	if now == nil {
		now = c.config.GetLinux().GetResources()
	}
	if now == nil {
		return &runtimeapi.LinuxContainerResources{}
	}
	return proto.Clone(now).(*runtimeapi.LinuxContainerResources)
}

// ReopenContainerLog implements CRI.
func (rt *Runtime) ReopenContainerLog(_ context.Context, q *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	c := rt.containers[q.GetContainerId()]
	if c == nil {
		return nil, rt.noContainer(q.GetContainerId())
	}
	if !c.running() {
		return nil, status.Error(codes.Unknown, "container is not running")
	}
	if err := c.openLog(""); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// ContainerStats implements CRI, for memory only.
func (rt *Runtime) ContainerStats(_ context.Context, q *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	c := rt.containers[q.GetContainerId()]
	if c == nil {
		return nil, rt.noContainer(q.GetContainerId())
	}
	return &runtimeapi.ContainerStatsResponse{Stats: &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: c.id, Metadata: c.config.GetMetadata()},
		Memory: &runtimeapi.MemoryUsage{
			WorkingSetBytes: &runtimeapi.UInt64Value{Value: c.memory}, UsageBytes: &runtimeapi.UInt64Value{Value: c.memory},
		},
	}}, nil
}
