package volume

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/migration"
	"github.com/nodectl/nodectl/pkg/pod"
)

// The directories of volumes by kind, as the kubelet names them (C-1.37.4).
const (
	dirEmptyDir  = "kubernetes.io~empty-dir"
	dirConfigMap = "kubernetes.io~configmap"
	dirSecret    = "kubernetes.io~secret"
	dirDownward  = "kubernetes.io~downward-api"
	dirProjected = "kubernetes.io~projected"
	// dirDriver is the directory of CSI drivers' volumes. It is below the kubelet's directory,
	// which may be the agent's.
	dirDriver = "kubernetes.io~csi"
)

// kind is one volume of a kind: it says where the volume is and makes it. To add a kind, write its
// file and its line in kindOf. TearDown removes the volumes of all kinds in the same way, but it
// unmounts only what isOwn knows: a kind that mounts something has to be added there.
type kind interface {
	traits() traits
	// path returns the volume's path on the host. It returns "" for a volume that the runtime or
	// a CSI driver mounts. own is the path that the volume has if it is under the instance.
	path(own string) string
	// setUp makes the volume, or updates it. It does not change files that a container has
	// written.
	setUp(ctx context.Context, p placed, s *setting) error
}

// traits are the properties of a kind of volume.
type traits struct {
	// dir is the directory under "volumes" for volumes of this kind; empty if they have no
	// files under their instance.
	dir      string
	mounted  bool // the volume is a file system of its own, which the agent mounts
	readOnly bool // no container can write to it, even if its volumeMount is not read-only
	relabel  bool // its files get the containers' SELinux label
}

// setting holds the parameters of one SetUp.
type setting struct {
	*Volumes
	want  *pod.Spec
	again bool      // the instance was set up before and may be in use
	until time.Time // when SetUp has to be repeated; zero means never
	// bound maps volumes to the targets of an API server's claims (mark.Bound).
	bound map[string]*v1.HostPathVolumeSource
	// drivers maps volumes to the mounts of CSI drivers (mark.Drivers).
	drivers map[string]driverMount
	// remote maps volumes to NFS directories (mark.Remote).
	remote map[string]string
}

// renewAt makes SetUp repeat at t at the latest.
func (s *setting) renewAt(t time.Time) {
	if s.until.IsZero() || t.Before(s.until) {
		s.until = t
	}
}

// group is the pod's fsGroup, nil for none.
func (s *setting) group() *int64 {
	if c := s.want.Pod.Spec.SecurityContext; c != nil {
		return c.FSGroup
	}
	return nil
}

// kindOf returns the kind of one of want's volumes. A volume with several sources has none:
// a policy may have checked another source than the one that would be mounted.
func (v *Volumes) kindOf(want *pod.Spec, vol *v1.Volume) (kind, error) {
	switch {
	case !pod.OneSource(&vol.VolumeSource):
		return nil, errors.New("has not exactly one source")
	case vol.EmptyDir != nil:
		return emptyDir{vol.EmptyDir}, nil
	case vol.HostPath != nil:
		return hostPath{vol.HostPath}, nil
	case vol.ConfigMap != nil:
		return configMap(vol.ConfigMap), nil
	case vol.Secret != nil:
		return secret(vol.Secret), nil
	case vol.DownwardAPI != nil:
		return downward(vol.DownwardAPI), nil
	case vol.Projected != nil:
		return projected(vol.Projected), nil
	case vol.Image != nil:
		return image{}, nil
	case vol.PersistentVolumeClaim != nil:
		if want.Origin.FromAPI() {
			return bound{claim: vol.PersistentVolumeClaim.ClaimName, readOnly: vol.PersistentVolumeClaim.ReadOnly}, nil
		}
		return v.claim(want.Namespace, vol.PersistentVolumeClaim)
	case vol.Ephemeral != nil && want.Origin.FromAPI():
		return bound{claim: want.Name + "-" + vol.Name, owned: true}, nil
	case vol.CSI != nil && want.Origin.FromAPI():
		return inline{vol.CSI}, nil
	case migration.IsInline(&vol.VolumeSource) && want.Origin.FromAPI():
		return migrated{vol}, nil
	case vol.NFS != nil && want.Origin.FromAPI():
		return nfs{vol.NFS}, nil
	}
	return nil, errors.New("this kind of volume is not supported")
}
