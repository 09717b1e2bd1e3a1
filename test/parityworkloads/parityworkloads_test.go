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

// leastScenarios is how many scenarios the comparison has at least.
const leastScenarios = 60

func scenarios(t *testing.T) []*Scenario {
	t.Helper()
	all, err := readScenarios("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nodectl creates and deletes the pods that kube-controller-manager was recorded to create and
// delete, step by step, or the scenario has the reason why not.
func TestScenario_RecordedRounds_AreNodectlsOrHaveAReason(t *testing.T) {
	all := scenarios(t)
	if len(all) < leastScenarios {
		t.Errorf("there are %d scenarios, want at least %d", len(all), leastScenarios)
	}
	for _, s := range all {
		t.Run(s.Name, func(t *testing.T) {
			problem, err := compareOne(s, *update)
			if err != nil {
				t.Fatal(err)
			}
			if problem != "" {
				t.Error(problem)
			}
			if titles[s.Group] == "" {
				t.Errorf("the group %q has no title", s.Group)
			}
		})
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
