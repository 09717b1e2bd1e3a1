package e2e

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/wait"
)

// caged runs nodectl in a cage to its end, and fails if the kernel ended it.
func (s *stage) caged(want []int, args ...string) result {
	s.Helper()
	cmd := caged(s.command(args...), s.scratch)
	r := s.finish(cmd)
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		s.Errorf("%v: ended by %s: it tried to write or to lock\n%s%s", args, ws.Signal(), r.out, r.err)
	} else if !slices.Contains(want, r.code) {
		s.Errorf("%v: exit code %d, want %v\n%s%s", args, r.code, want, r.out, r.err)
	}
	return r
}

// tree returns everything below a directory: kind, size, owner, and the times of its last
// changes. It waits until no file is being replaced, see record.
func (s *stage) tree(dir string) (all map[string]string) {
	s.Helper()
	s.eventually(func() error {
		all = make(map[string]string)
		return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if strings.HasSuffix(path, ".tmp") {
				return fmt.Errorf("%s is being written", path)
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			all[path] = fmt.Sprintf("inode %d mode %o owner %d size %d modified %d.%09d changed %d.%09d",
				st.Ino, st.Mode, st.Uid, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
			return nil
		})
	})
	return all
}

// TestMergeTouchesNothing runs the read commands where every file system is read-only and
// each attempt to write or to lock ends the process, with and without a running agent. They
// do all their work. No file below the stage's directory changes, and the runtime gets only
// calls that change nothing.
func TestMergeTouchesNothing(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	w := s.newWeb(simple("web"))
	a := s.serve("-f", w.URL)
	kept := s.keep()
	s.awaitRunning("web", "main")
	for _, name := range []string{"keep", "web"} {
		s.awaitReady(name, true)
		s.awaitSet(name)
		s.awaitLog(name, "main", 0, "started")
	}
	// The agent has looked over the images: it records their first use, once.
	wait.Until(s.T, "the agent has collected images", func() (calls int, done bool) {
		calls = s.front.Counts()["ImageFsInfo"]
		return calls, calls > 0
	})
	// The cage works: a command that changes something is ended at once.
	cmd := caged(s.command("runonce", "-f", s.manifests), s.scratch)
	if r := s.finish(cmd); !cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("runonce in the cage: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	sources := []string{"-f", s.manifests, "-f", w.URL}
	looks := func(agent bool, pending int) {
		s.Helper()
		if agent {
			s.quiet(s.front)
		}
		before, mutations, counts := s.tree(s.dir), len(s.front.Mutations()), s.front.Counts()
		plan := s.caged([]int{pending}, append([]string{"merge", "--dry-run", "--against", "runtime", "-o", "json"}, sources...)...)
		again := s.caged([]int{pending}, append([]string{"merge", "--dry-run", "--against", "runtime", "-o", "json"}, sources...)...)
		if plan.out != again.out || !strings.Contains(plan.out, `"MergePlan"`) {
			t.Errorf("two plans of the same:\n%s\n%s", plan.out, again.out)
		}
		s.caged([]int{0}, append([]string{"merge"}, sources...)...)
		if r := s.caged([]int{0}, append([]string{"watch", "--timeout", wait.Limit.String(), "--max-events", "2"}, sources...)...); !strings.Contains(r.out, "ADD") {
			t.Errorf("watch: %s%s", r.out, r.err)
		}
		s.caged([]int{0}, "get", "pods")
		if agent {
			s.caged([]int{0}, "get", "sources")
			s.caged([]int{0}, "watch", "--attach", "--timeout", wait.Limit.String(), "--max-events", "2")
		}
		if made := s.front.Mutations()[mutations:]; len(made) > 0 {
			t.Errorf("mutating calls: %v", made)
		}
		asked := 0
		for method, n := range s.front.Counts() {
			n -= counts[method]
			asked += n
			if reads := strings.HasPrefix(method, "List") || strings.HasSuffix(method, "Status") || method == "Version" || method == "RuntimeConfig" || method == "GetContainerEvents"; n > 0 && !reads {
				t.Errorf("%d calls of %s", n, method)
			}
		}
		if asked == 0 {
			t.Error("the runtime was not asked at all")
		}
		if after := s.tree(s.dir); !maps.Equal(before, after) {
			for path := range after {
				if before[path] != after[path] {
					t.Errorf("%s: was %s, is %s", path, before[path], after[path])
				}
			}
			t.Errorf("%d files were there, %d are", len(before), len(after))
		}
	}
	looks(true, 0)
	a.leave()
	// No agent holds the root any more, and there is something to do.
	s.write("keep.yaml", strings.Replace(simple("keep"), "forever", "print, edited, forever", 1))
	looks(false, 1)
	s.untouched("keep", kept)

	// A dry run does not create an unused root.
	s.root = filepath.Join(s.dir, "fresh")
	s.caged([]int{1}, append([]string{"merge", "--dry-run", "--against", "runtime"}, sources...)...)
	if _, err := os.Lstat(s.root); err == nil {
		t.Error("merge made a root directory")
	}
}
