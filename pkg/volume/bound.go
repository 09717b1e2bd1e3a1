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

	"github.com/nodectl/nodectl/pkg/pod"
)

// dirBound is where volumes lie that a claim of an API server is bound to.
const dirBound = "kubernetes.io~local-volume"

// bound is a claim of an API server: a directory of this node that somebody has made a
// PersistentVolume of, as hostPath or local volume. It is mounted under the instance,
// so that what a container sees never changes while it runs, and nothing in it is
// ever removed.
type bound struct {
	claim    string
	readOnly bool
}

func (b bound) traits() traits {
	return traits{dir: dirBound, readOnly: b.readOnly, relabel: !b.readOnly}
}

func (bound) path(own string) string { return own }

// put asks what the claim is bound to and mounts that. What is mounted already stays,
// whatever the server says or does not say.
func (b bound) put(ctx context.Context, p placed, s *setting) error {
	if s.cfg.Claim == nil {
		return fmt.Errorf("persistentvolumeclaim %q: there is no API server to ask", b.claim)
	}
	if boundAt(p.path) {
		if s.again || s.bound[p.Name] != nil { // an earlier Put may have failed after this
			return nil
		}
		// No container uses it yet, and the mark does not say what it shows.
		if err := unmount(p.path); err != nil {
			return err
		}
	}
	from, err := s.cfg.Claim(ctx, s.want, b.claim)
	if err != nil {
		return fmt.Errorf("persistentvolumeclaim %q: %w", b.claim, err)
	}
	if err := (hostPath{from}).put(ctx, p, s); err != nil {
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
	// What is open is what is mounted, whatever the links lead to by now.
	shown := &v1.HostPathVolumeSource{Path: real, Type: from.Type}
	if s.cfg.Allow != nil {
		if err := s.cfg.Allow(s.want, p.Name, shown, true); err != nil {
			return err
		}
	}
	if err := bind(source, p.path); err != nil {
		return err
	}
	// What stays mounted has the group: the next Put begins a change again that is cut short.
	if err := b.setGroup(ctx, p, s); err != nil {
		return errors.Join(err, unmount(p.path))
	}
	if s.bound == nil {
		s.bound = map[string]*v1.HostPathVolumeSource{}
	}
	s.bound[p.Name] = shown
	return nil
}

// setGroup gives what the claim holds to the pod's group.
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
		s.log.Warn("Group of claim not changed", "claim", s.want.Namespace+"/"+b.claim, "error", err)
		return nil
	}
	return err
}

// allowedNow says why what a volume shows must not be given to a container. It asks for
// every container: after Put, a container that writes above a host path can have put a link
// there, and the policy can have changed. An agent before this one may not have written
// down what a claim shows: then the API server says it.
func (v *Volumes) allowedNow(ctx context.Context, want *pod.Spec, dir string, p placed) error {
	if v.cfg.Allow == nil {
		return nil
	}
	if p.HostPath != nil {
		return v.allowed(want, p.Name, p.HostPath)
	}
	b, is := p.kind.(bound)
	if !is {
		return nil
	}
	m, _ := v.marked(dir)
	if shown := m.Bound[p.Name]; shown != nil {
		return v.cfg.Allow(want, p.Name, shown, true)
	}
	if v.cfg.Claim == nil {
		return fmt.Errorf("persistentvolumeclaim %q: there is no API server to ask", b.claim)
	}
	ctx, stop := context.WithTimeout(ctx, claimPatience)
	defer stop()
	from, err := v.cfg.Claim(ctx, want, b.claim)
	if err != nil {
		return fmt.Errorf("persistentvolumeclaim %q: %w", b.claim, err)
	}
	return v.allowed(want, p.Name, from)
}

// claimPatience is how long a container waits for what its claim is bound to.
const claimPatience = 10 * time.Second

// boundAt reports whether something is mounted on path itself.
func boundAt(path string) bool {
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
