package volume

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
)

const etcHosts = "/etc/hosts"

// Mounts returns the mounts of one container of an instance after SetUp, in the order of its
// volumeMounts, and that of its managed /etc/hosts. It fails for a mistake in the spec, and
// for a volume that no longer exists, which the runtime would replace by an empty one. It also
// fails for a volume that shows a path which Allow forbids. ctx limits requests to the API server.
func (v *Volumes) Mounts(ctx context.Context, r pod.CreateRequest) ([]pod.Mount, error) {
	want, name := r.Want, r.Container
	dir, all, err := v.place(want, r.Sandbox.Instance)
	if err != nil {
		return nil, err
	}
	c, _ := want.Container(name)
	if c == nil {
		return nil, fmt.Errorf("the pod has no container %s", name)
	}
	var mounts []pod.Mount
	ownHosts := false
	for i, m := range c.VolumeMounts {
		at := slices.IndexFunc(all, func(p placed) bool { return p.Name == m.Name })
		if at < 0 {
			return nil, fmt.Errorf("container %s mounts volume %s, which the pod does not have", name, m.Name)
		}
		end := begin(ctx, "mount volume", all[at])
		mount, err := v.mount(ctx, want, dir, all[at], c, i, r.Env)
		end()
		if err != nil {
			return nil, fmt.Errorf("container %s, volume %s: %w", name, m.Name, err)
		}
		ownHosts = ownHosts || path.Clean(mount.ContainerPath) == etcHosts
		mounts = append(mounts, mount)
	}
	if !ownHosts && (want.Pod.Spec.HostNetwork || len(r.Sandbox.IPs) > 0) {
		hosts, err := v.hosts(dir, want, r.Sandbox.IPs)
		if err != nil {
			return nil, fmt.Errorf("/etc/hosts of the pod: %w", err)
		}
		mounts = append(mounts, hosts...)
	}
	for i := range mounts {
		mounts[i].Users = r.Place.Users
	}
	return mounts, nil
}

// mount returns the mount of volumeMount number i for the runtime (C-1.37.8).
func (v *Volumes) mount(ctx context.Context, want *pod.Spec, dir string, p placed, c *v1.Container, i int, env []v1.EnvVar) (pod.Mount, error) {
	m := &c.VolumeMounts[i]
	mount := pod.Mount{
		HostPath: p.path, ContainerPath: m.MountPath,
		ReadOnly: m.ReadOnly || p.readOnly, Relabel: p.relabel && !p.labels && v.cfg.SELinux,
	}
	if !path.IsAbs(m.MountPath) {
		mount.ContainerPath = "/" + m.MountPath
	}
	if m.MountPropagation != nil {
		mount.Propagation = string(*m.MountPropagation)
	}
	var err error
	if mount.RecursiveReadOnly, err = v.recursiveReadOnly(want.Pod.Spec.RuntimeClassName, m); err != nil {
		return mount, err
	}
	sub, err := subPath(m, env)
	if err != nil {
		return mount, err
	}
	if p.Image != nil {
		mount.Image, mount.SubPath = p.Image.Reference, sub
		return mount, nil
	}
	if p.block {
		return mount, checkUse(want, p.Name, true)
	}
	if err := v.checkExists(p); err != nil {
		return mount, err
	}
	if err := v.allowedNow(ctx, want, dir, p); err != nil {
		return mount, err
	}
	if sub != "" {
		allow := func(root string) error { return nil }
		if p.HostPath != nil && v.cfg.Allow != nil {
			allow = func(root string) error {
				return v.cfg.Allow(want, p.Name, &v1.HostPathVolumeSource{Path: root, Type: p.HostPath.Type}, true)
			}
		}
		if mount.HostPath, err = bindSubPath(dir, p, c.Name, i, sub, allow); err != nil {
			return mount, fmt.Errorf("%s: %w", subPathText(m), err)
		}
	}
	return mount, nil
}

