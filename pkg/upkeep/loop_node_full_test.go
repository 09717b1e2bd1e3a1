//go:build full

package upkeep

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// usage reads the disk usage of a directory, as du does.
func (s *scenario) usage(dir string) (u reclaim.Usage) {
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			u = sum(u, reclaim.Usage{Bytes: info.Sys().(*syscall.Stat_t).Blocks * 512, Inodes: 1})
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		s.t.Error(err)
	}
	return u
}

// leave removes the files of evicted pods that have stopped by now. The caller holds the lock.
func (s *scenario) leave() {
	for uid, when := range s.leaves {
		if time.Now().Before(when) {
			continue
		}
		delete(s.leaves, uid)
		for _, dir := range []string{s.place(s.data, "volumes", uid), s.place(s.layers, "pod", uid), s.place(s.data, "podlogs", uid)} {
			s.remove(dir)
		}
		s.node.Pods = slices.DeleteFunc(slices.Clone(s.node.Pods), func(p reclaim.Pod) bool { return p.UID == uid })
	}
}

func (s *scenario) remove(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		s.t.Error(err)
	}
}

// Levels implements Observer.
func (s *scenario) Levels(context.Context) (reclaim.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave()
	n := reclaim.Node{Now: time.Now()}
	seen := map[string]bool{}
	for _, disk := range []string{s.data, s.images, s.layers} {
		if seen[disk] {
			continue
		}
		seen[disk] = true
		bytes, inodes, err := node.DiskLevels(disk)
		if err != nil {
			return n, err
		}
		n.Filesystems = append(n.Filesystems, reclaim.Filesystem{
			Name: disk, Bytes: reclaim.Level(bytes), Inodes: reclaim.Level(inodes), Data: disk == s.data, Images: disk == s.images, Writable: disk == s.layers,
		})
	}
	return n, nil
}

// Observe implements Observer.
func (s *scenario) Observe(context.Context, bool) (n reclaim.Node, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave()
	for _, i := range s.node.Images {
		i.Layers = slices.Clone(i.Layers)
		for at := range i.Layers {
			i.Layers[at].Usage = s.usage(s.layer(i.Layers[at].ID))
		}
		n.Images = append(n.Images, i)
	}
	for _, c := range s.node.Containers {
		c.Writable, c.Logs = s.usage(s.place(s.layers, "container", c.ID)), s.usage(s.place(s.data, "log", c.ID))
		n.Containers = append(n.Containers, c)
	}
	for _, b := range s.node.Sandboxes {
		b.Usage = s.usage(s.place(s.layers, "sandbox", b.ID))
		n.Sandboxes = append(n.Sandboxes, b)
	}
	for _, p := range s.node.Pods {
		p.Volumes = s.usage(s.place(s.data, "volumes", p.UID))
		p.Containers = []reclaim.Running{{Name: "c", Writable: s.usage(s.place(s.layers, "pod", p.UID)), Logs: s.usage(s.place(s.data, "podlogs", p.UID))}}
		_, p.Stopping = s.leaves[p.UID]
		n.Pods = append(n.Pods, p)
	}
	return n, nil
}

// RemoveImages implements Actor.
func (s *scenario) RemoveImages(_ context.Context, steps []reclaim.Step) ([]reclaim.Step, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, step := range steps {
		i := slices.IndexFunc(s.node.Images, func(i reclaim.Image) bool { return i.ID == step.ID })
		gone := s.node.Images[i]
		if stays(gone) {
			s.t.Errorf("%s: it must stay", step)
		}
		s.node.Images = slices.Delete(slices.Clone(s.node.Images), i, i+1)
		for _, l := range gone.Layers {
			if !slices.ContainsFunc(s.node.Images, func(i reclaim.Image) bool { return has(i, l.ID) }) {
				s.remove(s.layer(l.ID))
			}
		}
		s.note(step.Action, step.ID)
	}
	return steps, nil
}

func has(i reclaim.Image, layer string) bool {
	return slices.ContainsFunc(i.Layers, func(l reclaim.Layer) bool { return l.ID == layer })
}

