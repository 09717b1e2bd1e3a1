package main

import (
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
