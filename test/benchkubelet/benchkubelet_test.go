package main

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/report"
)

// measured is a report in which every arm of every row has samples: 100 in
// theirs, 20 in ours, 10 in raw.
func measured() *report.Report {
	r := &report.Report{Machine: map[string]string{}}
	for _, n := range allMeasures() {
		r.Begin(n, "measure", "")
	}
	for _, w := range rows {
		for which, v := range []float64{10, 100, 20} {
			if name := w.Arms[which]; name != "" {
				for range 3 {
					r.Find(w.Measure).Arm(name).Value(v)
				}
			}
		}
	}
	return r
}

func TestEveryRowHasItsFigure(t *testing.T) {
	r := measured()
	addFigures(r)
	for _, w := range rows {
		if w.Figure(r) == nil || !slices.ContainsFunc(r.Find(w.Measure).Figures, func(f *report.Figure) bool { return strings.HasPrefix(f.Name, w.Metric) }) {
			t.Errorf("no figure of %s", w.Metric)
		}
	}
	if err := section.Whole(r); err != nil {
		t.Errorf("the docs want more: %v", err)
	}
	if got := strings.Count(table(r), "\n"); got != len(rows)+2 {
		t.Errorf("the table has %d lines:\n%s", got, table(r))
	}
}

func TestFiguresAreRatiosOfMediansOrMedians(t *testing.T) {
	text := table(measured())
	for _, want := range []string{
		"| M1 | single start, no volume | 10.00 | 100.00 | 20.00 | 2.00 × raw | 2.00–2.00 | ≤ 1.25 | ≤ 1.10 | **not met** |",
		"| M2 | 50 at once, p50 | 10.00 | 100.00 | 20.00 | 0.20 × kubelet | 0.20–0.20 | ≤ 0.80 | ≤ 0.60 | met, and the aim |",
		"| M6 | idle CPU a minute at 110 pods, agent |  | 100.00 | 20.00 | 0.20 × kubelet | 0.20–0.20 | ≤ 0.15 | ≤ 0.05 | **not met** |",
		"| 20.00/s | 20.00/s–20.00/s | ≤ 0.50/s | ≤ 0.10/s | **not met** |",
		"| M16 | cold start → first container |  | 100.00 | 20.00 | 0.20 × kubelet | 0.20–0.20 |  |  |  |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

func TestWhatWasNotMeasuredHasNoRow(t *testing.T) {
	r := &report.Report{Machine: map[string]string{}}
	r.Begin(4, "crash", "").Arm("nodectl").Add(time.Second)
	addFigures(r)
	if len(r.Measures[0].Figures) != 0 || len(r.Measures[0].Arms) != 1 {
		t.Errorf("one arm alone makes %d figures and %d arms", len(r.Measures[0].Figures), len(r.Measures[0].Arms))
	}
}

func TestPlotsAreXMLAndHoldEveryArm(t *testing.T) {
	r := measured()
	for _, arm := range []string{"raw, every pod", "kubelet, every pod", "nodectl, every pod"} {
		for _, v := range []float64{3, 1, 2} {
			r.Find(2).Arm(arm).Value(v)
		}
	}
	for _, p := range plots(r) {
		text := p.svg()
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", p.file, err)
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s has a point that is no number", p.file)
		}
		for _, arm := range []string{"kubelet", "nodectl"} {
			if !strings.Contains(text, ">"+arm+"<") || !strings.Contains(text, colours[arm]) {
				t.Errorf("%s lacks %s", p.file, arm)
			}
		}
		if text != p.svg() {
			t.Errorf("%s is not the same twice", p.file)
		}
	}
}

func TestDistributionRisesToOne(t *testing.T) {
	s := distribution("raw", []float64{3, 1, 2, 2})
	want := []point{{1, 0}, {1, 0.25}, {2, 0.25}, {2, 0.5}, {2, 0.5}, {2, 0.75}, {3, 0.75}, {3, 1}}
	if !slices.Equal(s.points, want) {
		t.Errorf("points %v, want %v", s.points, want)
	}
}

func TestTicksAreRoundAndFew(t *testing.T) {
	for _, tt := range []struct {
		axis axis
		want []float64
	}{
		{axis{high: 1}, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{axis{high: 113}, []float64{0, 20, 40, 60, 80, 100}},
		{axis{low: 10, high: 1000, log: true}, []float64{10, 100, 1000}},
	} {
		got := tt.axis.ticks()
		if len(got) != len(tt.want) {
			t.Errorf("ticks to %v are %v, want %v", tt.axis.high, got, tt.want)
			continue
		}
		for i := range got {
			if d := got[i] - tt.want[i]; d > 1e-9 || d < -1e-9 {
				t.Errorf("ticks to %v are %v, want %v", tt.axis.high, got, tt.want)
			}
		}
	}
}

func TestEndIsWithoutTheGrace(t *testing.T) {
	begin := time.Now()
	o := end{begin: begin, ended: begin.Add(grace + time.Millisecond), stopped: begin.Add(grace + 2*time.Millisecond),
		removed: begin.Add(grace + 3*time.Millisecond), vanished: begin.Add(grace + 4*time.Millisecond)}
	m := &report.Measure{}
	if err := o.note(m, "raw"); err != nil {
		t.Fatal(err)
	}
	if got := m.Arm("raw").Median; got != 4 {
		t.Errorf("nothing is left after %v ms, want 4", got)
	}
	o.ended = begin.Add(grace - time.Millisecond)
	if o.note(m, "raw") == nil {
		t.Error("a container that did not use its grace is measured")
	}
}

func TestOnlyNamesMeasures(t *testing.T) {
	b, err := parse([]string{"--only", "1,M9", "--quick"})
	if err != nil {
		t.Fatal(err)
	}
	if !b.Wants("1") || b.Wants("2") || !b.Wants("9") {
		t.Error("--only 1,M9 takes others")
	}
	b.Report = &report.Report{}
	b.Report.Begin(1, "there already", "")
	if b.Wants("1") {
		t.Error("what is there already is taken again")
	}
	if _, err := parse([]string{"--only", "3"}); err == nil {
		t.Error("a measure that is not there is taken")
	}
}

// Every arm of agents gets the same bytes; the shapes differ only in their
// volume.
func TestShapes(t *testing.T) {
	bare, dir := arm.Manifest("x", s0), arm.Manifest("x", s2)
	if !strings.HasPrefix(dir, bare) || !strings.Contains(dir, "emptyDir") || strings.Contains(bare, "emptyDir") {
		t.Errorf("S0:\n%sS2:\n%s", bare, dir)
	}
	if !strings.Contains(bare, "hostNetwork: true") {
		t.Errorf("S0 is not on the machine's network:\n%s", bare)
	}
}
