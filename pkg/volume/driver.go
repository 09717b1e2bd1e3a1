package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/migration"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Drivers mounts volumes of CSI drivers.
type Drivers interface {
	// Publish mounts a volume for a pod, unless it is mounted.
	Publish(ctx context.Context, q pod.CSIRequest) (pod.CSIMount, error)
	// Mounted reports whether something is mounted on the path that Publish returned, or that path
	// is a block device.
	Mounted(path string) bool
	// Uses reports whether a volume is mounted for a pod, or is about to be. It reads no disk.
	Uses(uid string) bool
	// Unpublish unmounts all volumes of a pod.
	Unpublish(ctx context.Context, uid string) error
	// Sweep unmounts the volumes of all pods for whose UIDs keep returns false.
	Sweep(ctx context.Context, keep func(uid string) bool) error
}

// driverMount is where a CSI driver has mounted a volume.
type driverMount struct {
	Path string `json:"path"`
	// Renew says that the driver has to be called again from time to time.
	Renew bool `json:"renew,omitempty"`
	// Grows says that the claim has to be read again from time to time: the driver enlarges the
	// volume when the claim got larger.
	Grows bool `json:"grows,omitempty"`
	// Labeled says that the mount gives the files the containers' SELinux label.
	Labeled bool `json:"labeled,omitempty"`
	// Block says that the path is a block device.
	Block bool `json:"block,omitempty"`
}

// inline is a volume of a CSI driver that the pod's spec defines: it is made with the pod and
// removed with it.
type inline struct{ *v1.CSIVolumeSource }

func (i inline) traits() traits {
	readOnly := i.ReadOnly != nil && *i.ReadOnly
	return traits{readOnly: readOnly, relabel: !readOnly}
}

// path returns no path: place takes it from the instance's mark.
func (inline) path(string) string { return "" }

func (i inline) setUp(ctx context.Context, p placed, s *setting) error {
	if s.hasDriverMount(p) {
		return nil
	}
	return s.publish(ctx, p, pod.CSIRequest{Inline: i.CSIVolumeSource, ReadOnly: p.readOnly})
}

// migrated is a volume of a cloud in a pod. The CSI driver of the cloud mounts it. Whether it is
// read-only is decided when it is attached, as with the kubelet.
type migrated struct{ *v1.Volume }

func (migrated) traits() traits { return traits{relabel: true} }

// path returns no path: place takes it from the instance's mark.
func (migrated) path(string) string { return "" }

func (m migrated) setUp(ctx context.Context, p placed, s *setting) error {
	if s.hasDriverMount(p) {
		return nil
	}
	if err := checkUse(s.want, p.Name, false); err != nil {
		return err
	}
	pv, err := migration.Inline(m.Volume, s.want.Namespace)
	if err != nil {
		return err
	}
	return s.publish(ctx, p, pod.CSIRequest{Persistent: pv, Migrated: true})
}

// placeDriverMounts sets the paths of the volumes that CSI drivers have mounted for the instance in
// dir, and marks claims of NFS directories.
func (v *Volumes) placeDriverMounts(dir string, all []placed) {
	var mounts map[string]driverMount
	var remote map[string]string
	for i := range all {
		p := &all[i]
		own := ofDriver(p.kind)
		if _, claimed := p.kind.(bound); !own && !claimed {
			continue
		}
		if mounts == nil {
			m, _ := v.marked(dir)
			remote = m.Remote
			if mounts = m.Drivers; mounts == nil {
				mounts = map[string]driverMount{}
			}
		}
		p.remote = remote[p.Name] != ""
		m, known := mounts[p.Name]
		if p.driver = known || own; known {
			p.path, p.dir, p.block, p.labels = m.Path, "", m.Block, m.Labeled
		}
	}
}

// ofDriver reports whether a kind of volume always needs a CSI driver.
func ofDriver(k kind) bool {
	switch k.(type) {
	case inline, migrated:
		return true
	}
	return false
}

// hasDriverMount reports whether a CSI driver has mounted the volume, and needs no call.
func (s *setting) hasDriverMount(p placed) bool {
	m, known := s.drivers[p.Name]
	return known && !m.Renew && s.cfg.Drivers != nil && s.cfg.Drivers.Mounted(m.Path)
}

