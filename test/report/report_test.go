package report

import (
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A report that is written and read again has every sample, and can be continued.
func TestReportSurvivesItsFile(t *testing.T) {
	r := &Report{Time: time.Now(), Machine: map[string]string{"kernel": "6.1"}}
	m := r.Begin(4, "crash", "")
	m.Arm("raw").Add(100 * time.Millisecond)
	m.Arm("nodectl").Add(150 * time.Millisecond)
	m.Ratio("nodectl / raw", "nodectl", "raw", 1.4)
	file := filepath.Join(t.TempDir(), "made", "result.json")
	if err := r.Write(file); err != nil {
		t.Fatal(err)
	}
	again, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if again.Find(4) == nil || again.Find(5) != nil || again.Missed() != 1 || !again.Time.Equal(r.Time) {
		t.Fatalf("read %+v", again)
	}
	again.Find(4).Arm("raw").Add(200 * time.Millisecond)
	if a := again.Find(4).Lookup("raw"); !slices.Equal(a.Samples, []float64{100, 200}) || a.Median != 150 {
		t.Errorf("raw went on as %+v", a)
	}
	if again.Find(4).Lookup("kubelet") != nil {
		t.Error("an arm is there that was not measured")
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file is a report")
	}
}
