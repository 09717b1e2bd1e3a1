package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/benchcluster/stage"
	"github.com/nodectl/nodectl/test/compare"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

func recorded(t *testing.T) *table {
	t.Helper()
	var both [2]*Recording
	for i, arm := range []string{"kubelet", "nodectl"} {
		if err := report.ReadJSON(here("testdata", arm+".json"), &both[i]); err != nil {
			t.Fatal(err)
		}
	}
	explanations, err := compare.Read(here("explained.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return newTable(both[0], both[1], explanations)
}

// Every difference of the kept recordings has a reason, and every reason has a difference.
func TestEveryDifferenceIsExplained(t *testing.T) {
	r := recorded(t)
	for _, d := range r.Open {
		t.Errorf("not explained: %s", d)
	}
	for _, e := range r.Idle() {
		t.Errorf("explains nothing: %v %v %q", e.Cases, e.Aspects, e.Match)
	}
}

// Every case is in both recordings.
func TestEveryCaseIsRecorded(t *testing.T) {
	r := recorded(t)
	for _, s := range scenarios {
		for _, name := range s.pods() {
			if r.kubelet.Pods[name] == nil || r.nodectl.Pods[name] == nil {
				t.Errorf("%s is not recorded with both", name)
			}
		}
	}
	for _, view := range []string{"stats/summary", "metrics", "metrics/resource", "metrics/cadvisor", "metrics/probes"} {
		for _, of := range []*Recording{r.kubelet, r.nodectl} {
			if len(of.Names[view]) == 0 || strings.HasPrefix(of.Names[view][0], "error: ") {
				t.Errorf("%s has no %s: %q", of.Arm, view, of.Names[view])
			}
		}
	}
	for _, object := range []string{"node", "lease", "/pods view-plain", "/pods view-volumes"} {
		if len(r.kubelet.Facts[object]) == 0 || len(r.nodectl.Facts[object]) == 0 {
			t.Errorf("%s is not recorded with both", object)
		}
	}
}

// The document is made from these recordings.
func TestTheDocumentIsOfTheRecordings(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(node.Repo(), document))
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != recorded(t).markdown() {
		t.Errorf("%s is not what testdata says: run go run ./test/paritycluster -arm none -write", document)
	}
}

func steps(pairs ...any) []Step {
	var all []Step
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, Step{pairs[i].(string), int64(pairs[i+1].(int))})
	}
	return all
}

// A brief value that only one has does not count; a lasting one does, and so does the order.
func TestTracks(t *testing.T) {
	for _, tt := range []struct {
		name string
		x, y []Step
		same bool
	}{
		{"equal", steps("a", 9, "b", 9), steps("a", 5000, "b", 1), true},
		{"brief between equal ones", steps("f", 2500, "t", 100, "f", 3000), steps("f", 9000), true},
		{"brief in each", steps("a", 10, "b", 10, "c", 5000), steps("x", 10, "c", 5000), true},
		{"long, and only one has it", steps("a", 3000, "c", 5000), steps("c", 5000), false},
		{"long, and only the other has it", steps("c", 5000), steps("c", 5000, "d", 2000), false},
		{"the other way round", steps("a", 3000, "b", 3000), steps("b", 3000, "a", 3000), false},
		{"brief, but a change of both", steps("a", 3000, "b", 10), steps("a", 3000, "c", 10), true},
		{"not set at the end", steps("a", 3000, "", 5000), steps("a", 3000), true},
		{"not set between", steps("a", 3000, "", 5000, "a", 3000), steps("a", 3000), false},
		{"never set", nil, steps("a", 3000), false},
	} {
		if got := same(tt.x, tt.y); got != tt.same {
			t.Errorf("%s: same is %t", tt.name, got)
		}
		if got := same(tt.y, tt.x); got != tt.same {
			t.Errorf("%s, turned: same is %t", tt.name, got)
		}
	}
}

// A state and a condition are each one value, and parts that differ between runs are removed.
func TestStatusIsNormalised(t *testing.T) {
	n := newNormaliser(&Raw{Words: map[string]string{"198.19.3.1": "$ADDRESS", "10.130.7.": "$SUBNET."}})
	p := &v1.Pod{Status: v1.PodStatus{
		PodIP: "10.130.7.12", HostIP: "198.19.3.1",
		Conditions:        []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "ContainersNotReady", ObservedGeneration: 2}},
		ContainerStatuses: []v1.ContainerStatus{{Name: "main", RestartCount: 3, ContainerID: "containerd://x", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}},
	}}
	got := n.now(stage.Version{Pod: p})
	for path, want := range map[string]string{
		"podIP": "$IP", "hostIP": "$ADDRESS", "condition Ready": "False; ContainersNotReady; generation 2",
		"state of main": "waiting; CrashLoopBackOff", "containerStatuses[main].restartCount": "3", "containerStatuses[main].containerID": "set",
	} {
		if got[path] != want {
			t.Errorf("%s is %q, want %q", path, got[path], want)
		}
	}
}

func TestMetricNames(t *testing.T) {
	got := metricNames([]byte("# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\",x=\"{,}\"} 1\na_sum{x=\"y\"} 1\na_count{x=\"y\"} 1\n# TYPE b gauge\nb 1\n"))
	if want := "a histogram{x}|b gauge{}"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestEveryScenarioHasItsName(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range scenarios {
		if s.name == "" || s.shows == "" || seen[s.name] {
			t.Errorf("case %q: no name, not the only one of it, or nothing it shows", s.name)
		}
		seen[s.name] = true
	}
}