// publish has a CSI driver mount a volume, and gives its files the pod's group.
func (s *setting) publish(ctx context.Context, p placed, q pod.CSIRequest) error {
	if s.cfg.Drivers == nil {
		return errors.New("volumes of CSI drivers need an agent that serves as root")
	}
	q.Want, q.Volume = s.want, p.Name
	if s.cfg.SELinux {
		q.Labels = fileLabels(s.cfg.FileLabel, s.want.Pod, p.Name)
	}
	m, err := s.cfg.Drivers.Publish(ctx, q)
	if err != nil {
		return err
	}
	_, known := s.drivers[p.Name]
	if m.SetGroup && !known {
		var policy *v1.PodFSGroupChangePolicy
		if sc := s.want.Pod.Spec.SecurityContext; sc != nil {
			policy = sc.FSGroupChangePolicy
		}
		err := setGroup(ctx, m.Path, s.group(), policy, false)
		if err != nil && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("MountVolume.SetUp failed for volume %q : applyFSGroup failed for vol %s: %w", p.Name, p.Name, err)
		}
	}
	s.drivers = maps.Clone(s.drivers)
	if s.drivers == nil {
		s.drivers = map[string]driverMount{}
	}
	s.drivers[p.Name] = driverMount{Path: m.Path, Renew: !m.Renew.IsZero(), Grows: m.Growth.Possible, Labeled: m.Labeled, Block: q.Persistent != nil && pod.IsBlock(q.Persistent)}
	s.reportGrowth(m.Growth)
	if !m.Renew.IsZero() {
		s.renewAt(m.Renew)
	}
	return nil
}

// growEvery is how often the claim of a mounted volume is read again, in case it got larger.
const growEvery = 2 * time.Minute

// reportGrowth sends the kubelet's events of an expansion, and makes SetUp repeat.
func (s *setting) reportGrowth(g pod.CSIGrowth) {
	if g.Possible {
		s.renewAt(time.Now().Add(growEvery))
	}
	if g.Failed != nil {
		s.event(pod.EventWarning, pod.EventVolumeResizeFailed, g.Failed.Error())
	}
	if g.Done != "" {
		s.event(pod.EventNormal, pod.EventFileSystemResizeSuccess, g.Done)
	}
}

func (s *setting) event(kind, reason, message string) {
	if s.cfg.Event != nil {
		s.cfg.Event(pod.Event{Key: s.want.Key, UID: s.want.UID(), Type: kind, Reason: reason, Message: message, At: time.Now()})
	}
}

// checkUse refuses a volume that the pod's containers use in another way than its mode allows. The
// texts are the kubelet's.
func checkUse(want *pod.Spec, volume string, block bool) error {
	mounts, devices := false, false
	look := func(m []v1.VolumeMount, d []v1.VolumeDevice) {
		mounts = mounts || slices.ContainsFunc(m, func(m v1.VolumeMount) bool { return m.Name == volume })
		devices = devices || slices.ContainsFunc(d, func(d v1.VolumeDevice) bool { return d.Name == volume })
	}
	spec := &want.Pod.Spec
	for i := range spec.InitContainers {
		look(spec.InitContainers[i].VolumeMounts, spec.InitContainers[i].VolumeDevices)
	}
	for i := range spec.Containers {
		look(spec.Containers[i].VolumeMounts, spec.Containers[i].VolumeDevices)
	}
	for i := range spec.EphemeralContainers {
		look(spec.EphemeralContainers[i].VolumeMounts, spec.EphemeralContainers[i].VolumeDevices)
	}
	switch {
	case mounts && block:
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", volume, v1.PersistentVolumeBlock)
	case devices && !block:
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", volume, v1.PersistentVolumeFilesystem)
	}
	return nil
}

// Devices returns the block devices of one container of an instance after SetUp, in the order of its
// volumeDevices. It fails for a device that does not exist any more.
func (v *Volumes) Devices(r pod.CreateRequest) (all []pod.BlockDevice, err error) {
	c, _ := r.Want.Container(r.Container)
	if c == nil || len(c.VolumeDevices) == 0 {
		return nil, nil
	}
	_, volumes, err := v.place(r.Want, r.Sandbox.Instance)
	if err != nil {
		return nil, err
	}
	for _, d := range c.VolumeDevices {
		at := slices.IndexFunc(volumes, func(p placed) bool { return p.Name == d.Name })
		switch {
		case !path.IsAbs(d.DevicePath):
			return nil, fmt.Errorf("error DevicePath `%s` must be an absolute path", d.DevicePath)
		case at < 0 || !volumes[at].block:
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		p := volumes[at]
		if err := v.checkExists(p); err != nil {
			return nil, fmt.Errorf("container %s, device %s: %w", c.Name, d.Name, err)
		}
		all = append(all, pod.BlockDevice{HostPath: p.path, ContainerPath: d.DevicePath, ReadOnly: p.readOnly})
	}
	return all, nil
}

// HasDriverVolumes reports whether CSI drivers have mounted volumes for the pod with uid, or are about to. It
// reads no disk.
func (v *Volumes) HasDriverVolumes(uid string) bool {
	return v.cfg.Drivers != nil && v.cfg.Drivers.Uses(uid)
}

// unpublish has CSI drivers unmount the volumes of a pod.
func (v *Volumes) unpublish(ctx context.Context, uid string) error {
	if v.cfg.Drivers == nil {
		return nil
	}
	return v.cfg.Drivers.Unpublish(ctx, uid)
}
