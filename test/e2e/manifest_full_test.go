//go:build full

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
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

// TestF45_BrokenManifests: the agent reports a broken file beside a good manifest in one
// clear line that names its place, or ignores it as no manifest. Running pods are not
// touched, and the next good manifest is read.
//
// Shows: F45
func TestF45_BrokenManifests(t *testing.T) {
	s := parallelStage(t)
	a := s.serve("--file-check-frequency", "1s") // several rescans: the line is still logged once
	kept := s.keep()
	good := simple("good")
	faults := []struct {
		file  string
		put   func(path string) error
		words []string // of the one line
	}{
		{"empty.yaml", content(""), []string{"empty.yaml"}},
		{"syntax.yaml", content("apiVersion: v1\nkind: Pod\n  metadata: {"), []string{"syntax.yaml:3"}},
		{"field.yaml", content(strings.Replace(good, "args:", "argz:", 1)), []string{"field.yaml:7:", "spec.containers[0].argz", "args"}},
		{"kind.yaml", content("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: x}\n"), []string{"kind.yaml:", "Ingress"}},
		{"nothing.yaml", content(manifest("nothing", []string{"- {name: main}"})), []string{"nothing.yaml:7", "spec.containers[0].image"}},
		{"volume.yaml", content(manifest("volume", []string{container("main", "forever")}, "volumes: [{name: c, configMap: {name: c}}]")),
			[]string{"volume.yaml:6:", "spec.volumes[0].configMap"}},
		{"env.yaml", content(manifest("env", []string{container("main", "forever", "env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]")})),
			[]string{"env.yaml:7:", "valueFrom"}},
		{"windows.yaml", content(manifest("windows", []string{container("main", "forever", "securityContext: {windowsOptions: {hostProcess: true}}")})),
			[]string{"windows.yaml:7:", "securityContext.windowsOptions"}},
		{"binary.yaml", content(string(bytes.Repeat([]byte{0, 0xff, 0x1b, '['}, 1000))), []string{"binary.yaml"}},
		{"big.yaml", content(good + "# " + strings.Repeat("x", 10<<20)), []string{"big.yaml", "10 MiB"}},
		{"fifo.yaml", func(path string) error { return unix.Mkfifo(path, 0o600) }, []string{"fifo.yaml"}},
		{"dangling.yaml", func(path string) error { return os.Symlink("/nowhere/at/all", path) }, []string{"dangling.yaml"}},
		{"circle.yaml", func(path string) error { return os.Symlink(path, path) }, []string{"circle.yaml"}},
		{"directory.yaml", func(path string) error { return os.Mkdir(path, 0o700) }, []string{"directory.yaml"}},
		{"device.yaml", func(path string) error { return os.Symlink("/dev/zero", path) }, []string{"device.yaml"}},
		{"good.yaml~", content(good), []string{"good.yaml~"}},
	}
	for _, f := range faults {
		if err := f.put(filepath.Join(s.manifests, f.file)); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range faults {
		line := a.await(f.words...)
		if strings.ContainsAny(line, "\x1b\x00") {
			t.Errorf("%s: control characters reach the log: %q", f.file, line)
		}
	}
	s.untouched("keep", kept)
	// The source is not stuck: another manifest starts, an edit is applied.
	s.write("after.yaml", simple("after"))
	s.awaitRunning("after", "main")
	for _, f := range faults {
		a.once(f.words...)
	}
	if n := len(s.sandboxes()); n != 2 {
		t.Errorf("%d pods run, want keep and after", n)
	}
	s.untouched("keep", kept)
}

// TestF42_DirectoryMissing: a missing directory is an unreadable source: pods stay, one line
// reports it, and nothing happens when it is back.
//
// Shows: F42
func TestF42_DirectoryMissing(t *testing.T) {
	s := parallelStage(t)
	a := s.serve("--file-check-frequency", "1s")
	kept := s.keep()
	away := filepath.Join(s.dir, "away")
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(s.manifests, away)
	a.await("Failed to read source", s.manifests)
	s.untouched("keep", kept)

	// The directory is missing already when the next agent starts.
	a.leave()
	a = s.serve("--file-check-frequency", "1s")
	a.await("Failed to read source", s.manifests)
	a.await("Using last good set until the source answers", "pods=1")
	s.untouched("keep", kept)

	move(away, s.manifests)
	s.write("other.yaml", simple("other"))
	s.awaitRunning("other", "main")
	s.awaitReady("keep", true)
	s.untouched("keep", kept)
	a.once("Failed to read source", s.manifests)

	// And once more under a running agent, with one pod less when it is back.
	move(s.manifests, away)
	s.eventually(func() error {
		if n := len(a.linesWith("Failed to read source", s.manifests)); n != 2 {
			return fmt.Errorf("%d lines, want 2", n)
		}
		return nil
	})
	s.noteRemove("other.yaml")
	if err := os.Remove(filepath.Join(away, "other.yaml")); err != nil {
		t.Fatal(err)
	}
	s.awaitRunning("other", "main")
	move(away, s.manifests)
	s.awaitGone("other")
	s.untouched("keep", kept)

	// An existing, empty directory means: no pods.
	s.remove("keep.yaml")
	s.awaitGone("keep")
}

// TestF43_DuplicatePods: of two manifests of one pod, the one that runs stays the owner. The
// other is reported in one line, and adding or removing it touches nothing. When the owner is
// removed, the other takes over, without a restart if its content is the same.
//
// Shows: F43
func TestF43_DuplicatePods(t *testing.T) {
	s := parallelStage(t)
	s.write("b.yaml", strings.Replace(simple("web"), "{name: web}", "{name: web, labels: {from: b}}", 1))
	a := s.serve("--file-check-frequency", "1s")
	kept := s.awaitRunning("web", "main")
	// Earlier by name, and another image: it would replace the pod.
	s.write("a.yaml", strings.Replace(simple("web"), "forever", "print, usurper, forever", 1))
	a.await("Pod is defined more than once", s.full("web"), "a.yaml", "b.yaml")
	s.untouched("web", kept)

	// A new agent remembers who was first.
	a.leave()
	a = s.serve("--file-check-frequency", "1s")
	a.await("Status of every pod is known")
	a.once("Pod is defined more than once", s.full("web"))
	s.untouched("web", kept)

	s.remove("a.yaml")
	s.write("c.yaml", simple("web"))
	s.eventually(func() error {
		if len(a.linesWith("Pod is defined more than once", "c.yaml")) == 0 {
			return fmt.Errorf("nothing is said of c.yaml")
		}
		return nil
	})
	s.untouched("web", kept)
	s.remove("b.yaml")
	s.eventually(func() error {
		if p := s.status("web"); p == nil || p.Labels["from"] != "" {
			return fmt.Errorf("c.yaml has not taken over")
		}
		return nil
	})
	s.untouched("web", kept)
}

// TestRejectedPodNeverRuns: of a file with two pods the good one runs, the bad one leaves no
// trace in the runtime.
func TestRejectedPodNeverRuns(t *testing.T) {
	s := parallelStage(t)
	bad := manifest("bad", []string{container("main", "forever")}, "volumes: [{name: c, secret: {secretName: c}}]")
	s.write("two.yaml", bad+"---\n"+simple("good"))
	s.excuse("bad") // it never starts
	a := s.serve()
	s.awaitRunning("good", "main")
	a.once("Rejecting pod", "default/bad", "two.yaml:6:", "spec.volumes[0].secret")
	s.awaitPhase("good", v1.PodRunning)
	if n := len(s.sandboxes()); n != 1 {
		t.Errorf("%d sandboxes, want one", n)
	}
}

func content(text string) func(string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
}

// writeSlowly writes a manifest in place and in pieces. After each piece it waits until the
// agent has read the directory, which the agent shows by reporting a file that is no
// manifest; then check runs.
func (s *stage) writeSlowly(file, text string, pieces int, check func()) {
	s.Helper()
	f, err := os.Create(filepath.Join(s.manifests, file))
	s.must(err)
	mark := "mark-" + file
	for i := range pieces {
		_, err := f.WriteString(text[len(text)*i/pieces : len(text)*(i+1)/pieces])
		s.must(err, os.WriteFile(filepath.Join(s.manifests, mark), []byte(fmt.Sprintf("piece%d: [", i)), 0o600))
		s.awaitRejected("file", mark)
		check()
		s.must(os.Remove(filepath.Join(s.manifests, mark)))
		s.awaitSource("file", mark+" is gone", func(it sourceState) bool {
			return !slices.ContainsFunc(it.Problems, func(p problem) bool { return strings.HasSuffix(p.File, mark) })
		})
	}
	s.must(f.Close())
}
