package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
