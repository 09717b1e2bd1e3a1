//go:build full

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestF45_UnreadableManifest: the agent names a file that it may not read, and treats the
// source as unreadable if the file was read before.
//
// Shows: F45
func TestF45_UnreadableManifest(t *testing.T) {
	s := parallelStage(t)
	secret := filepath.Join(s.manifests, "secret.yaml")
	s.write("secret.yaml", simple("secret"))
	if err := os.Chmod(secret, 0); err != nil {
		t.Fatal(err)
	}
	a := s.start(bounded(s.command("serve", "-f", s.manifests)))
	kept := s.keep()
	a.await("secret.yaml", "permission denied")
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	was := s.awaitRunning("secret", "main")
	if err := os.Chmod(secret, 0); err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		if n := len(a.linesWith("secret.yaml", "permission denied")); n != 2 {
			return fmt.Errorf("%d lines about secret.yaml, want 2", n)
		}
		return nil
	})
	s.untouched("secret", was)
	s.untouched("keep", kept)
}

// TestF40_HalfWrittenManifest: a slow writer causes neither half a pod nor a missing one, for
// a new file and for one that is overwritten in place.
//
// Shows: F40
func TestF40_HalfWrittenManifest(t *testing.T) {
	s := parallelStage(t)
	s.serve("--file-check-frequency", "100ms")
	kept := s.keep()
	old := simple("keep")
	edited := strings.Replace(old, "{name: keep}", "{name: keep, labels: {edited: once}}", 1)
	// A new pod whose first half would be a pod as well.
	fresh := manifest("fresh", []string{container("main", "forever"), container("side", "forever"), container("third", "forever")})
	for file, text := range map[string]string{"keep.yaml": edited, "fresh.yaml": fresh} {
		s.writeSlowly(file, text, 10, func() { s.untouched("keep", kept) })
	}
	s.awaitRunning("fresh", "main", "side", "third")
	s.eventually(func() error {
		if p := s.status("keep"); p == nil || p.Labels["edited"] != "once" {
			return fmt.Errorf("the edit of keep is not seen")
		}
		return nil
	})
	s.untouched("keep", kept)
	for _, c := range []string{"main", "side", "third"} {
		if n := len(s.ended("fresh", c)); n > 0 {
			t.Errorf("container %s of the new pod was started %d times before", c, n)
		}
	}
	if n := len(s.sandboxes()); n != 2 {
		t.Errorf("%d pods, want 2", n)
	}
}

// TestI9_BrokenEditKeepsPod: a manifest that becomes unreadable in any way keeps its pod as
// it last was, and mending it is an ordinary edit. Removing the broken file stops the pod.
//
// Shows: I9
func TestI9_BrokenEditKeepsPod(t *testing.T) {
	s := parallelStage(t)
	a := s.serve("--file-check-frequency", "1s")
	kept := s.keep()
	path := filepath.Join(s.manifests, "keep.yaml")
	for i, text := range []string{"", "kind: [", "\x00\xff", simple("keep") + "  nonsense: 1\n"} {
		// In place, as careless programs do.
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.eventually(func() error {
			if n := len(a.linesWith("keep.yaml")); n <= i {
				return fmt.Errorf("%d lines about keep.yaml after %d edits", n, i+1)
			}
			return nil
		})
		// Other pods are added and removed meanwhile: the source still works.
		other := fmt.Sprintf("other%d", i)
		s.write(other+".yaml", simple(other))
		s.awaitRunning(other, "main")
		s.remove(other + ".yaml")
		s.awaitGone(other)
		s.untouched("keep", kept)
	}
	a.kill()
	s.serve().await("Status of every pod is known") // a new agent knows the pod only from the broken file and from the records
	s.eventually(func() error {
		if s.status("keep") == nil {
			return fmt.Errorf("keep is not reported")
		}
		return nil
	})
	s.untouched("keep", kept)
	s.write("keep.yaml", strings.Replace(simple("keep"), "{name: keep}", "{name: keep, labels: {mended: yes-it-is}}", 1))
	s.eventually(func() error {
		if p := s.status("keep"); p == nil || p.Labels["mended"] == "" {
			return fmt.Errorf("keep is not mended")
		}
		return nil
	})
	s.untouched("keep", kept)
	s.remove("keep.yaml")
	s.awaitGone("keep")
}
