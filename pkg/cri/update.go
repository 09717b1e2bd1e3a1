package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// unlimited removes a limit from a running container; CRI reads zero as "unchanged".
const unlimited = -1

// UpdateContainer sets the CPU and memory of the running container to want's, with the
// numbers CreateContainer would use (C-1.34). It removes limits that want does not have. It
// does not send a memory limit that the container's usage has reached (C-1.34.4): the kernel
// would kill the container, or only return "busy".
func (r *Runtime) UpdateContainer(ctx context.Context, id string, want *pod.Spec, container string) error {
	c, _ := want.Container(container)
	if c == nil {
		return fmt.Errorf("resize: pod %s has no container %q", want.Key, container)
	}
	res := r.resources(want, c)
	if res.MemoryLimitInBytes > 0 {
		if err := r.fits(ctx, id, res.MemoryLimitInBytes); err != nil {
			return err
		}
	} else {
		res.MemoryLimitInBytes = unlimited
		if r.machine.swap && !r.machine.unified {
			res.MemorySwapLimitInBytes = unlimited // it must not be below the memory limit
		}
	}
	if res.CpuQuota == 0 {
		res.CpuQuota = unlimited
	}
	_, err := act(ctx, r, "UpdateContainerResources", r.cfg.Timeouts.Call, r.rt.UpdateContainerResources,
		&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: res})
	return err
}

// UpdateCPUs moves the running container to these CPUs, and changes nothing else of it.
func (r *Runtime) UpdateCPUs(ctx context.Context, id, cpus string) error {
	_, err := act(ctx, r, "UpdateContainerResources", r.cfg.Timeouts.Call, r.rt.UpdateContainerResources,
		&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: cpus}})
	return err
}

// fits returns an error if the container's usage has reached limit. If the runtime does not
// report the usage, the kernel decides.
func (r *Runtime) fits(ctx context.Context, id string, limit int64) error {
	a, err := read(ctx, r, "ContainerStats", r.rt.ContainerStats, &runtimeapi.ContainerStatsRequest{ContainerId: id})
	if err != nil {
		return nil
	}
	// The working set: the rest is page cache, which the kernel reclaims.
	used := int64(a.GetStats().GetMemory().GetWorkingSetBytes().GetValue())
	if used < limit {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)",
		a.GetStats().GetAttributes().GetMetadata().GetName(), limit, used)
}

// ReopenLog makes the runtime write the running container's log to a new file at its path,
// after the old one was renamed (C-1.43.1).
func (r *Runtime) ReopenLog(ctx context.Context, id string) error {
	_, err := act(ctx, r, "ReopenContainerLog", r.cfg.Timeouts.Read, r.rt.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}
