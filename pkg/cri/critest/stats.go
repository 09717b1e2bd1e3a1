package critest

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A running container uses a tenth of a processor, and has written a page.
const (
	busyTenth    = 10
	pageWritten  = 4096
	imagesOnDisk = 1 << 20
)

// ListContainerStats implements CRI: only for running containers, as in containerd.
func (rt *Runtime) ListContainerStats(_ context.Context, q *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	a, now := &runtimeapi.ListContainerStatsResponse{}, time.Now().UnixNano()
	for _, c := range rt.containers {
		f := q.GetFilter()
		if !c.running() || f.GetId() != "" && f.GetId() != c.id || f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandboxID ||
			!selects(f.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		a.Stats = append(a.Stats, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{
				Id: c.id, Metadata: c.config.GetMetadata(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
			},
			Cpu: &runtimeapi.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: value(uint64(now-c.started) / busyTenth)},
			Memory: &runtimeapi.MemoryUsage{
				Timestamp: now, WorkingSetBytes: value(c.memory), UsageBytes: value(c.memory),
			},
			WritableLayer: &runtimeapi.FilesystemUsage{
				Timestamp: now, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: value(pageWritten), InodesUsed: value(1),
			},
		})
	}
	return a, nil
}

// ImageFsInfo implements CRI: one file system for all.
func (rt *Runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: value(imagesOnDisk), InodesUsed: value(1),
	}}}, nil
}

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }
