package main

import (
	"os"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/bench/result"
)

// measured is a report in which both arms of every row have samples: 100 in the
// kubelet's, 50 in nodectl's.
func measured() *result.Report {
	r := &result.Report{Machine: map[string]string{}}
	for _, id := range []int{singleID, batchID + 50, batchID + 110, idleID, memoryID} {
		r.Begin(id, "measure", "how")
	}
	for _, w := range rows(r) {
		for range 3 {
			r.Find(w.measure).Arm("kubelet" + w.suffix).Value(100)
			r.Find(w.measure).Arm("nodectl" + w.suffix).Value(50)
		}
	}
	return r
}

func TestEveryRowHasItsFigure(t *testing.T) {
	r := measured()
	addFigures(r)
	addFigures(r) // a report that was read again has them already
	n := 0
	for _, m := range r.Measures {
		n += len(m.Figures)
	}
	if n != len(rows(r)) {
		t.Errorf("%d figures of %d rows", n, len(rows(r)))
	}
	text := page(r)
	for _, want := range []string{
		"| create → Running, one pod | 100.00 | 50.00 | 0.50 | 0.50–0.50 | ≤ 0.90 | met |",
		"| create → Running, 110 at once, last | 100.00 | 50.00 | 0.50 | 0.50–0.50 | ≤ 0.90 | met |",
		"| memory, RssAnon | 100.0 MB | 50.0 MB | 0.50 | 0.50–0.50 | ≤ 0.40 | **not met** |",
		"| idle CPU a minute, agent | 100.00 | 50.00 | 0.50 | 0.50–0.50 | ≤ 0.20 | **not met** |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if r.Missed() != 2 {
		t.Errorf("%d limits are missed, want 2", r.Missed())
	}
}

func TestDocsNeedAWholeRun(t *testing.T) {
	r := measured()
	if err := whole(r); err != nil {
		t.Errorf("a whole run: %v", err)
	}
	r.Quick = true
	if whole(r) == nil {
		t.Error("a quick run is published")
	}
	r.Quick, r.Measures = false, r.Measures[1:]
	if whole(r) == nil {
		t.Error("a part of a run is published")
	}
}

// The document has the place that the command writes to.
func TestInsertIntoTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	once, err := insert(string(text), "first\n")
	if err != nil {
		t.Fatal(err)
	}
	twice, err := insert(once, "second\n")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(twice, markBegin+"second\n"+markEnd) || strings.Contains(twice, "first\n"+markEnd) {
		t.Error("the second text does not stand in the place of the first")
	}
	if _, err := insert("no marks", "x"); err == nil {
		t.Error("a document without marks is written")
	}
}

func TestFlags(t *testing.T) {
	for _, wrong := range [][]string{{"--only", "all"}, {"--batches", "0"}, {"--batches", "500"}, {"--batches", "many"}, {"more"}} {
		if _, err := parse(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
	o, err := parse([]string{"--only", "single,idle", "--batches", "10,20"})
	if err != nil || o.wants("batch") || !o.wants("single") || len(o.batches) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}
