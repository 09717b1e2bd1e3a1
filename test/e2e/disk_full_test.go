//go:build full

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestF12_FullDisk: with a full disk under the root directory, pods run on. A pod without a
// volume on that disk still starts and stops, edits are applied, a new agent adopts the pods,
// and one line reports the fault. With room again, the agent recovers without a restart.
//
// Shows: F12
func TestF12_FullDisk(t *testing.T) {
	s := parallelStage(t)
	if err := os.Mkdir(s.root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.root, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a := s.serve()
	kept := s.keep()
	ballast := filepath.Join(s.root, "ballast")
	fill(t, ballast)

	s.write("free.yaml", simple("free"))
	s.awaitRunning("free", "main")
	a.await("level=WARN", "no space left on device")
	s.untouched("keep", kept)
	uid := s.uid("free")
	s.remove("free.yaml")
	s.eventually(func() error { // the journal may not have room for it
		for _, dir := range []string{filepath.Join(s.logs, "default_"+s.full("free")+"_"+uid), filepath.Join(s.root, "pods", uid)} {
			if _, err := os.Lstat(dir); err == nil {
				return fmt.Errorf("%s is still there", dir)
			}
		}
		return nil
	})
	if n := len(a.linesWith("no space left on device")); n > 12 {
		t.Errorf("the full disk is %d lines:\n%s", n, strings.Join(a.linesWith("no space left on device"), "\n"))
	}

	// A new agent starts on the full disk, adopts pods, and starts others.
	a.kill()
	fill(t, filepath.Join(s.root, "more"))
	s.serve()
	s.write("late.yaml", simple("late"))
	s.awaitRunning("late", "main")
	s.untouched("keep", kept)
	s.write("needs.yaml", manifest("needs", []string{container("main", "forever", "volumeMounts: [{name: d, mountPath: /d}]")},
		"volumes: [{name: d, emptyDir: {}}]"))

	for _, f := range []string{"ballast", "more"} {
		if err := os.Remove(filepath.Join(s.root, f)); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitRunning("needs", "main")
	s.awaitReady("needs", true)
	s.untouched("keep", kept)
	for _, f := range []string{"keep.yaml", "late.yaml", "needs.yaml"} {
		s.remove(f)
	}
	for _, p := range []string{"keep", "late", "needs"} {
		s.awaitGone(p)
	}
	s.nothingLeft()
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		if strings.Contains(err.Error(), "no space") {
			return
		}
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

// TestI6_DirectoryWithoutRecord: the agent removes a pod's directory, even if neither the
// runtime nor a record knows the pod any more; those of desired pods stay.
//
// Shows: I6
func TestI6_DirectoryWithoutRecord(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", manifest("web", []string{container("main", "write, /d/x, text, forever", "volumeMounts: [{name: d, mountPath: /d}]")},
		"volumes: [{name: d, emptyDir: {}}]"))
	a := s.serve()
	s.awaitRunning("web", "main")
	kept := s.keep()
	box := s.sandbox("web")
	dir := filepath.Join(s.root, "pods", box.Metadata.Uid)
	a.kill()
	s.remove("web.yaml")
	for _, err := range []error{
		func() error {
			_, err := s.node.Runtime.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: box.Id})
			return err
		}(),
		func() error {
			_, err := s.node.Runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: box.Id})
			return err
		}(),
		os.Remove(filepath.Join(dir, "record.json")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.serve().await("Status of every pod is known")
	s.awaitGone("web") // its logs are gone, too
	s.eventually(func() error {
		if _, err := os.Lstat(dir); err == nil {
			return fmt.Errorf("%s is still there", dir)
		}
		return nil
	})
	s.untouched("keep", kept)
}
