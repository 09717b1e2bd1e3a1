package main

import (
	"maps"
	"slices"
	"testing"
)

func TestFailuresOf_NewestRun(t *testing.T) {
	const first = "# Page\n\n| test/e2e `TestA` | 1s | fail |\n\n- fail: cross: exit status 1\n- fail: test/e2e TestA\n- fail: test/e2e TestA/one_part\n- fail: test/e2e TestB\n- skip: test/e2e TestC\n"
	for name, c := range map[string]struct {
		page string
		want failures
	}{
		"a whole run":        {first, failures{"cross": nil, "test/e2e": {"TestA", "TestB"}}},
		"a run of failures":  {first + "\n## The failures again\n\n- fail: test/e2e TestB\n", failures{"test/e2e": {"TestB"}}},
		"an interrupted run": {first + "- interrupted: test/e2e: context canceled\n- interrupted: fuzz: context canceled\n", failures{"cross": nil, "fuzz": nil, "test/e2e": nil}},
		"nothing failed":     {first + "\n## The failures again\n\n", failures{}},
	} {
		if got := failuresOf(c.page); !maps.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestRestrict_PackageWithFailedTests_RunsOnlyThem(t *testing.T) {
	jobs := []job{{name: "test/e2e", command: []string{"e2e.test", "-test.run=."}}, {name: "cross", command: []string{"hack/cross"}}}
	failures{"cross": nil, "test/e2e": {"TestA", "TestB"}}.restrict(jobs)
	if got := jobs[0].command[2:]; !slices.Equal(got, []string{"-test.run=^(TestA|TestB)$"}) {
		t.Errorf("arguments %q", got)
	}
	if len(jobs[1].command) != 1 {
		t.Errorf("the step runs %q", jobs[1].command)
	}
}
