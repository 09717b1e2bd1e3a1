package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// dirBound is the directory of volumes that an API server's claims are bound to.
const dirBound = "kubernetes.io~local-volume"

// bound is a volume for a claim of an API server. The claim's PersistentVolume is a directory of
// this node (type hostPath or local), a directory of an NFS server, or a volume of a CSI driver.
// A directory is mounted under the instance, so that a running container always sees the same
// one. Its contents are never removed.
type bound struct {
	claim    string
	readOnly bool
	owned    bool // it is the claim of a generic ephemeral volume, which has to be the pod's own
}

func (b bound) traits() traits {
	return traits{dir: dirBound, readOnly: b.readOnly, relabel: !b.readOnly}
}

func (bound) path(own string) string { return own }

// setUp gets the claim's target from the API server and mounts it. An existing mount stays,
// even if the server now answers otherwise.
func (b bound) setUp(ctx context.Context, p placed, s *setting) error {
	if s.cfg.Claim == nil {
		return fmt.Errorf("persistentvolumeclaim %q: there is no API server to ask", b.claim)
	}
	if s.hasDriverMount(p) {
		return b.growMounted(ctx, p, s)
	}
	if !p.driver && isMountPoint(p.path) {
		if s.again || s.bound[p.Name] != nil || s.remote[p.Name] != "" { // the mark names the mount's content, even if an earlier SetUp failed
			return nil
		}
		// No container uses the mount yet, and the mark does not name its content.
		if err := unmount(p.path); err != nil {
			return err
		}
	}
	from, err := s.cfg.Claim(ctx, s.want, b.claim)
	if err != nil {
		return fmt.Errorf("persistentvolumeclaim %q: %w", b.claim, err)
	}
	if b.owned && (from.Claim == nil || !metav1.IsControlledBy(from.Claim, s.want.Pod)) {
		return fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", s.want.Namespace, b.claim, s.want.Namespace, s.want.Name)
	}
	if err := checkUse(s.want, p.Name, from.CSI != nil && pod.IsBlock(from.CSI)); err != nil {
		return err
	}
	switch {
	case from.CSI != nil:
		return s.publish(ctx, p, pod.CSIRequest{Persistent: from.CSI, Claim: from.Claim, ReadOnly: b.readOnly})
	case from.NFS != nil && !p.driver:
		return b.mountNFS(p, s, from.NFS)
	case from.Directory == nil:
		return fmt.Errorf("persistentvolumeclaim %q: its volume has no directory", b.claim)
	case p.driver:
		return fmt.Errorf("persistentvolumeclaim %q: it was bound to a volume of a CSI driver before", b.claim)
	}
	return b.show(ctx, p, s, from.Directory)
}

// mountNFS mounts a directory of an NFS server, and notes that the volume shows no path of this
// node.
func (b bound) mountNFS(p placed, s *setting, from *v1.PersistentVolume) error {
	readOnly := b.readOnly || from.Spec.NFS.ReadOnly
	if err := s.mountNFS(from.Spec.NFS, p, readOnly, from.Spec.MountOptions); err != nil {
		return err
	}
	if s.remote == nil {
		s.remote = map[string]string{}
	}
	s.remote[p.Name] = from.Spec.NFS.Server + ":" + from.Spec.NFS.Path
	return nil
}

// growMounted makes the driver of a mounted volume enlarge it if the claim got larger. After a
// failure the volume stays unchanged, and a later call tries again.
func (b bound) growMounted(ctx context.Context, p placed, s *setting) error {
	if !s.drivers[p.Name].Grows {
		return nil
	}
	from, err := s.cfg.Claim(ctx, s.want, b.claim)
	if err == nil && from.CSI == nil {
		err = errors.New("it is bound to another volume")
	}
	if err == nil {
		err = s.publish(ctx, p, pod.CSIRequest{Persistent: from.CSI, Claim: from.Claim, ReadOnly: b.readOnly})
	}
	if err != nil {
		s.log.Debug("Failed to compare size of claim with its volume", "claim", s.want.Namespace+"/"+b.claim, "error", err)
		s.renewAt(time.Now().Add(growEvery))
	}
	return ctx.Err()
}

