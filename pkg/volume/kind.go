package volume

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The directories that volumes of each kind lie in, as the kubelet names them
// (C-1.37.4).
const (
	dirEmptyDir  = "kubernetes.io~empty-dir"
	dirConfigMap = "kubernetes.io~configmap"
	dirSecret    = "kubernetes.io~secret"
	dirDownward  = "kubernetes.io~downward-api"
	dirProjected = "kubernetes.io~projected"
)

// kind is one volume as its kind knows it: where it lies and how it is made. To
// add a kind, write its file and its line in kindOf. Taking away needs no code of a
// kind's own: an instance's mounts and directory go as a whole, and nothing outside
// it does.
type kind interface {
	traits() traits
	// path returns where on the host the volume is; own is its place under the
	// instance. It is empty for a volume that the runtime brings.
	path(own string) string
	// put makes the volume, or brings it up to date. It touches nothing that a
	// container has written.
	put(ctx context.Context, p placed, s *setting) error
}

// traits is how a kind of volume is treated beside its making.
type traits struct {
	// dir names the directory under "volumes" that volumes of this kind lie in;
	// empty when a volume keeps nothing under its instance.
	dir      string
	mounted  bool // a file system of our own is mounted there
	readOnly bool // no container writes to it, whatever it asks for
	relabel  bool // containers give it their SELinux label
}

// setting is one Put.
type setting struct {
	*Volumes
	want  *pod.Spec
	again bool      // it was put in place before and may be in use
	until time.Time // when it has to be done again; zero is never
	// bound is what the claims of an API server are bound to, by volume (mark.Bound).
	bound map[string]*v1.HostPathVolumeSource
}

// renewAt has the volumes put again at t.
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

// kindOf returns the kind of one of want's volumes. A volume with several sources has
// none: a policy may have judged another one than is mounted here.
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
	}
	return nil, errors.New("this kind of volume is not supported")
}
