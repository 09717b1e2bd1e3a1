package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
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
		"interrupted":                {result: result{err: failed, interrupted: true, tests: []test{{"TestA", "pass", 0}}}, pass: 1},
		"interrupted step":           {result: result{err: failed, interrupted: true}},
		"no test ran":                {result: result{err: errors.New("no test ran")}, fail: 1},
	} {
		s := summary{results: []result{c.result}}
		if pass, fail, skip := s.count("pass"), s.failed(), s.count("skip"); pass != c.pass || fail != c.fail || skip != c.skip {
			t.Errorf("%s: %d passed, %d failed, %d skipped; want %d, %d, %d", name, pass, fail, skip, c.pass, c.fail, c.skip)
		}
	}
}

func TestPrint_FailureOfALongRun_IsFoundAtTheEnd(t *testing.T) {
	var long strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&long, "line %d\n", i)
	}
	s := summary{
		compiled: true,
		lanes:    []lane{{"test/kube", 10 * time.Minute}, {"pkg/b", 9 * time.Minute}}, busy: 97,
		results: []result{
			{name: "pkg/a", took: time.Minute, tests: []test{{"TestA", "pass", 0}}},
			{name: "pkg/b", log: "bin/test/pkg_b.log", err: errors.New("exit status 1"), output: []string{long.String(), "short"},
				tests: []test{{"TestB", "fail", 0}, {"TestC", "fail", 0}}},
		},
	}
	var b strings.Builder
	s.print(&b)
	_, end, found := strings.Cut(b.String(), "lanes ended after 10m0s (test/kube), 9m0s (pkg/b); 1m0s idle; CPUs 97% busy\n")
	if !found {
		t.Fatalf("the lanes are missing:\n%s", b.String())
	}
	for _, want := range []string{
		"FAIL  pkg/b: exit status 1; all of its output is in bin/test/pkg_b.log\nline 0\n",
		"line 29\n… 940 lines …\nline 970\n", "line 999\nshort\n\nfail: pkg/b TestB\nfail: pkg/b TestC\n", "1 passed, 2 failed, 0 skipped\n",
	} {
		if !strings.Contains(end, want) {
			t.Errorf("%q is not in the end of the output:\n%s", want, end)
		}
	}
	if strings.Contains(end, "pkg/a") {
		t.Errorf("a package that passed is among the failures:\n%s", end)
	}
}

func TestExcerpt_TextOfTheLimit_IsWhole(t *testing.T) {
	text := strings.Repeat("a\n", excerptLines)
	if got := excerpt(text + "\n"); got != text {
		t.Errorf("got %q", got)
	}
	if got := excerpt("no newline"); got != "no newline\n" {
		t.Errorf("got %q", got)
	}
}

func TestCPUs_OtherProgramsRun_AreBusy(t *testing.T) {
	if got := (cpus{all: 300, idle: 60}).since(cpus{all: 100, idle: 10}); got != 75 {
		t.Errorf("%d%% busy", got)
	}
	if c := readCPUs(); c.all == 0 || c.idle == 0 || c.idle >= c.all {
		t.Errorf("ticks %+v", c)
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
	if err := os.MkdirAll(filepath.Join(dir, "test/e2enode/results"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("test/e2enode/results/nodectl.json")
	check("^`[0-9a-f]{12}`$")
	write("new.go")
	check(`^.[0-9a-f]{12}. \*\*with uncommitted changes in 1 files\*\*$`)
}
