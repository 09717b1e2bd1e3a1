package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodectl/nodectl/test/node"
)

// TestPage_Results_IsCurrent: docs/conformance.md agrees with the results and scope.yaml.
func TestPage_Results_IsCurrent(t *testing.T) {
	c, err := compare(here("results"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(node.Repo(), document))
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != c.markdown() {
		t.Errorf("%s is not what the results say: run go run ./test/e2enode -page", document)
	}
	for _, agent := range []string{kubelet, nodectl} {
		for name := range c.of[agent] {
			if _, known := slices.BinarySearch(c.names, name); !known {
				t.Errorf("%s has a result for %q, which is no case of the suite", agent, name)
			}
		}
	}
}

// TestScope_Rules_MatchCases: every rule of scope.yaml speaks of a case of the suite.
func TestScope_Rules_MatchCases(t *testing.T) {
	c, err := compare(here("results"))
	if err != nil {
		t.Fatal(err)
	}
	for _, rules := range [][]rule{c.scope.Unclaimed, c.scope.Causes} {
		for _, r := range rules {
			if !slices.ContainsFunc(c.names, r.expression.MatchString) {
				t.Errorf("scope.yaml: no case matches %q", r.Match)
			}
		}
	}
}

// TestWorse_SkippedOrFailed_Counts: a case that the kubelet passes counts against nodectl in every
// other outcome, unless it did not run, or tests a feature that nodectl does not claim.
func TestWorse_SkippedOrFailed_Counts(t *testing.T) {
	c := &comparison{
		scope: &scope{}, names: []string{"both", "failed", "kubelet fails", "later", "skipped", "unclaimed"},
		features: map[string]*rule{"unclaimed": {}},
		of: map[string]Results{
			kubelet: {
				"both": {Outcome: passed}, "failed": {Outcome: passed}, "kubelet fails": {Outcome: failed},
				"later": {Outcome: passed}, "skipped": {Outcome: passed}, "unclaimed": {Outcome: passed},
			},
			nodectl: {
				"both": {Outcome: passed}, "failed": {Outcome: failed}, "kubelet fails": {Outcome: failed},
				"skipped": {Outcome: skipped}, "unclaimed": {Outcome: failed},
			},
		},
	}
	if got, want := c.worse(), []string{"failed", "skipped"}; !slices.Equal(got, want) {
		t.Errorf("worse: %q, want %q", got, want)
	}
}

// TestResults_CaseWithoutReport_HasFailed: a case that the suite did not finish has failed.
func TestResults_CaseWithoutReport_HasFailed(t *testing.T) {
	specs := []spec{{ContainerHierarchyTexts: []string{"pods"}, LeafNodeText: "run", State: "passed"}, {LeafNodeText: "time out", State: "timedout"}}
	got := resultsOf(specs, []string{"pods run", "time out", "never ran"})
	for name, want := range map[string]string{"pods run": passed, "time out": failed, "never ran": failed} {
		if got[name].Outcome != want {
			t.Errorf("%s: %q, want %q", name, got[name].Outcome, want)
		}
	}
}

// TestOwnGroup_Hierarchies_AreFound: the cgroup of a process is found by the controllers of
// its hierarchy; that of cgroup v2 has none.
func TestOwnGroup_Hierarchies_AreFound(t *testing.T) {
	const text = "9:name=systemd:/init\n4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/unified\n"
	for controllers, want := range map[string]string{"memory": "/a/b", "cpu,cpuacct": "/c", "name=systemd": "/init", "": "/unified", "pids": "/"} {
		if got := ownGroup(text, controllers); got != want {
			t.Errorf("%q: %q, want %q", controllers, got, want)
		}
	}
}

// TestParse_Shard_IsChecked: a part that does not exist is an error.
func TestParse_Shard_IsChecked(t *testing.T) {
	for shard, ok := range map[string]bool{"1/1": true, "6/6": true, "0/6": false, "7/6": false, "x": false} {
		if _, err := parse([]string{"-shard", shard}); (err == nil) != ok {
			t.Errorf("-shard %s: %v", shard, err)
		}
	}
}
