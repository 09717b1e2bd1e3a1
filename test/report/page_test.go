package report

import (
	"os"
	"strings"
	"testing"
)

func TestDocsNeedAWholeRun(t *testing.T) {
	s := Section{Command: "make it", Needs: []int{1, 2}}
	r := &Report{}
	r.Begin(1, "", "")
	r.Begin(2, "", "")
	if err := s.Whole(r); err != nil {
		t.Errorf("a whole run: %v", err)
	}
	r.Quick = true
	if s.Whole(r) == nil {
		t.Error("a quick run is published")
	}
	r.Quick, r.Measures = false, r.Measures[1:]
	if err := s.Whole(r); err == nil || !strings.Contains(err.Error(), "measure 1 ") {
		t.Errorf("a run without measure 1: %v", err)
	}
}

func TestFiguresTakeThePlaceOfThoseBefore(t *testing.T) {
	r := &Report{}
	r.Begin(1, "", "")
	r.Begin(2, "", "")
	r.Find(1).Arm("nodectl").Value(1)
	rows := []Row{{Measure: 1, Metric: "one", Arms: []string{"nodectl"}}, {Measure: 2, Metric: "two", Arms: []string{"nodectl"}}}
	for range 2 {
		SetFigures(r, rows)
	}
	if one, two := r.Find(1).Figures, r.Find(2).Figures; len(one) != 1 || one[0].Name != "one" || len(two) != 0 {
		t.Errorf("figures %v and %v", one, two)
	}
}

// The document has a place for each command that writes to it.
func TestInsertIntoTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"make bench-kubelet", "make bench-cluster"} {
		s := Section{Command: command}
		once, err := s.Insert(string(text), "first\n")
		if err != nil {
			t.Fatal(err)
		}
		twice, err := s.Insert(once, "second\n")
		if err != nil {
			t.Fatal(err)
		}
		begin, end := s.marks()
		if !strings.Contains(twice, begin+"second\n"+end) || strings.Contains(twice, "first\n"+end) {
			t.Errorf("%s: the second text does not stand in the place of the first", command)
		}
		if _, err := s.Insert("no marks", "x"); err == nil {
			t.Error("a document without marks is written")
		}
	}
}
