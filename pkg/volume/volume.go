// Package volume puts the volumes of a pod's instance in place on disk and
// takes them away again.
//
// The engine asks for it before a sandbox is made and after the last container
// is gone. What lies where:
//
//	<root>/pods/<uid>/                     the pod (its record lies here too)
//	<root>/pods/<uid>/containers/          termination messages, one file a container's life, which cri makes
//	<root>/pods/<uid>/<instance>/          one life of it
//	<root>/pods/<uid>/<instance>/ready     Put was completed
//	<root>/pods/<uid>/<instance>/volumes/kubernetes.io~empty-dir/<name>
//
// The one rule: nothing is ever removed outside a pod's own directories, not
// through a link, not across a mount. What a hostPath shows is the host's.
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// marker is the file that says that Put was completed for its instance.
const marker = "ready"

// Config is what Volumes are made of.
type Config struct {
	RootDir    string // the agent's directory
	PodLogsDir string // where pods' log directories are; empty leaves logs alone
	// ContainerLogsDir is where cri links to containers' logs (C-1.22.10); empty
	// leaves links alone.
	ContainerLogsDir string
	Log              *slog.Logger
}

// Volumes puts volumes in place and takes them away. It may be used by many
// goroutines, each for pods of its own.
type Volumes struct {
	pods, logs, links string
	log               *slog.Logger

	mu sync.Mutex
	// noted holds the directories of instances that keep nothing on disk and
	// whose marker could not be written, because the disk is full or read-only.
	noted map[string]bool
}

// New returns Volumes under c.RootDir. It touches nothing.
func New(c Config) *Volumes {
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Volumes{
		pods: filepath.Join(c.RootDir, "pods"), logs: c.PodLogsDir, links: c.ContainerLogsDir,
		log: log, noted: make(map[string]bool),
	}
}

// placed is one volume of a pod with its kind and its place on the host.
type placed struct {
	v1.Volume
	kind kind
	path string
}

// Put makes the directories and volumes of one instance. It may be repeated:
// what is in place, and what containers have put into it, stays. A pod without
// volumes needs nothing on disk. An error names the volume and is for a person.
func (v *Volumes) Put(_ context.Context, want *pod.Spec, _ pod.Place, instance int) error {
	dir, all, err := v.place(want, instance)
	if err != nil || len(all) == 0 {
		return err
	}
	again := v.marked(dir)
	kept := false // whether the instance keeps something on disk
	for _, p := range all {
		if p.kind.dir() != "" {
			kept = true
			if err := os.MkdirAll(filepath.Dir(p.path), 0o700); err != nil {
				return fmt.Errorf("volume %s: %w", p.Name, err)
			}
		}
		if err := p.kind.put(p, again); err != nil {
			return fmt.Errorf("volume %s: %w", p.Name, err)
		}
	}
	if again {
		return nil
	}
	return v.mark(dir, kept)
}

// Ready reports whether Put was completed for this instance.
func (v *Volumes) Ready(want *pod.Spec, instance int) (ok bool, until time.Time) {
	dir, all, err := v.place(want, instance)
	return err == nil && (len(all) == 0 || v.marked(dir)), time.Time{}
}

