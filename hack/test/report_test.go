package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

func TestCount_ResultOfAJob(t *testing.T) {
	failed := errors.New("exit status 1")
	for name, c := range map[string]struct {
		result           result
		pass, fail, skip int
	}{
		"step passes":                {result: result{}, pass: 1},
		"step fails":                 {result: result{err: failed}, fail: 1},
		"tests pass":                 {result: result{tests: []test{{"TestA", "pass", 0}, {"TestB", "pass", 0}}}, pass: 2},
		"subtest fails":              {result: result{err: failed, tests: []test{{"TestA/one", "fail", 0}, {"TestA", "fail", 0}, {"TestB", "pass", 0}}}, pass: 1, fail: 1},
		"skipped":                    {result: result{tests: []test{{"TestA/one", "skip", 0}, {"TestA", "pass", 0}, {"TestB", "skip", 0}}}, pass: 1, skip: 2},
		"fails outside of its tests": {result: result{err: failed, tests: []test{{"TestA", "pass", 0}}}, pass: 1, fail: 1},
		"no test ran":                {result: result{err: errors.New("no test ran")}, fail: 1},
	} {
		s := summary{results: []result{c.result}}
		if pass, fail, skip := s.count("pass"), s.failed(), s.count("skip"); pass != c.pass || fail != c.fail || skip != c.skip {
			t.Errorf("%s: %d passed, %d failed, %d skipped; want %d, %d, %d", name, pass, fail, skip, c.pass, c.fail, c.skip)
		}
	}
}

func TestRevision_UncommittedChanges_AreMarked(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
	}
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(pattern string) {
		t.Helper()
		if got, err := revisionOf(t.Context(), dir, "page.md"); err != nil || !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("revision %q, want %s: %v", got, pattern, err)
		}
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "first")
	check("^`[0-9a-f]{12}`$")
	write("page.md")
	check("^`[0-9a-f]{12}`$")
	write("new.go")
	check(`^.[0-9a-f]{12}. \*\*with uncommitted changes in 1 files\*\*$`)
}