// show mounts a directory of this node.
func (b bound) show(ctx context.Context, p placed, s *setting, from *v1.HostPathVolumeSource) error {
	if err := (hostPath{from}).setUp(ctx, p, s); err != nil {
		return err
	}
	source, err := openVolume(from.Path)
	if err != nil {
		return fmt.Errorf("persistentvolumeclaim %q: %w", b.claim, err)
	}
	defer source.Close()
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(source.Fd())))
	if err != nil {
		return fmt.Errorf("persistentvolumeclaim %q: %w", b.claim, err)
	}
	// Mount the open file, because links on the path may have changed.
	shown := &v1.HostPathVolumeSource{Path: real, Type: from.Type}
	if s.cfg.Allow != nil {
		if err := s.cfg.Allow(s.want, p.Name, shown, true); err != nil {
			return err
		}
	}
	if err := bind(source, p.path); err != nil {
		return err
	}
	// The next SetUp does not change the group of a volume that is mounted already. Therefore the
	// mount stays only if it has the group.
	if err := b.setGroup(ctx, p, s); err != nil {
		return errors.Join(err, unmount(p.path))
	}
	if s.bound == nil {
		s.bound = map[string]*v1.HostPathVolumeSource{}
	}
	s.bound[p.Name] = shown
	return nil
}

// setGroup changes the group of the claim's files to the pod's.
func (b bound) setGroup(ctx context.Context, p placed, s *setting) error {
	if b.readOnly {
		return nil
	}
	var policy *v1.PodFSGroupChangePolicy
	if sc := s.want.Pod.Spec.SecurityContext; sc != nil {
		policy = sc.FSGroupChangePolicy
	}
	err := setGroup(ctx, p.path, s.group(), policy, false)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EOPNOTSUPP) {
		s.log.Warn("Failed to change the group of a claim", "claim", s.want.Namespace+"/"+b.claim, "error", err)
		return nil
	}
	return err
}

// allowedNow returns an error if a container must not get a volume's path. It is called for every
// container, because two things can happen after SetUp. The policy can change, and a container
// that can write above a host path can replace the path by a link. If the mark of an older agent
// has no target for a claim, it asks the API server.
func (v *Volumes) allowedNow(ctx context.Context, want *pod.Spec, dir string, p placed) error {
	if v.cfg.Allow == nil {
		return nil
	}
	if p.HostPath != nil {
		return v.allowed(want, p.Name, p.HostPath)
	}
	b, is := p.kind.(bound)
	if !is || p.driver {
		return nil
	}
	m, _ := v.marked(dir)
	if p.remote {
		return nil
	}
	if shown := m.Bound[p.Name]; shown != nil {
		return v.cfg.Allow(want, p.Name, shown, true)
	}
	if v.cfg.Claim == nil {
		return fmt.Errorf("persistentvolumeclaim %q: there is no API server to ask", b.claim)
	}
	ctx, stop := context.WithTimeout(ctx, claimTimeout)
	defer stop()
	from, err := v.cfg.Claim(ctx, want, b.claim)
	if err != nil {
		return fmt.Errorf("persistentvolumeclaim %q: %w", b.claim, err)
	}
	if from.Directory == nil {
		return fmt.Errorf("persistentvolumeclaim %q: its volume has no directory", b.claim)
	}
	return v.allowed(want, p.Name, from.Directory)
}

// claimTimeout limits the request for the target of a claim, on which a container waits.
const claimTimeout = 10 * time.Second

// isMountPoint reports whether something is mounted on path, also a part of the same file system.
func isMountPoint(path string) bool {
	whole, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return false
	}
	whole = filepath.Join(whole, filepath.Base(path))
	for _, m := range mountsBelow(path) {
		if m.Mountpoint == whole {
			return true
		}
	}
	return false
}
