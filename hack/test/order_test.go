package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestOrder_LongJobsStartFirst(t *testing.T) {
	var jobs []job
	for _, n := range []string{"pkg/new", "cmd", "test/new", "pkg/newer", "lint", "test/e2e"} {
		jobs = append(jobs, job{name: n})
	}
	order("first", jobs)
	var got []string
	for _, j := range jobs {
		got = append(got, j.name)
	}
	if want := []string{"test/e2e", "lint", "cmd", "test/new", "pkg/new", "pkg/newer"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// A renamed package must not become a short one unnoticed.
func TestUsual_EachName_IsAPackageOrAStep(t *testing.T) {
	for tier, names := range usual {
		var known []string
		for _, j := range steps(options{tier: tier}, "") {
			known = append(known, j.name)
		}
		for name := range names {
			if tests, err := filepath.Glob(filepath.Join("../..", name, "*_test.go")); !slices.Contains(known, name) && (err != nil || tests == nil) {
				t.Errorf("%s tier: %s is neither a step nor a package with tests: %v", tier, name, err)
			}
		}
	}
}

func TestIdle_LaneEndsEarly_ItsTimeCounts(t *testing.T) {
	if got := idle([]lane{{took: time.Minute}, {took: 3 * time.Minute}, {took: 2 * time.Minute}}); got != 3*time.Minute {
		t.Errorf("%s idle", got)
	}
}

func TestQueue_JobsAreAddedWhileOthersRun_LongestIsNext(t *testing.T) {
	q := newQueue("first")
	q.add(job{name: "test/kube"})
	take := func(want string) {
		t.Helper()
		if j, ok := q.next(); !ok || j.name != want {
			t.Errorf("next is %q, %t; want %s", j.name, ok, want)
		}
	}
	take("test/kube")
	names := make(chan string)
	go func() {
		j, _ := q.next() // waits, unless the jobs are there already
		names <- j.name
	}()
	q.add(job{name: "pkg/new"}, job{name: "cmd"}, job{name: "lint"})
	if got := <-names; got != "lint" {
		t.Errorf("the lane that waits gets %s", got)
	}
	q.close()
	take("cmd")
	take("pkg/new")
	if j, ok := q.next(); ok {
		t.Errorf("a closed and empty queue has %s", j.name)
	}
}

func TestQueue_IsClosed_LaneThatWaitsEnds(t *testing.T) {
	q := newQueue("first")
	ended := make(chan bool)
	go func() {
		_, ok := q.next()
		ended <- ok
	}()
	q.close()
	if <-ended {
		t.Error("an empty queue has a job")
	}
}

// The early jobs run before compilation has ended.
func TestStart_CompilationGoesOn_EarlyJobRuns(t *testing.T) {
	dir := t.TempDir()
	step := func(name, script string) job {
		return job{name: name, dir: dir, log: filepath.Join(dir, name), limit: time.Hour, command: []string{"sh", "-c", script}}
	}
	if out, err := exec.Command("mkfifo", filepath.Join(dir, "ran")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	q := newQueue("first")
	wait := start(t.Context(), options{lanes: 2}, q)
	q.add(step("early", "echo yes >ran"))
	text, err := os.ReadFile(filepath.Join(dir, "ran")) // waits for the job
	if err != nil || string(text) != "yes\n" {
		t.Errorf("%q, %v", text, err)
	}
	q.add(step("late", "exit 3"))
	q.close()
	results, lanes := wait()
	if len(results) != 2 || len(lanes) != 2 {
		t.Fatalf("results %v, lanes %v", results, lanes)
	}
	for _, r := range results {
		if (r.err == nil) != (r.name == "early") {
			t.Errorf("%s: %v", r.name, r.err)
		}
	}
}

func TestEarly_EachName_IsAPackageWithTests(t *testing.T) {
	for _, name := range early {
		if tests, err := filepath.Glob(filepath.Join("../..", name, "*_test.go")); err != nil || tests == nil {
			t.Errorf("%s has no tests: %v", name, err)
		}
	}
}