// Mounts returns the mounts of one container of an instance that is in place,
// in the order of its volumeMounts. An error is a mistake in the spec, or says
// that a volume is no longer there: the runtime would make an empty one.
func (v *Volumes) Mounts(r pod.CreateRequest) ([]pod.Mount, error) {
	want, instance, container := r.Want, r.Sandbox.Instance, r.Container
	_, all, err := v.place(want, instance)
	if err != nil {
		return nil, err
	}
	c, _ := want.Container(container)
	if c == nil {
		return nil, fmt.Errorf("the pod has no container %s", container)
	}
	byName := make(map[string]placed, len(all))
	for _, p := range all {
		byName[p.Name] = p
	}
	var mounts []pod.Mount
	for _, m := range c.VolumeMounts {
		p, ok := byName[m.Name]
		if !ok {
			return nil, fmt.Errorf("container %s mounts volume %s, which the pod does not have", container, m.Name)
		}
		mount, err := p.mount(m)
		if err != nil {
			return nil, fmt.Errorf("container %s, volume %s: %w", container, m.Name, err)
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

// mount words one volumeMount for the runtime (C-1.37.8).
func (p placed) mount(m v1.VolumeMount) (pod.Mount, error) {
	switch {
	case m.SubPath != "" || m.SubPathExpr != "":
		return pod.Mount{}, errors.New("subPath is not supported")
	case m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled:
		return pod.Mount{}, errors.New("recursiveReadOnly: Enabled is not supported")
	}
	if p.kind.dir() != "" {
		if info, err := os.Lstat(p.path); err != nil || !info.IsDir() {
			return pod.Mount{}, fmt.Errorf("%s is no longer there", p.path)
		}
	}
	mount := pod.Mount{HostPath: p.path, ContainerPath: m.MountPath, ReadOnly: m.ReadOnly}
	if !filepath.IsAbs(m.MountPath) {
		mount.ContainerPath = "/" + m.MountPath
	}
	if m.MountPropagation != nil {
		mount.Propagation = string(*m.MountPropagation)
	}
	return mount, nil
}

// place returns the directory of an instance and its volumes, each with its
// kind and place.
func (v *Volumes) place(want *pod.Spec, instance int) (dir string, all []placed, err error) {
	podDir, err := v.podDir(want.UID())
	if err != nil {
		return "", nil, err
	}
	if instance < 0 {
		return "", nil, fmt.Errorf("instance %d of pod %s does not exist", instance, want.Key)
	}
	dir = filepath.Join(podDir, strconv.Itoa(instance))
	for _, vol := range want.Pod.Spec.Volumes {
		if err := oneName(vol.Name); err != nil {
			return "", nil, fmt.Errorf("volume %q: %w", vol.Name, err)
		}
		k := kindOf(vol)
		if k == nil {
			return "", nil, fmt.Errorf("volume %s: only emptyDir and hostPath volumes are supported", vol.Name)
		}
		p := placed{Volume: vol, kind: k}
		p.path = k.path(vol, filepath.Join(dir, "volumes", k.dir(), vol.Name))
		all = append(all, p)
	}
	return dir, all, nil
}

// podDir returns the directory of the pod with uid, which a manifest may have
// given: it has to be one plain name.
func (v *Volumes) podDir(uid string) (string, error) {
	if err := oneName(uid); err != nil {
		return "", fmt.Errorf("pod UID %q: %w", uid, err)
	}
	return filepath.Join(v.pods, uid), nil
}

// oneName says why name cannot name something inside a directory.
func oneName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return errors.New("is not a plain file name")
	case len(name) > syscall.NAME_MAX:
		return fmt.Errorf("is longer than %d bytes", syscall.NAME_MAX)
	}
	return nil
}

// marked reports whether the instance in dir was put in place.
func (v *Volumes) marked(dir string) bool {
	if info, err := os.Lstat(filepath.Join(dir, marker)); err == nil && info.Mode().IsRegular() {
		return true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.noted[dir]
}

// mark writes down that the instance in dir is in place. A full or read-only
// disk does not hold back an instance that keeps nothing on it: that one is
// noted in memory, and put again by the next agent (F12, F13).
func (v *Volumes) mark(dir string, kept bool) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, marker), nil, 0o600)
	}
	if err == nil || kept || !diskRefuses(err) {
		return err
	}
	v.log.Warn("Volumes not noted on disk", "dir", dir, "error", err)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.noted[dir] = true
	return nil
}

// forgetMark makes the instance in dir not ready in memory.
func (v *Volumes) forgetMark(dir string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.noted, dir)
}

func diskRefuses(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EDQUOT)
}

// File returns a file of one of the volumes of an instance that is in place.
func (v *Volumes) File(want *pod.Spec, instance int, volume, path string) ([]byte, error) {
	return nil, fmt.Errorf("volume %s: files of volumes are not read", volume)
}

// Over says which limit of its disk the instance exceeds, "" for none.
func (v *Volumes) Over(want *pod.Spec, instance int) (string, error) { return "", nil }
