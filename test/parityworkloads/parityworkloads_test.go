package main

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/node"
)

var update = flag.Bool("update", false, "write nodectl's rounds and the page")

// leastScenarios is how many recorded scenarios the comparison has at least.
const leastScenarios = 77

func scenarios(t *testing.T) []*Scenario {
	t.Helper()
	all, err := readScenarios("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nodectl creates and deletes the pods that kube-controller-manager was recorded to create and
// delete, step by step, or the scenario has the reason why not. A scenario that is not recorded yet
// claims no result, and nodectl comes to the end of its script.
func TestScenario_RecordedRounds_AreNodectlsOrHaveAReason(t *testing.T) {
	all := scenarios(t)
	recorded := 0
	for _, s := range all {
		if s.isRecorded() {
			recorded++
		}
		t.Run(s.Name, func(t *testing.T) {
			problem, err := compareOne(s, *update)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case s.isRecorded() && problem != "":
				t.Error(problem)
			case s.isRecorded():
			case problem != notCompared || s.Nodectl != nil || s.Reason != "":
				t.Errorf("%q, and it has rounds of nodectl or a reason without a recording", problem)
			}
			if titles[s.Group] == "" {
				t.Errorf("the group %q has no title", s.Group)
			}
		})
	}
	if recorded < leastScenarios {
		t.Errorf("%d scenarios are recorded, want at least %d", recorded, leastScenarios)
	}
}

// The page names the scenarios that are not recorded, and counts them as neither equal nor different.
func TestPage_ScenarioIsNotRecorded_IsNamed(t *testing.T) {
	round := Rounds{"create: +pod#1"}
	text := markdown([]*Scenario{
		{Name: "job-a", Group: "job", Shows: "a", Kubernetes: round},
		{Name: "job-b", Group: "job", Shows: "b", Kubernetes: round, Nodectl: Rounds{"create: nothing"}, Reason: "so"},
		{Name: "job-c", Group: "job", Shows: "c"},
	})
	for _, want := range []string{
		"It runs 2 scenarios", "1 scenarios are equal in every round, and 1 differ", "1 more scenarios are not recorded yet, so their result is unknown: job-c.",
		"| job-a | a | 1 | equal |", "| job-b | b | 1 | different: so |", "| job-c | c | – | not recorded |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if text := markdown([]*Scenario{{Name: "job-a", Group: "job", Shows: "a", Kubernetes: round}}); strings.Contains(text, "not recorded") {
		t.Errorf("everything is recorded:\n%s", text)
	}
}

// docs/fidelity-workloads.md is made from the scenarios.
func TestPage_Scenarios_AreThoseOfTestdata(t *testing.T) {
	file := filepath.Join(node.Repo(), document)
	want := markdown(scenarios(t))
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Errorf("%s is not what testdata says: run go test ./test/parityworkloads -update", document)
	}
}

// Pods to which the same happened are alike, and others are not.
func TestBook_PodsAreAlike_LowestNumbersAreDeleted(t *testing.T) {
	deployment := facts{kind: "Deployment", labels: map[string]string{"pod-template-hash": "x"}}
	course := func(deleted ...string) Rounds {
		b := newBook()
		for _, id := range []string{"a", "b", "c"} {
			b.Created(id, deployment)
		}
		b.Close("create")
		b.Touch(b.byID("a"), Step{Verb: "ready"})
		b.Close("ready")
		for _, id := range deleted {
			b.Deleted(id, false)
		}
		b.Close("scale")
		return b.rounds
	}
	for want, deleted := range map[string][]string{
		"scale: -v1#1":        {"a"},
		"scale: -v1#2":        {"c"},
		"scale: -v1#2, -v1#3": {"c", "b"},
		"scale: -v1#1, -v1#2": {"a", "c"},
		"scale: nothing":      nil,
	} {
		if got := course(deleted...); got[2] != want {
			t.Errorf("%v were deleted: %q, want %q", deleted, got[2], want)
		}
	}
	if got := course("b"); !slices.Equal(got, course("c")) {
		t.Errorf("one of two like pods was deleted: %q, and the other: %q", got, course("c"))
	}
}

func TestScenario_InvalidFile_IsRejected(t *testing.T) {
	const good = "shows\n-- object.yaml --\nkind: Job\n-- script --\nscale 3\n"
	if _, err := parseScenario("job-x.txtar", []byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"scale 3", "scale many"}, {"scale 3", "scale"}, {"scale 3", "dance"}, {"scale 3", "edit {"}, {"scale 3", "pass long"},
		{"shows\n", ""}, {"-- script --", "-- other --"}, {"kind: Job\n", ""},
	} {
		if _, err := parseScenario("job-x.txtar", []byte(strings.Replace(good, change[0], change[1], 1))); err == nil {
			t.Errorf("%q in place of %q is accepted", change[1], change[0])
		}
	}
}
