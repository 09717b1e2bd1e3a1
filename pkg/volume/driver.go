package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Drivers mounts volumes of CSI drivers.
type Drivers interface {
	// Publish mounts a volume for a pod, unless it is mounted.
	Publish(ctx context.Context, q pod.CSIRequest) (pod.CSIMount, error)
	// Mounted reports whether something is mounted on the path that Publish returned.
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
}

// inline is a volume of a CSI driver that lives and dies with the pod.
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

// placeDriverMounts sets the paths of the volumes that CSI drivers have mounted for the instance in
// dir.
func (v *Volumes) placeDriverMounts(dir string, all []placed) {
	var mounts map[string]driverMount
	for i := range all {
		p := &all[i]
		_, own := p.kind.(inline)
		if _, claimed := p.kind.(bound); !own && !claimed {
			continue
		}
		if mounts == nil {
			m, _ := v.marked(dir)
			if mounts = m.Drivers; mounts == nil {
				mounts = map[string]driverMount{}
			}
		}
		m, known := mounts[p.Name]
		if p.driver = known || own; known {
			p.path, p.dir = m.Path, ""
		}
	}
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
	s.drivers[p.Name] = driverMount{Path: m.Path, Renew: !m.Renew.IsZero()}
	if !m.Renew.IsZero() {
		s.renewAt(m.Renew)
	}
	return nil
}

// Left reports whether CSI drivers have mounted volumes for the pod with uid, or are about to. It
// reads no disk.
func (v *Volumes) Left(uid string) bool {
	return v.cfg.Drivers != nil && v.cfg.Drivers.Uses(uid)
}

// unpublish has CSI drivers unmount the volumes of a pod.
func (v *Volumes) unpublish(ctx context.Context, uid string) error {
	if v.cfg.Drivers == nil {
		return nil
	}
	return v.cfg.Drivers.Unpublish(ctx, uid)
}
