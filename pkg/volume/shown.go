package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
)

// defaultMode is the mode of files if a volume has none, as the API defaults it.
const defaultMode = 0o644

// file is one file of a volume.
type file struct {
	data  []byte
	mode  fs.FileMode
	owner *int64 // nil means root
}

// files are the files of a volume, by their paths in it.
type files map[string]file

// shown is a volume of files that the agent writes: config objects, the pod's own fields and
// tokens. Files that may be secret are on a tmpfs only.
type shown struct {
	dir    string
	memory bool
	files  func(ctx context.Context, s *setting) (files, error)
}

func (k shown) traits() traits {
	return traits{dir: k.dir, mounted: k.memory, readOnly: true, relabel: true}
}

func (shown) path(own string) string { return own }

func (k shown) setUp(ctx context.Context, p placed, s *setting) error {
	all, err := k.files(ctx, s)
	if err != nil {
		return err
	}
	made, err := makeVolume(p.path, s.again)
	if err != nil {
		return err
	}
	if k.memory {
		if made, err = s.mountMemory(p.path, s.memorySize(nil)); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(p.path)
	if err != nil {
		return err
	}
	defer root.Close()
	if k.memory {
		if err := inMemory(root); err != nil {
			return err
		}
	}
	if made || !s.again {
		if err := setGroupOfVolume(root, s.group()); err != nil {
			return err
		}
	}
	if err := makeMountPoints(root, s.want.Pod, p.Name); err != nil {
		return err
	}
	w := writer{root: root, group: s.group(), step: s.step}
	return w.write(all)
}

// inMemory returns an error if a directory is not on a tmpfs: secrets must not be written
// there.
func inMemory(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return err
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%s is not on a tmpfs", root.Name())
	}
	return nil
}

// setGroupOfVolume changes the group of a volume's own directory to the pod's, so that new
// links in it get the group too. The writer sets the group of the files.
func setGroupOfVolume(root *os.Root, group *int64) error {
	if group == nil {
		return nil
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(setGroupOf(dir, "", *group, false), dir.Close())
}

// makeMountPoints makes the directories in this volume on which other volumes of a container are
// mounted. The runtime cannot make them, because the volume is read-only.
func makeMountPoints(root *os.Root, p *v1.Pod, volume string) error {
	for _, dir := range mountPoints(p, volume) {
		for i, c := range dir + "/" {
			if c != '/' {
				continue
			}
			err := root.Mkdir(dir[:i], 0o755)
			if err == nil {
				err = root.Chmod(dir[:i], 0o755)
			}
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make mount point: %w", err)
			}
		}
	}
	return nil
}

// mountPoints returns the mount points of other volumes in a volume, except nested ones.
func mountPoints(p *v1.Pod, volume string) (inside []string) {
	visit := func(mounts []v1.VolumeMount) {
		var all []string
		for _, m := range mounts {
			all = append(all, path.Clean("/"+m.MountPath)+"/")
		}
		slices.Sort(all)
		for _, m := range mounts {
			if m.Name != volume {
				continue
			}
			at, last := path.Clean("/"+m.MountPath)+"/", "\x00"
			for _, other := range all {
				if other != at && strings.HasPrefix(other, at) && !strings.HasPrefix(other, last) {
					last = other
					inside = append(inside, strings.Trim(other[len(at):], "/"))
				}
			}
		}
	}
	containers(p, func(c *v1.Container) { visit(c.VolumeMounts) })
	return inside
}

// containers calls f for every container of p, of every kind.
func containers(p *v1.Pod, f func(*v1.Container)) {
	for i := range p.Spec.InitContainers {
		f(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		f(&p.Spec.Containers[i])
	}
	for i := range p.Spec.EphemeralContainers {
		c := v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		f(&c)
	}
}

// configMap is a volume of a ConfigMap's keys. It is on the disk, as in the kubelet.
func configMap(v *v1.ConfigMapVolumeSource) kind {
	return shown{dir: dirConfigMap, files: func(_ context.Context, s *setting) (files, error) {
		return s.object(pod.KindConfigMap, v.Name, v.Items, v.DefaultMode, v.Optional)
	}}
}

// secret is a volume of a Secret's keys.
func secret(v *v1.SecretVolumeSource) kind {
	return shown{dir: dirSecret, memory: true, files: func(_ context.Context, s *setting) (files, error) {
		return s.object(pod.KindSecret, v.SecretName, v.Items, v.DefaultMode, v.Optional)
	}}
}

// downward is a volume of the pod's own fields.
func downward(v *v1.DownwardAPIVolumeSource) kind {
	return shown{dir: dirDownward, memory: true, files: func(_ context.Context, s *setting) (files, error) {
		return s.fields(v.Items, v.DefaultMode)
	}}
}

// object returns a volume's files of a ConfigMap or Secret: all keys, or those in items. The texts
// of errors are the kubelet's.
func (s *setting) object(kind, name string, items []v1.KeyToPath, mode *int32, optional *bool) (files, error) {
	isOptional := optional != nil && *optional
	values, ok := s.want.Data.Values(kind, name)
	if !ok && s.want.Data.Has(kind, name) { // after a restart the agent knows only its checksum; the error keeps the files
		return nil, fmt.Errorf("%s %q has not been read again yet", strings.ToLower(kind), name)
	}
	if err := s.want.CheckRead(kind, name); err != nil && !ok {
		return nil, err
	}
	if !ok && !isOptional {
		return nil, fmt.Errorf("%s %q not found", strings.ToLower(kind), name)
	}
	out := files{}
	if len(items) == 0 {
		for key, value := range values {
			out[key] = file{data: value, mode: modeOf(nil, mode)}
		}
		return out, nil
	}
	for _, item := range items {
		value, ok := values[item.Key]
		switch {
		case ok:
			out[item.Path] = file{data: value, mode: modeOf(item.Mode, mode)}
		case isOptional:
		case kind == pod.KindConfigMap:
			return nil, fmt.Errorf("configmap references non-existent config key: %s", item.Key)
		default:
			return nil, fmt.Errorf("references non-existent secret key: %s", item.Key)
		}
	}
	return out, nil
}

// fields returns a volume's files of the pod's own fields (C-1.38.3).
func (s *setting) fields(items []v1.DownwardAPIVolumeFile, mode *int32) (files, error) {
	out := files{}
	for _, item := range items {
		text, err := s.field(s.want.Pod, item)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", item.Path, err)
		}
		out[path.Clean(item.Path)] = file{data: []byte(text), mode: modeOf(item.Mode, mode)}
	}
	return out, nil
}

func (v *Volumes) field(p *v1.Pod, item v1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil:
		return podenv.DownwardField(p, item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		return podenv.ResourceField(p, "", item.ResourceFieldRef, v.cfg.Allocatable)
	}
	return "", nil
}

// modeOf returns the first mode that is not nil.
func modeOf(modes ...*int32) fs.FileMode {
	for _, m := range modes {
		if m != nil {
			return fs.FileMode(*m) & fs.ModePerm
		}
	}
	return defaultMode
}
