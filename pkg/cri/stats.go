package cri

import (
	"context"
	"errors"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ContainerUsage returns the usage of each container that carries our node's label, by one
// call. It may include containers that do not run. A list too long for one message is read
// in pieces.
func (r *Runtime) ContainerUsage(ctx context.Context) ([]pod.ContainerUsage, error) {
	filter := &runtimeapi.ContainerStatsFilter{LabelSelector: r.selector()}
	a, err := read(ctx, r, "ListContainerStats", r.rt.ListContainerStats, &runtimeapi.ListContainerStatsRequest{Filter: filter})
	list := a.GetStats()
	if tooLong(err) {
		list, err = pieces(ctx, r, "StreamContainerStats", err, r.rt.StreamContainerStats,
			&runtimeapi.StreamContainerStatsRequest{Filter: filter}, (*runtimeapi.StreamContainerStatsResponse).GetContainerStats)
	}
	if err != nil {
		return nil, err
	}
	all := make([]pod.ContainerUsage, 0, len(list))
	for _, s := range list {
		all = append(all, usageOf(s))
	}
	return all, nil
}

// Filesystems returns the file systems of the runtime's images and of the containers'
// writable layers, each with the runtime's usage there. A runtime that does not separate
// them reports one for both (C-1.40.7), and so does Filesystems with Config.OneDisk.
func (r *Runtime) Filesystems(ctx context.Context) (images, containers pod.Filesystem, err error) {
	a, err := read(ctx, r, "ImageFsInfo", r.img.ImageFsInfo, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return pod.Filesystem{}, pod.Filesystem{}, err
	}
	if len(a.GetImageFilesystems()) == 0 {
		return pod.Filesystem{}, pod.Filesystem{}, errors.New("the container runtime reports no file system of images")
	}
	images = filesystemOf(a.GetImageFilesystems()[0])
	containers = images
	if own := a.GetContainerFilesystems(); len(own) > 0 && !r.cfg.OneDisk {
		containers = filesystemOf(own[0])
	}
	return images, containers, nil
}

func usageOf(s *runtimeapi.ContainerStats) pod.ContainerUsage {
	labels := s.GetAttributes().GetLabels()
	u := pod.ContainerUsage{
		ID:               s.GetAttributes().GetId(),
		Key:              keyOfLabels(labels),
		UID:              labels[pod.LabelPodUID],
		Container:        s.GetAttributes().GetMetadata().GetName(),
		Attempt:          s.GetAttributes().GetMetadata().GetAttempt(),
		At:               timeOf(max(s.GetCpu().GetTimestamp(), s.GetMemory().GetTimestamp())),
		CPUNanoseconds:   counted(s.GetCpu().GetUsageCoreNanoSeconds()),
		CPURate:          counted(s.GetCpu().GetUsageNanoCores()),
		MemoryUsage:      counted(s.GetMemory().GetUsageBytes()),
		MemoryWorkingSet: counted(s.GetMemory().GetWorkingSetBytes()),
		MemoryRSS:        counted(s.GetMemory().GetRssBytes()),
		MemoryAvailable:  counted(s.GetMemory().GetAvailableBytes()),
		PageFaults:       counted(s.GetMemory().GetPageFaults()),
		MajorPageFaults:  counted(s.GetMemory().GetMajorPageFaults()),
		SwapUsage:        counted(s.GetSwap().GetSwapUsageBytes()),
		SwapAvailable:    counted(s.GetSwap().GetSwapAvailableBytes()),
	}
	if s.GetWritableLayer() != nil {
		u.Writable = filesystemOf(s.GetWritableLayer())
	}
	return u
}

func filesystemOf(f *runtimeapi.FilesystemUsage) pod.Filesystem {
	return pod.Filesystem{
		At:         timeOf(f.GetTimestamp()),
		Mountpoint: f.GetFsId().GetMountpoint(),
		Used:       counted(f.GetUsedBytes()),
		InodesUsed: counted(f.GetInodesUsed()),
	}
}

// counted is a number of a message, nil if the runtime did not set it.
func counted(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}
