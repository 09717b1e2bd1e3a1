package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	for _, tt := range []struct {
		samples []float64
		q, want float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.9, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{0, 10}, 0.9, 9},
		{[]float64{5, 1}, 1, 5},
	} {
		if got := quantile(tt.samples, tt.q); got != tt.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", tt.samples, tt.q, got, tt.want)
		}
	}
}

func TestRatioCI(t *testing.T) {
	a, b := []float64{20, 22, 21, 23, 19}, []float64{10, 11, 9, 10, 12}
	ci := ratioCI(a, b)
	if value := quantile(a, 0.5) / quantile(b, 0.5); !(ci[0] < value && value < ci[1]) {
		t.Errorf("the interval %v does not hold the ratio %v", ci, value)
	}
	if again := ratioCI(a, b); again != ci {
		t.Errorf("the same samples give %v, then %v", ci, again)
	}
	if got := ratioCI(nil, b); got != [2]float64{} {
		t.Errorf("no samples give %v", got)
	}
}

// The name in /proc/PID/stat may hold blanks and brackets; all four CPU times
// count.
func TestParseStat(t *testing.T) {
	text := "42 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 100 20 3 4 20 0 9 0 5 6 7"
	if got, want := parseStat([]byte(text)), 127*tick; got != want {
		t.Errorf("parseStat = %s, want %s", got, want)
	}
	if got := parseStat([]byte("42 (a) S 1")); got != 0 {
		t.Errorf("parseStat of half a line = %s", got)
	}
}

func TestStatusBytes(t *testing.T) {
	text := "Name:\tx\nVmRSS:\t   36000 kB\nRssAnon:\t   12 kB\n"
	if got := statusBytes(text, "VmRSS:"); got != 36000<<10 {
		t.Errorf("VmRSS = %d", got)
	}
	if got := statusBytes(text, "RssAnon:"); got != 12<<10 {
		t.Errorf("RssAnon = %d", got)
	}
	if got := statusBytes(text, "VmSwap:"); got != 0 {
		t.Errorf("VmSwap = %d, and is not there", got)
	}
}

func TestFiguresMeetAndMissLimits(t *testing.T) {
	m := &measure{ID: 1, Name: "m"}
	for _, ms := range []time.Duration{100, 110, 120} {
		m.arm("raw").add(ms * time.Millisecond)
		m.arm("nodectl").add(2 * ms * time.Millisecond)
	}
	m.ratio("met", "nodectl", "raw", 2)
	m.ratio("missed", "nodectl", "raw", 1.99)
	m.ratio("for information", "nodectl", "raw", 0)
	m.limit("nodectl", 219, "ms")
	r := &report{Machine: map[string]string{}, Measures: []*measure{m}}
	if got := r.missed(); got != 2 {
		t.Errorf("%d limits missed, want 2", got)
	}
	text := r.markdown()
	for _, want := range []string{
		"| 1 | m | met | 2.00 | ", "| ≤ 2.00 | ok |",
		"| 1 | m | missed | 2.00 | ", "| ≤ 1.99 | **missed** |",
		"| 1 | m | for information | 2.00 | ",
		"| 1 | m | nodectl | 220 ms | 200 ms–240 ms | ≤ 219 ms | **missed** |",
		"| 1 | raw | 3 | 110.0 ms | 100.0 ms | 118.0 ms | 120.0 ms |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

func TestOnlyNamesMeasures(t *testing.T) {
	o, err := parse([]string{"--only", "1,3", "--quick"})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{options: o}
	if !b.wants(1) || b.wants(2) || !b.wants(3) {
		t.Errorf("--only 1,3 takes %v", o.only)
	}
	if _, err := parse([]string{"--only", fmt.Sprint(measureCount + 1)}); err == nil {
		t.Error("a measure that is not there is taken")
	}
}
