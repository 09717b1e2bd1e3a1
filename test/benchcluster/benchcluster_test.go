package main

import (
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/report"
)

// measured is a report in which both arms of every row have samples: 100 in the
// kubelet's, 50 in nodectl's.
func measured() *report.Report {
	r := &report.Report{Machine: map[string]string{}}
	for _, id := range section.Needs {
		r.Begin(id, "measure", "how")
	}
	for _, w := range rows(r) {
		for range 3 {
			r.Find(w.Measure).Arm(w.Arms[0]).Value(100)
			r.Find(w.Measure).Arm(w.Arms[1]).Value(50)
		}
	}
	return r
}

func TestEveryRowHasItsFigure(t *testing.T) {
	r := measured()
	addFigures(r)
	page := text(r)
	for _, want := range []string{
		"| create → Running, one pod | 100.00 | 50.00 | 0.50 | 0.50–0.50 | ≤ 0.90 | met |",
		"| create → Running, 110 at once, last | 100.00 | 50.00 | 0.50 | 0.50–0.50 | ≤ 0.90 | met |",
		"| memory, RssAnon | 100.0 MB | 50.0 MB | 0.50 | 0.50–0.50 | ≤ 0.40 | **not met** |",
		"| idle CPU a minute, agent | 100.00 | 50.00 | 0.50 | 0.50–0.50 | ≤ 0.20 | **not met** |",
		"| disk writes in ten minutes at 50 pods, agent | 100.0 kB | 50.0 kB | 50.00 | 50.00–50.00 | ≤ 0.0 kB | **not met** |",
		"| … containerd beside it | 100.0 kB | 50.0 kB | 50.00 | 50.00–50.00 | ≤ 64.0 kB | met |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if r.Missed() != 3 {
		t.Errorf("%d limits are missed, want 3", r.Missed())
	}
}

func TestFlags(t *testing.T) {
	for _, wrong := range [][]string{{"--only", "all"}, {"--batches", "0"}, {"--batches", "500"}, {"--batches", "many"}, {"more"}} {
		if _, err := parse(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
	o, err := parse([]string{"--only", "single,idle", "--batches", "10,20"})
	if err != nil || o.Wants("batch") || !o.Wants("single") || len(o.batches) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}
