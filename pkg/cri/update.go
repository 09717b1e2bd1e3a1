package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// unlimited takes a limit away in place; CRI reads zero as "leave it as it is".
const unlimited = -1

// UpdateContainer gives the running container the CPU and memory that want
// names for it, with the numbers CreateContainer would use (C-1.34). A limit
// that want does not name is taken away. A memory limit below what the
// container uses now is refused before the runtime is asked (C-1.34.4): the
// kernel would end the container, or say no more than "busy".
func (r *Runtime) UpdateContainer(ctx context.Context, id string, want *pod.Spec, container string) error {
	c, _ := want.Container(container)
	if c == nil {
		return fmt.Errorf("resize: pod %s has no container %q", want.Key, container)
	}
	res := r.machine.resources(want.Pod, c)
	if res.MemoryLimitInBytes > 0 {
		if err := r.fits(ctx, id, res.MemoryLimitInBytes); err != nil {
			return err
		}
	} else {
		res.MemoryLimitInBytes = unlimited
		if r.machine.swap && !r.machine.unified {
			res.MemorySwapLimitInBytes = unlimited // it may not be less
		}
	}
	if res.CpuQuota == 0 {
		res.CpuQuota = unlimited
	}
	_, err := act(ctx, r, "UpdateContainerResources", r.cfg.Timeouts.Call, r.rt.UpdateContainerResources,
		&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: res})
	return err
}

// fits says why the container cannot live within limit. Where the runtime does
// not know what it uses, the kernel has the word.
func (r *Runtime) fits(ctx context.Context, id string, limit int64) error {
	a, err := read(ctx, r, "ContainerStats", r.rt.ContainerStats, &runtimeapi.ContainerStatsRequest{ContainerId: id})
	if err != nil {
		return nil
	}
	// The working set: what else it uses are files' pages, which the kernel takes back.
	used := int64(a.GetStats().GetMemory().GetWorkingSetBytes().GetValue())
	if used < limit {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)",
		a.GetStats().GetAttributes().GetMetadata().GetName(), limit, used)
}

// ReopenLog makes the runtime write the running container's log to a new file
// at its path, once the old one was renamed (C-1.43.1).
func (r *Runtime) ReopenLog(ctx context.Context, id string) error {
	_, err := act(ctx, r, "ReopenContainerLog", r.cfg.Timeouts.Read, r.rt.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}
