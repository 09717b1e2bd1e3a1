package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCasesCoverWhatIsPromised(t *testing.T) {
	cases, err := readCases("cases", regexp.MustCompile(""))
	if err != nil {
		t.Fatal(err)
	}
	r := &report{}
	for _, c := range cases {
		r.rows = append(r.rows, &row{c: c})
	}
	if len(cases) < 80 || len(r.numbers()) < 60 {
		t.Errorf("%d cases with %d contract numbers, promised are 80 and 60", len(cases), len(r.numbers()))
	}
	if _, err := readExplained("explained.yaml"); err != nil {
		t.Error(err)
	}
}

func TestACaseWithAMistakeIsRefused(t *testing.T) {
	const pod = "\n---\nmetadata: {name: a}\n"
	const head = "shows: x\ncontract: [C-1.2]\nwatch: 5s\n"
	for name, text := range map[string]string{
		"no manifest":          head,
		"no contract number":   "shows: x\ncontract: [1.2]\nwatch: 5s" + pod,
		"a field nobody knows": head + "wach: 5s" + pod,
		"another pod's name":   head + "\n---\nmetadata: {name: b}\n",
		"a script too late":    head + "script: [{at: 6s, kill: a/b}]" + pod,
		"a script backwards":   head + "script: [{at: 2s, kill: a/b}, {at: 1s, kill: a/b}]" + pod,
	} {
		if _, err := readCase("a", []byte(text)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := readCase("a", []byte(head+pod)); err != nil {
		t.Errorf("without a mistake: %v", err)
	}
}

func s(what string, from, to float64) stretch {
	return stretch{what, time.Duration(from * float64(time.Second)), time.Duration(to * float64(time.Second))}
}

func TestSequenceForgivesWhatIsBrief(t *testing.T) {
	for name, c := range map[string]struct {
		a, b  []stretch
		equal bool
	}{
		"the same":                      {[]stretch{s("x", 0, 3), s("y", 3, 9)}, []stretch{s("x", 0, 2), s("y", 2, 9)}, true},
		"brief in one alone":            {[]stretch{s("x", 0, 1), s("y", 1, 9)}, []stretch{s("y", 0, 9)}, true},
		"long in one alone":             {[]stretch{s("x", 0, 4), s("y", 4, 9)}, []stretch{s("y", 0, 9)}, false},
		"brief in between":              {[]stretch{s("x", 0, 4), s("y", 4, 5), s("x", 5, 9)}, []stretch{s("x", 0, 9)}, true},
		"long in between":               {[]stretch{s("x", 0, 4), s("y", 4, 6), s("x", 6, 9)}, []stretch{s("x", 0, 9)}, false},
		"another order":                 {[]stretch{s("x", 0, 4), s("y", 4, 9)}, []stretch{s("y", 0, 4), s("x", 4, 9)}, false},
		"nothing at all against a long": {nil, []stretch{s("x", 0, 4)}, false},
	} {
		if got := sequence(c.a, c.b, 1500*time.Millisecond); (got == "") != c.equal {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// twoRuns makes a case's record of one container that lives and lives again.
func twoRuns(zero time.Time, first, ends, second float64, exit int32) *CaseRecord {
	at := func(s float64) time.Time { return zero.Add(time.Duration(s * float64(time.Second))) }
	running := []v1.ContainerStatus{{Name: "app", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	return &CaseRecord{Zero: zero, Gone: at(20), End: at(25), Pods: map[string]*PodRecord{"a": {
		Seen: []Seen{{From: at(0.2), To: at(20), Status: v1.PodStatus{ContainerStatuses: running}}},
		Runs: []*Run{
			{Container: "app", Created: at(first), Started: at(first), Finished: at(ends), Exit: exit, Reason: "Error"},
			{Container: "app", Created: at(second), Started: at(second), Attempt: 1},
		},
	}}}
}

func TestCompareSeesWhatDiffers(t *testing.T) {
	c := &Case{Name: "a", manifests: []string{"metadata: {name: a}"}, Within: metav1.Duration{Duration: defaultWithin}}
	zero := time.Unix(1000, 0)
	none := newNormaliser(&Recording{})
	base := twoRuns(zero, 1, 5, 6, 3)
	late := twoRuns(zero, 1, 5, 10, 3)
	other := twoRuns(zero, 1, 5, 6, 4)
	before := twoRuns(zero, 1, 5, 4, 3)
	lost := twoRuns(zero, 1, 5, 6, 3)
	lost.Pods["a"].Runs = lost.Pods["a"].Runs[:1]
	refused := &CaseRecord{Zero: zero, Gone: base.Gone, Pods: map[string]*PodRecord{"a": {}}}
	for name, tc := range map[string]struct {
		b      *CaseRecord
		aspect string
	}{
		"itself, an hour later":           {twoRuns(zero.Add(time.Hour), 1.1, 5.2, 6.1, 3), ""},
		"a later restart":                 {late, "times"},
		"another exit code":               {other, "exits"},
		"a restart before the end":        {before, "order"},
		"no restart":                      {lost, "events"},
		"a manifest that was not taken":   {refused, "refused"},
		"a pod nobody recorded at all, b": {&CaseRecord{Zero: zero, Gone: base.Gone, Pods: map[string]*PodRecord{}}, "recorded"},
	} {
		found := compareCase(c, base, tc.b, none, none)
		if tc.aspect == "" && len(found) > 0 || tc.aspect != "" && !slices.ContainsFunc(found, func(d Difference) bool { return d.Aspect == tc.aspect }) {
			t.Errorf("%s: want %q, found %v", name, tc.aspect, found)
		}
	}
	if found := compareCase(c, refused, refused, none, none); len(found) != 1 || found[0].Aspect != "recorded" {
		t.Errorf("a pod that neither takes counts as %v", found)
	}
}

func TestNormaliserHidesRunsNotFacts(t *testing.T) {
	n := newNormaliser(&Recording{Paths: map[string]string{"/tmp/x/root": "$ROOT", "/tmp/x": "$X", "10.9.8.": "$SUBNET."}})
	in := "/tmp/x/root/pods/00112233445566778899aabbccddeeff/containers/app/0a1b2c3d " + strings.Repeat("ab", 32) + " 10.9.8.7 port 8080"
	const want = "$ROOT/pods/$UID/containers/app/$RANDOM $ID $IP port 8080"
	if got := n.text(in); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestExplanationsAreNarrow(t *testing.T) {
	e := &Explanation{Cases: []string{"stop-*"}, Aspects: []string{"times"}, match: regexp.MustCompile("^a: ")}
	for _, tc := range []struct {
		name string
		d    Difference
		want bool
	}{
		{"stop-grace", Difference{"times", "a: late"}, true},
		{"start-one", Difference{"times", "a: late"}, false},
		{"stop-grace", Difference{"order", "a: late"}, false},
		{"stop-grace", Difference{"times", "b: late"}, false},
	} {
		if got := e.covers(tc.name, tc.d); got != tc.want {
			t.Errorf("%s %v: %t", tc.name, tc.d, got)
		}
	}
}
