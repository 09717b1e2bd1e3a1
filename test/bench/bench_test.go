package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/report"
)

func TestFiguresMeetAndMissLimits(t *testing.T) {
	m := &report.Measure{ID: 1, Name: "m"}
	for _, ms := range []time.Duration{100, 110, 120} {
		m.Arm("raw").Add(ms * time.Millisecond)
		m.Arm("nodectl").Add(2 * ms * time.Millisecond)
	}
	m.Ratio("met", "nodectl", "raw", 2)
	m.Ratio("missed", "nodectl", "raw", 1.99)
	m.Ratio("for information", "nodectl", "raw", 0)
	m.Max("nodectl", 219, "ms")
	r := &report.Report{Machine: map[string]string{}, Measures: []*report.Measure{m}}
	if got := r.Missed(); got != 2 {
		t.Errorf("%d limits missed, want 2", got)
	}
	text := markdown(r)
	for _, want := range []string{
		"| 1 | m | met | 2.00 | ", "| ≤ 2.00 | met |",
		"| 1 | m | missed | 2.00 | ", "| ≤ 1.99 | **not met** |",
		"| 1 | m | for information | 2.00 | ",
		"| 1 | m | nodectl | 220 ms | 200 ms–240 ms | ≤ 219 ms | **not met** |",
		"| 1 | raw | 3 | 110.0 ms | 100.0 ms | 118.0 ms | 120.0 ms |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

func TestOnlyNamesMeasures(t *testing.T) {
	b, err := parse([]string{"--only", "1,3", "--quick"})
	if err != nil {
		t.Fatal(err)
	}
	if !b.Wants("1") || b.Wants("2") || !b.Wants("3") || b.Wants("11") {
		t.Error("--only 1,3 takes others")
	}
	if _, err := parse([]string{"--only", "14"}); err == nil {
		t.Error("a measure that is not there is taken")
	}
}
