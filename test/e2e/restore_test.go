package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/record"
)

// reboot removes every pod of the stage from the runtime, as a power cycle does. No agent may
// run. Call awaitReady before the agent's end: once it has reported a container, its attempt
// is on disk; otherwise the attempt may be used again.
func (s *stage) reboot() {
	s.Helper()
	for _, b := range s.sandboxes() {
		_, stop := s.node.Runtime.StopPodSandbox(s.Context(), &cri.StopPodSandboxRequest{PodSandboxId: b.Id})
		_, remove := s.node.Runtime.RemovePodSandbox(s.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: b.Id})
		s.must(stop, remove)
	}
	s.eventually(func() error {
		if n := len(s.containers("")); n > 0 {
			return fmt.Errorf("%d containers are there", n)
		}
		return nil
	})
}

// setFiles returns the files of the last-known-good sets, by path.
func (s *stage) setFiles() map[string][]byte {
	s.Helper()
	return s.filesBelow(filepath.Join(s.root, "sources"))
}

// filesBelow returns the regular files below a directory, except on tmpfs. If one is replaced
// meanwhile, it reads all again, so that it misses none.
func (s *stage) filesBelow(dir string) (all map[string][]byte) {
	s.Helper()
	s.eventually(func() error {
		all = make(map[string][]byte)
		return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || onTmpfs(filepath.Dir(path)) {
				return err
			}
			all[path], err = os.ReadFile(path)
			return err
		})
	})
	return all
}

// awaitSet returns the file of a last-known-good set that has a pod and these words.
func (s *stage) awaitSet(name string, words ...string) string {
	s.Helper()
	var file string
	s.eventually(func() error {
		for path, text := range s.setFiles() {
			if bytes.Contains(text, []byte(`"`+s.full(name)+`"`)) && holds(string(text), words) {
				file = path
				return nil
			}
		}
		return fmt.Errorf("pod %s is in no set", name)
	})
	return file
}

// foreseen fails unless a dry run reports that two of three sources do not answer, and
// returns this plan.
func (s *stage) foreseen(want string, sources ...string) {
	s.Helper()
	r := s.run(append([]string{"merge", "--dry-run", "--against", "runtime", "-o", "json"}, sources...)...)
	var p mergePlan
	s.must(json.Unmarshal([]byte(r.out), &p))
	if r.code != 5 || p.words() != want {
		s.Errorf("a dry run without its sources: exit code %d, %q, want 5, %q\n%s", r.code, p.words(), want, r.err)
	}
	stale := 0
	for _, it := range p.Sources {
		if it.Stale && it.Error != "" {
			stale++
		}
	}
	if stale != 2 {
		s.Errorf("a dry run without its sources: %+v", p.Sources)
	}
}

// setsAreSecret fails if a file below the root directory holds the content of a Secret, or
// if another user can read a set.
func (s *stage) setsAreSecret(canary ...string) {
	s.Helper()
	sources := filepath.Join(s.root, "sources")
	for path, text := range s.filesBelow(s.root) {
		for _, c := range canary {
			if bytes.Contains(text, []byte(c)) {
				s.Errorf("a Secret is in %s", path)
			}
		}
	}
	s.eventually(func() error { // not while a set is replaced
		return filepath.WalkDir(sources, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			if err == nil && info.Mode().Perm() != want {
				s.Errorf("%s has mode %s", path, info.Mode())
			}
			return err
		})
	})
}

// awaitRecorded returns when the pod's record has the attempt of the newest container:
// removing the container from the runtime then loses no attempt.
func (s *stage) awaitRecorded(name, container string) {
	s.Helper()
	life := s.awaitRunning(name, container)[container]
	s.eventually(func() error {
		all, err := record.ReadRecords(s.root)
		for _, r := range all {
			if r.Name == s.full(name) && r.Attempts[container] > life.attempt {
				return nil
			}
		}
		return fmt.Errorf("the record of %s does not count its container: %v", name, err)
	})
}
