package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/registry"
)

const mib = int64(1) << 20

// awaitEvicted waits until a pod is evicted, and checks its message.
func (s *stage) awaitEvicted(name, message string) {
	s.Helper()
	st := s.awaitPhase(name, v1.PodFailed)
	if st.Reason != "Evicted" || !strings.HasPrefix(st.Message, message) {
		s.Errorf("pod %s: reason %q, message %q, want %q", name, st.Reason, st.Message, message)
	}
}

// awaitCondition waits until the node has a condition.
func (s *stage) awaitCondition(name v1.NodeConditionType) {
	s.Helper()
	s.eventually(func() error {
		var nodes v1.NodeList
		got := s.run("get", "nodes", "-o", "json")
		if err := json.Unmarshal([]byte(got.out), &nodes); err != nil || len(nodes.Items) != 1 {
			return fmt.Errorf("get nodes: %w: %s%s", err, got.out, got.err)
		}
		all := nodes.Items[0].Status.Conditions
		if !slices.ContainsFunc(all, func(c v1.NodeCondition) bool { return c.Type == name && c.Status == v1.ConditionTrue }) {
			return fmt.Errorf("the node has the conditions %+v", all)
		}
		return nil
	})
}

// TestEviction_PodTakesTooMuchMemory_OnlyItEnds: the threshold is one of all pods' memory, so that
// other work of the machine has no effect. Other pods run on, and the node shows the pressure.
//
// Shows: C-1.35.5, C-1.35.7
func TestEviction_PodTakesTooMuchMemory_OnlyItEnds(t *testing.T) {
	s := parallelStage(t)
	s.excuse("hog")
	s.write("keep.yaml", simple("keep"))
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	total := int64(info.Totalram) * int64(info.Unit)
	a := s.serve("--system-reserved", fmt.Sprintf("memory=%d", total-1024*mib), "--eviction-hard", "allocatableMemory.available<600Mi")
	kept := s.awaitRunning("keep", "main")
	s.write("hog.yaml", manifest("hog", []string{container("main", "alloc, '600', forever")}))
	a.await("Eviction threshold met", "memory")
	s.awaitEvicted("hog", "The node was low on resource: memory. Threshold quantity: 600Mi, available: ")
	s.awaitCondition(v1.NodeMemoryPressure)
	s.untouched("keep", kept)
	if got := s.run("events"); !strings.Contains(got.out, "EvictionThresholdMet") || !strings.Contains(got.out, "Attempting to reclaim memory") {
		t.Errorf("events:\n%s%s", got.out, got.err)
	}
}

// TestEviction_DiskIsShort_ImagesGoBeforePods: on a file system of its own, unused images go as far
// as needed, the least recently used first. A pod ends only when there are none left.
//
// Shows: C-1.33.12, C-1.35.5
func TestEviction_DiskIsShort_ImagesGoBeforePods(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	s := newStage(t, node.NewIn(t, disk))
	s.excuse("big")
	s.write("keep.yaml", simple("keep"))
	s.write("big.yaml", manifest("big", []string{container("main", "forever", "volumeMounts: [{name: d, mountPath: /d}]")}, "volumes: [{name: d, emptyDir: {}}]"))
	a := s.serve("--eviction-hard", "nodefs.available<200Mi", "--image-gc-high-threshold", "100")
	kept := s.awaitRunning("keep", "main")
	s.awaitRunning("big", "main")
	r := registry.New(t, registry.Options{})
	var images []string
	for _, name := range []string{"first:1", "second:1"} {
		images = append(images, r.Push(t, name, 1, 30*mib))
		if got := s.run("pull", images[len(images)-1]); got.code != 0 {
			t.Fatal(got.err)
		}
	}
	dirs, err := filepath.Glob(filepath.Join(s.root, "pods", s.sandbox("big").Metadata.Uid, "*", "volumes", "*", "d"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("the volume is at %v, %v", dirs, err)
	}
	s.fill(filepath.Join(dirs[0], "data"), 120*mib)

	s.leave(disk, 190*mib)
	a.await("Image removed", images[0])
	s.leave(disk, 100*mib)
	a.await("Image removed", images[1])
	s.awaitEvicted("big", "The node was low on resource: ephemeral-storage. Threshold quantity: 200Mi, available: ")
	s.awaitCondition(v1.NodeDiskPressure)
	s.untouched("keep", kept)
	if removed := a.linesWith("Image removed"); len(removed) != 2 {
		t.Errorf("removed:\n%s", strings.Join(removed, "\n"))
	}
}

// fill writes a file of a size.
func (s *stage) fill(path string, size int64) {
	s.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
		_ = f.Close()
	}
	if err != nil {
		s.Fatal(err)
	}
}

// leave fills a file system so that this much is available.
func (s *stage) leave(disk string, available int64) {
	s.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(disk, &fs); err != nil {
		s.Fatal(err)
	}
	s.fill(filepath.Join(disk, fmt.Sprintf("fill-%d", available)), int64(fs.Bavail)*fs.Bsize-available)
}
