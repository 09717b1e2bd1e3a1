package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

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

// TestChoose_Again_SelectsByResult: without -again the cases without a result run; with -again=failed
// only those whose result is not passed do, of every class; with all, each one. Cases of features that
// nodectl does not claim run only if a file names them.
func TestChoose_Again_SelectsByResult(t *testing.T) {
	all := []string{"broken", "broken [Serial]", "late", "late [Slow]", "passed", "skipped", "unclaimed"}
	done := Results{"broken": {Outcome: failed}, "broken [Serial]": {Outcome: failed}, "passed": {Outcome: passed}, "skipped": {Outcome: skipped}}
	claims := &scope{Unclaimed: []rule{{expression: regexp.MustCompile("unclaimed")}}}
	named := map[string]bool{"unclaimed": true, "passed": true}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"late"}},
		{[]string{"-class", "all"}, []string{"late", "late [Slow]"}},
		{[]string{"-again", "failed"}, []string{"broken", "broken [Serial]", "skipped"}},
		{[]string{"-again", "failed", "-class", "fast"}, []string{"broken", "skipped"}},
		{[]string{"-again", "failed", "-focus", "Serial"}, []string{"broken [Serial]"}},
		{[]string{"-again", "all"}, []string{"broken", "late", "passed", "skipped"}},
		{[]string{"-again", "all", "-skip", "^l"}, []string{"broken", "passed", "skipped"}},
		{[]string{"-again", "all", "-shard", "2/2"}, []string{"late", "skipped"}},
		{[]string{"-cases", "file"}, []string{"unclaimed"}},
		{[]string{"-cases", "file", "-again", "all"}, []string{"passed", "unclaimed"}},
	} {
		o, err := parse(c.args)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.choose(all, claims, named, done); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}

// TestSubset_Budget_HasCasesOfEachFeature: the subset has one case of each feature before a second of
// any, stays within the time, and has only fast cases that the kubelet passes without a known cause.
func TestSubset_Budget_HasCasesOfEachFeature(t *testing.T) {
	c := &comparison{
		scope: &scope{Causes: []rule{{expression: regexp.MustCompile("known")}}}, features: map[string]*rule{"g no claim": {}},
		names: []string{
			"a one x [Tag] 1", "a one x [Other] 2", "b two x 1", "c slow x [Slow]", "d serial x [Serial]", "e kubelet fails", "f known x", "g no claim", "h never x", "i long x 1",
		},
		of: map[string]Results{kubelet: {}, nodectl: {"a one x [Tag] 1": {Seconds: 20}, "i long x 1": {Seconds: 1000}}},
	}
	for _, n := range c.names {
		c.of[kubelet][n] = Result{Outcome: passed, Seconds: 30}
	}
	c.of[kubelet]["e kubelet fails"] = Result{Outcome: failed}
	delete(c.of[kubelet], "h never x")
	for budget, want := range map[time.Duration][]string{
		19 * time.Second:   nil,
		50 * time.Second:   {"a one x [Tag] 1", "b two x 1"},
		80 * time.Second:   {"a one x [Other] 2", "a one x [Tag] 1", "b two x 1"},
		2000 * time.Second: {"a one x [Other] 2", "a one x [Tag] 1", "b two x 1", "i long x 1"},
	} {
		if got := c.subset(budget); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", budget, got, want)
		}
	}
}

// TestSubset_RecordedResults_FillTwentyMinutes: the subset of the committed results is not empty, and
// its recorded time leaves room for the control plane.
func TestSubset_RecordedResults_FillTwentyMinutes(t *testing.T) {
	c, err := compare(here("results"))
	if err != nil {
		t.Fatal(err)
	}
	const lanes = 3
	names := c.subset(subsetTime * lanes)
	var took time.Duration
	for _, n := range names {
		took += c.took(n)
	}
	if len(names) < 30 || took > lanes*subsetTime {
		t.Errorf("%d cases, %s", len(names), took)
	}
}

// TestSubset_EarlierRuns_OtherCasesFollow: of cases of one kind, the subset has the one that nodectl has
// not run, or else the one with the oldest result.
func TestSubset_EarlierRuns_OtherCasesFollow(t *testing.T) {
	c := &comparison{
		scope: &scope{}, features: map[string]*rule{}, names: []string{"a one x 1", "a one x 2", "a one x 3"},
		of: map[string]Results{kubelet: {}, nodectl: {"a one x 1": {Date: "2026-01-02", Seconds: 30}, "a one x 2": {Date: "2026-01-01", Seconds: 30}}},
	}
	for _, n := range c.names {
		c.of[kubelet][n] = Result{Outcome: passed, Seconds: 30}
	}
	for budget, want := range map[time.Duration][]string{
		30 * time.Second: {"a one x 3"}, 60 * time.Second: {"a one x 2", "a one x 3"},
	} {
		if got := c.subset(budget); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", budget, got, want)
		}
	}
}

