package pod

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// BoundVolume is the volume that a claim of an API server is bound to: a directory of this node or
// of an NFS server, or a volume of a CSI driver. One of the first three fields is set.
type BoundVolume struct {
	Directory *v1.HostPathVolumeSource // of this node
	CSI       *v1.PersistentVolume     // has spec.csi
	NFS       *v1.PersistentVolume     // has spec.nfs
	// Claim is the claim itself.
	Claim *v1.PersistentVolumeClaim
}

// IsBlock reports whether a volume is a block device without a file system.
func IsBlock(p *v1.PersistentVolume) bool {
	return p.Spec.VolumeMode != nil && *p.Spec.VolumeMode == v1.PersistentVolumeBlock
}

// CSIRequest asks for a volume of a CSI driver for one pod.
type CSIRequest struct {
	Want   *Spec
	Volume string // its name in the pod
	// Persistent is the volume of a claim, Inline the volume of the pod itself; one of them is set.
	Persistent *v1.PersistentVolume
	Claim      *v1.PersistentVolumeClaim // of Persistent
	// Migrated says that Persistent is a volume of a cloud in the pod itself. Its name may have slashes.
	Migrated bool
	Inline   *v1.CSIVolumeSource
	ReadOnly bool
	// Labels are the SELinux labels for files of the containers that mount the volume. It is empty if
	// the node has no SELinux, or if the runtime has to choose a label.
	Labels []string
}

// VolumeUsage is the usage of a volume, as its CSI driver reports it.
type VolumeUsage struct {
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64 // 0: the driver does not report them
	Health                         VolumeHealth
}

// VolumeHealth is the condition of a volume, as its CSI driver reports it.
type VolumeHealth struct {
	Known    bool // the driver reports it
	Abnormal bool
	Message  string
}

// EventVolumeConditionAbnormal is the kubelet's reason of an event about a volume whose driver reports
// that it is not healthy.
const EventVolumeConditionAbnormal = "VolumeConditionAbnormal"

// BlockDevice is a block volume in a container.
type BlockDevice struct {
	HostPath, ContainerPath string
	ReadOnly                bool
}

// CSIMount is a volume that a CSI driver has mounted for a pod. The path of a block volume is a
// device.
type CSIMount struct {
	Path string
	// SetGroup says that the node has to give the volume's files the pod's group. Otherwise the
	// driver has done it, or the volume keeps its groups.
	SetGroup bool
	// Renew is when the driver wants to be called again; zero: never.
	Renew  time.Time
	Growth CSIGrowth
	// Labeled says that the files have the SELinux label of the containers by a mount option, so that
	// the runtime must not change it.
	Labeled bool
}

// CSIGrowth is the expansion of a volume whose claim got larger.
type CSIGrowth struct {
	// Possible says that the driver expands volumes while they are mounted, or that it is not known:
	// the claim has to be read again from time to time.
	Possible bool
	// Done is the kubelet's message of an expansion, "" for none.
	Done string
	// Failed is why a volume that was mounted before is not expanded.
	Failed error
}

// Reasons of events about the size of volumes: the kubelet's.
const (
	EventVolumeResizeFailed      = "VolumeResizeFailed"
	EventFileSystemResizeSuccess = "FileSystemResizeSuccessful"
)