// stays reports whether the agent must not remove an image by itself.
func stays(i reclaim.Image) bool {
	return len(i.Users) > 0 || i.Pinned || i.Archive || i.UnresponsiveRegistry != ""
}

func (s *scenario) note(action reclaim.Action, id string) {
	s.done = append(s.done, fmt.Sprint(action, " ", id))
	s.removals++
}

// RemoveContainer implements Actor.
func (s *scenario) RemoveContainer(_ context.Context, _ pod.Key, id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(s.place(s.layers, "container", id))
	s.remove(s.place(s.data, "log", id))
	s.node.Containers = slices.DeleteFunc(slices.Clone(s.node.Containers), func(c reclaim.Container) bool { return c.ID == id })
	s.note(reclaim.RemoveContainer, id)
	return true, nil
}

// RemoveSandbox implements Actor.
func (s *scenario) RemoveSandbox(_ context.Context, _ pod.Key, id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(s.place(s.layers, "sandbox", id))
	s.node.Sandboxes = slices.DeleteFunc(slices.Clone(s.node.Sandboxes), func(b reclaim.Sandbox) bool { return b.ID == id })
	s.note(reclaim.RemoveSandbox, id)
	return true, nil
}

// Evict implements Actor. It fails the test unless at least one threshold that is met is of a disk
// without unused data.
func (s *scenario) Evict(_ context.Context, _ pod.Key, e Eviction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lie []string
	due := false
	for _, it := range s.short() {
		unused := s.unused(s.disk(it.Signal), inodes(it.Signal))
		due = due || unused == ""
		lie = append(lie, fmt.Sprintf("%s: %s could be removed", it.Threshold, unused))
	}
	if !due {
		s.t.Errorf("pod %s is evicted (%s): %s", e.UID, e.Message, strings.Join(lie, ", "))
	}
	s.done = append(s.done, fmt.Sprint(reclaim.EvictPod, " ", e.UID))
	s.evictions++
	s.leaves[e.UID] = time.Now().Add(time.Duration(s.IntN(20)) * time.Second)
	return nil
}

func inodes(signal string) bool { return strings.HasSuffix(signal, ".inodesFree") }

func (s *scenario) disk(signal string) string {
	name, _, _ := strings.Cut(signal, ".")
	return map[string]string{"nodefs": s.data, "imagefs": s.images, "containerfs": s.layers}[name]
}

// short returns the thresholds that are met, as the disks show it. The caller holds the lock.
func (s *scenario) short() (all []reclaim.Threshold) {
	for _, it := range s.policy.Thresholds {
		level, free, err := node.DiskLevels(s.disk(it.Signal))
		if err != nil {
			s.t.Error(err)
		}
		if inodes(it.Signal) {
			level = free
		}
		if level.Available < it.Of(level.Capacity) {
			all = append(all, it)
		}
	}
	return all
}

// unused returns the name of an image, exited container or sandbox whose removal would free
// something of a disk; "" for none. It reads the disk, and shares no code with the plan.
func (s *scenario) unused(disk string, inodes bool) string {
	frees := func(dir string) bool {
		u := s.usage(dir)
		return strings.HasPrefix(dir, disk+"/") && (inodes && u.Inodes > 0 || !inodes && u.Bytes > 0)
	}
	for _, c := range s.node.Containers {
		if !c.Needed && (frees(s.place(s.layers, "container", c.ID)) || frees(s.place(s.data, "log", c.ID))) {
			return "container " + c.ID
		}
	}
	for _, b := range s.node.Sandboxes {
		if !b.Needed && frees(s.place(s.layers, "sandbox", b.ID)) {
			return "sandbox " + b.ID
		}
	}
	for _, i := range s.node.Images {
		for _, l := range i.Layers {
			needed := slices.ContainsFunc(s.node.Images, func(o reclaim.Image) bool { return stays(o) && has(o, l.ID) })
			if !needed && frees(s.layer(l.ID)) {
				return "image " + i.ID
			}
		}
	}
	return ""
}