// TestRecord_ResultsOfASubset_ReplaceOlderOnes: a result with uncommitted changes does not replace one of
// a commit.
func TestRecord_ResultsOfASubset_ReplaceOlderOnes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, nodectl+".json")
	before := Results{
		"again": {Outcome: passed, Tree: "a"}, "kept": {Outcome: passed, Tree: "a"}, "was dirty": {Outcome: failed, Tree: "a-dirty"}, "other": {Outcome: skipped, Tree: "a"},
	}
	if err := before.write(file); err != nil {
		t.Fatal(err)
	}
	err := record(dir, Results{
		"again": {Outcome: failed, Tree: "b"}, "kept": {Outcome: failed, Tree: "b-dirty"}, "was dirty": {Outcome: passed, Tree: "b-dirty"}, "new": {Outcome: passed, Tree: "b-dirty"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := readResults(file)
	want := Results{
		"again": {Outcome: failed, Tree: "b"}, "kept": {Outcome: passed, Tree: "a"}, "was dirty": {Outcome: passed, Tree: "b-dirty"},
		"new": {Outcome: passed, Tree: "b-dirty"}, "other": {Outcome: skipped, Tree: "a"},
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// TestTree_ResultsOfARun_AreNoChange: another change marks the tree.
func TestTree_ResultsOfARun_AreNoChange(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "first"}} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	commit := treeOf(dir)
	if len(commit) != 12 {
		t.Errorf("tree %q", commit)
	}
	for _, c := range [][2]string{
		{"test/e2enode/results/nodectl.json", commit}, {"docs/conformance.md", commit}, {"docs/test-full.md", commit}, {"pkg/a.go", commit + dirty},
	} {
		file := filepath.Join(dir, c[0])
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if got := treeOf(dir); got != c[1] {
			t.Errorf("with %s: %q, want %q", c[0], got, c[1])
		}
	}
	if got := treeOf(t.TempDir()); got != "unknown" {
		t.Errorf("without a repository: %q", got)
	}
}

// TestLeft_RecordedTimes_GiveTheEstimate: cases that run beside others take a third of their mean time; a
// class without a recorded case is a guess.
func TestLeft_RecordedTimes_GiveTheEstimate(t *testing.T) {
	c := &comparison{
		scope: &scope{}, features: map[string]*rule{"no claim": {}},
		names: []string{"a", "b", "c", "d", "e [Serial]", "f [Serial]", "no claim"},
		of: map[string]Results{
			kubelet: {"a": {Outcome: passed, Seconds: 240}, "b": {Outcome: failed, Seconds: 120}, "e [Serial]": {Outcome: passed, Seconds: 600}},
			nodectl: {"a": {Outcome: passed, Seconds: 60}},
		},
	}
	var b strings.Builder
	c.left(&b)
	for _, want := range []string{
		"| beside others | 3 at once | 2 | 2m | 3 | 1m |\n", "| Serial | one by one | 1 | 10m | 2 | 3m, a guess |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	for _, n := range c.names {
		c.of[kubelet][n], c.of[nodectl][n] = Result{Outcome: passed}, Result{Outcome: passed}
	}
	b.Reset()
	if c.left(&b); b.Len() > 0 {
		t.Errorf("nothing is left:\n%s", b.String())
	}
}

// TestReport_CaseFailedOrLate_IsReported: a case that did not pass fails the subset; one that did not
// begin in time is reported as not checked.
func TestReport_CaseFailedOrLate_IsReported(t *testing.T) {
	names := []string{"one", "two"}
	for _, c := range []struct {
		results Results
		fine    bool
		text    string
	}{
		{Results{"one": {Outcome: passed}, "two": {Outcome: passed}}, true, "2 of 2 cases passed"},
		{Results{"one": {Outcome: passed}}, true, "not checked: 1 cases"},
		{Results{"one": {Outcome: passed}, "two": {Outcome: skipped, Reason: "why"}}, false, "skipped: two: why"},
		{Results{"one": {Outcome: failed, Reason: "why"}}, false, "failed: one: why"},
		{Results{}, false, "0 of 2 cases passed"},
	} {
		if text, fine := reportOf(names, c.results); fine != c.fine || !strings.Contains(text, c.text) {
			t.Errorf("%v: %t, %q", c.results, fine, text)
		}
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

// TestAddRegistry_Image_IsPulledAsFromTheServer: the layer has a file for the tag, the manifest and each
// blob, where agnhost's fake-registry-server looks for them.
func TestAddRegistry_Image_IsPulledAsFromTheServer(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	pause := static.NewLayer([]byte("program"), types.DockerLayer)
	if err := errors.Join(addRegistry(w, map[string]v1.Layer{"pause": pause}), w.Close()); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		text, more := io.ReadAll(r)
		if err != nil || more != nil {
			t.Fatal(err, more)
		}
		files[h.Name] = string(text)
	}
	of := func(kind, digest string) string {
		algorithm, hex, _ := strings.Cut(strings.TrimSpace(digest), ":")
		return files["var/registry/pause/"+kind+"/"+algorithm+"/"+hex[:2]+"/"+hex+"/data"]
	}
	var m v1.Manifest
	if err := json.Unmarshal([]byte(of("manifests", files["var/registry/pause/manifests/testing"])), &m); err != nil || m.MediaType == "" || len(m.Layers) != 1 {
		t.Fatalf("%v, %+v in %q", err, m, files)
	}
	if of("blobs", m.Layers[0].Digest.String()) != "program" || !strings.Contains(of("blobs", m.Config.Digest.String()), "65535") {
		t.Errorf("blobs of %+v: %q", m, files)
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
