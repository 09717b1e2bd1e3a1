package stats

import (
	"context"
	"errors"

	"k8s.io/utils/ptr"
)

// PodUsage is the usage of a pod with a running container.
type PodUsage struct {
	// Measured says that Memory was read.
	Measured bool
	Memory   uint64 // working set, in bytes
	PIDs     uint64
	// Volumes is the usage of its volumes on the node's disk, and of the files that the agent has for
	// it.
	Volumes DiskUsage
	// DiskUnknown says that Volumes and the logs were not measured, or only in part.
	DiskUnknown bool
	Containers  map[string]ContainerUsage
}

// ContainerUsage is the usage of a running container.
type ContainerUsage struct {
	Memory         uint64    // working set, in bytes
	Writable, Logs DiskUsage // the writable layer, the logs
}

// DiskUsage is the space that files take on a disk.
type DiskUsage struct{ Bytes, Inodes uint64 }

// Usage returns the usage of the pods with a running container, by UID. If disks is false and pods have
// cgroups, it only reads cgroups, and does not wait for the runtime or a disk. If disks is true, it measures
// disks now. If ctx ends before all pods are measured, it returns the error of ctx together with the known
// usage: disk usage may then be older, or missing (PodUsage.DiskUnknown).
func (s *Stats) Usage(ctx context.Context, disks bool) (map[string]PodUsage, error) {
	var r *reading
	var measured map[string]measured
	var err error
	if _, ok := s.placeOfAll(); disks || !ok {
		if r, err = s.read(ctx, true); err != nil {
			return nil, err
		}
		if err = r.failed; disks {
			var late error
			if measured, late = s.disksOf(ctx, r); errors.Is(late, context.Canceled) {
				return nil, late
			}
		}
	} else {
		r = s.cgroupsOnly(ctx)
	}
	all := make(map[string]PodUsage, len(r.pods))
	for i := range r.pods {
		p := &r.pods[i]
		m, known := measured[string(p.pod.UID)]
		u := usageOf(p, m)
		u.DiskUnknown = disks && s.cfg.Remeasure >= 0 && (!known || m.partial)
		all[string(p.pod.UID)] = u
	}
	return all, errors.Join(err, context.Cause(ctx))
}

func usageOf(r *podReading, disks measured) PodUsage {
	p := PodUsage{Measured: true, Volumes: disks.own.usage(), Containers: make(map[string]ContainerUsage, len(r.containers))}
	for i := range disks.volumes {
		if v := &disks.volumes[i]; v.ephemeral {
			p.Volumes.Bytes += v.taken.bytes
			p.Volumes.Inodes += v.taken.inodes
		}
	}
	for i := range r.containers {
		c := &r.containers[i]
		u := ContainerUsage{Logs: disks.logs[c.status.Name].usage()}
		switch {
		case c.group != nil:
			u.Memory = c.group.memory.workingSet
			p.PIDs += c.group.threads
		case c.usage != nil && c.usage.MemoryWorkingSet != nil:
			u.Memory = *c.usage.MemoryWorkingSet
		default:
			p.Measured = false
		}
		p.Memory += u.Memory
		if c.usage != nil {
			u.Writable = DiskUsage{ptr.Deref(c.usage.Writable.Used, 0), ptr.Deref(c.usage.Writable.InodesUsed, 0)}
		}
		if layer, ok := disks.layers[c.status.Name]; ok {
			u.Writable = layer.usage()
		}
		p.Containers[c.status.Name] = u
	}
	if r.group != nil {
		p.Measured, p.Memory, p.PIDs = true, r.group.memory.workingSet, max(p.PIDs, r.group.threads)
	}
	return p
}

func (t taken) usage() DiskUsage { return DiskUsage{t.bytes, t.inodes} }
