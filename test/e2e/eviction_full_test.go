//go:build full

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	product "github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/registry"
)

// TestEviction_ProcessTakesMemoryFast_KernelKillsNone: the threshold is 2 GiB below the available
// memory. The agent evicts a process that takes 200 MiB a second 20 of 20 times. The kernel kills
// no process because the machine is out of memory. Each time has an agent of its own, because
// other programs of the machine take and free memory.
//
// Shows: C-1.35.1, C-1.35.5
func TestEviction_ProcessTakesMemoryFast_KernelKillsNone(t *testing.T) {
	s := parallelStage(t)
	kills := watchSystemOOM(t)
	if err := os.MkdirAll(s.root, 0o700); err != nil { // reclaim measures its file system
		t.Fatal(err)
	}
	for i := range 20 {
		free := s.level("memory.available")
		if free < 6<<30 {
			t.Fatalf("only %d MiB of memory are available", free>>20)
		}
		a := s.serve("--eviction-hard", fmt.Sprintf("memory.available<%d", free-2<<30), "--eviction-pressure-transition-period", "0s")
		a.await("Serving the local socket")
		name := fmt.Sprintf("hog%d", i)
		s.excuse(name)
		// Up to 10 GiB: other programs may have freed memory since it was measured.
		s.write(name+".yaml", manifest(name, []string{container("main", strings.Repeat("alloc, '200', sleep, 1s, ", 50)+"forever")}))
		s.eventually(func() error { // the wait goes on while the process takes memory
			if p := s.status(name); p == nil || p.Status.Phase != v1.PodFailed {
				return fmt.Errorf("pod %s is not evicted, %d MiB are available", name, s.level("memory.available")>>20)
			}
			return nil
		})
		s.awaitEvicted(name, "The node was low on resource: memory. ")
		s.remove(name + ".yaml")
		s.awaitGone(name)
		a.leave()
	}
	if victims := kills(); len(victims) > 0 {
		t.Errorf("the machine was out of memory, and the kernel killed %v", victims)
	}
}

// level returns how much of a signal is available, with or without an agent.
func (s *stage) level(signal string) int64 {
	s.Helper()
	var d struct {
		Levels []struct {
			Signal    string
			Available int64
		}
	}
	var got result
	s.eventually(func() error { // an agent may not have observed its pods yet
		got = s.run("reclaim", "--dry-run", "-o", "json")
		if err := json.Unmarshal([]byte(got.out), &d); err != nil {
			return fmt.Errorf("reclaim: %w: %s", err, got.err)
		}
		return nil
	})
	for _, l := range d.Levels {
		if l.Signal == signal {
			return l.Available
		}
	}
	s.Fatalf("%s is not measured: %s", signal, got.out)
	return 0
}

// watchSystemOOM returns a function that ends the watch and returns the processes that the kernel
// has killed since because the machine was out of memory. The counter oom_kill of /proc/vmstat
// also counts kills because of a container's own limit, which other tests cause meanwhile.
func watchSystemOOM(t *testing.T) func() []product.Victim {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var victims []product.Victim
	ended := make(chan error, 1)
	go func() {
		ended <- product.WatchOOM(ctx, func(v product.Victim) { victims = append(victims, v) })
	}()
	return func() []product.Victim {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Fatalf("watch the kernel's log: %v", err)
		}
		return victims
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