// checkExists returns an error if the volume does not exist or is not mounted.
func (v *Volumes) checkExists(p placed) error {
	if p.HostPath != nil {
		return nil // without a type it may be missing
	}
	if p.driver {
		if p.path == "" || v.cfg.Drivers == nil || !v.cfg.Drivers.Mounted(p.path) {
			return fmt.Errorf("volume %s is no longer mounted", p.Name)
		}
		return nil
	}
	if _, is := p.kind.(nfs); is || p.remote { // a server that is away must not be asked
		if !isMountPoint(p.path) {
			return fmt.Errorf("%s is no longer mounted", p.path)
		}
		return nil
	}
	if info, err := os.Lstat(p.path); err != nil || !info.IsDir() {
		return fmt.Errorf("%s no longer exists", p.path)
	}
	if _, is := p.kind.(bound); is && !isMountPoint(p.path) {
		return fmt.Errorf("%s is no longer mounted", p.path)
	}
	if p.mounted {
		if mounted, err := overmounted(p.path); err != nil || !mounted {
			return fmt.Errorf("%s is no longer mounted", p.path)
		}
	}
	return nil
}

// recursiveReadOnly reports whether the mounts below a mount have to be read-only too.
func (v *Volumes) recursiveReadOnly(class *string, m *v1.VolumeMount) (bool, error) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	mode := *m.RecursiveReadOnly
	possible := v.cfg.RecursiveReadOnly != nil && v.cfg.RecursiveReadOnly(class)
	switch {
	case !m.ReadOnly:
		return false, fmt.Errorf("recursiveReadOnly: %s needs readOnly: true", mode)
	case m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone:
		return false, fmt.Errorf("recursiveReadOnly: %s cannot be combined with mountPropagation: %s", mode, *m.MountPropagation)
	case mode == v1.RecursiveReadOnlyIfPossible:
		return possible, nil
	case mode != v1.RecursiveReadOnlyEnabled:
		return false, fmt.Errorf("recursiveReadOnly: %q is not known", mode)
	case !possible:
		return false, fmt.Errorf("recursiveReadOnly: %s is not supported by the runtime", mode)
	}
	return true, nil
}

// subPathText is the subPath or subPathExpr as written: with the environment's values it
// may contain those of a Secret.
func subPathText(m *v1.VolumeMount) string {
	if m.SubPathExpr != "" {
		return fmt.Sprintf("subPathExpr %.200q", m.SubPathExpr)
	}
	return fmt.Sprintf("subPath %.200q", m.SubPath)
}

// subPath is the mounted part of a volume, "" for all of it. It expands names of the
// container's environment (C-1.37.7); each must have a value.
func subPath(m *v1.VolumeMount, env []v1.EnvVar) (string, error) {
	sub := m.SubPath
	if m.SubPathExpr != "" {
		values := map[string]string{}
		for _, e := range env {
			values[e.Name] = e.Value
		}
		if missing := unresolved(m.SubPathExpr, values); len(missing) > 0 {
			if more := len(missing) - 3; more > 1 {
				missing = append(missing[:3], fmt.Sprintf("%d more", more))
			}
			return "", fmt.Errorf("subPathExpr: missing value for %s", strings.Join(missing, ", "))
		}
		var err error
		if sub, err = podenv.Expand(m.SubPathExpr, values); err != nil {
			return "", fmt.Errorf("subPathExpr: %w", err)
		}
	}
	if sub == "" {
		return "", nil
	}
	switch {
	case path.IsAbs(sub):
		return "", fmt.Errorf("%s must not be an absolute path", subPathText(m))
	case slices.Contains(strings.Split(sub, "/"), ".."):
		return "", fmt.Errorf("%s must not contain '..'", subPathText(m))
	case strings.ContainsRune(sub, 0):
		return "", fmt.Errorf("%s must not contain a zero byte", subPathText(m))
	}
	if sub = path.Clean(sub); sub == "." {
		return "", nil
	}
	return sub, nil
}

// unresolved returns the names in expr that have no value, or an empty one. It parses expr
// as podenv.Expand does, in one pass, because a manifest decides its length.
func unresolved(expr string, values map[string]string) (missing []string) {
	for {
		at := strings.IndexByte(expr, '$')
		if at < 0 || at == len(expr)-1 {
			break
		}
		what := expr[at+1]
		expr = expr[at+2:]
		if what != '(' {
			continue // an escape, or text
		}
		name, rest, closed := strings.Cut(expr, ")")
		if !closed {
			break
		}
		if values[name] == "" {
			missing = append(missing, name)
		}
		expr = rest
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}
