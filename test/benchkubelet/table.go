package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/nodectl/nodectl/test/bench/page"
	"github.com/nodectl/nodectl/test/bench/result"
)

// row is one line of the table: a requirement of the issue, or a value for information.
type row struct {
	measure int
	metric  string
	arms    [3]string // raw, kubelet, nodectl: whose medians are in the line; "" is none
	to      int       // the arm that nodectl's median is divided by; itself: its median is the figure
	unit    string    // if not a duration
	must    float64   // 0: for information
	aim     float64
}

const (
	raw = iota
	theirs
	ours
)

// rows are the lines in the order of the table, then those that it does not require.
var rows = []row{
	{1, "single start, no volume", [3]string{"raw, S0", "kubelet, S0", "nodectl, S0"}, raw, "", 1.25, 1.10},
	{1, "single start, with emptyDir", [3]string{"raw, S2", "kubelet, S2", "nodectl, S2"}, raw, "", 1.35, 1.10},
	{2, "50 at once, first", [3]string{"raw, first", "kubelet, first", "nodectl, first"}, theirs, "", 0.4, 0.25},
	{2, "50 at once, p50", [3]string{"raw, p50", "kubelet, p50", "nodectl, p50"}, theirs, "", 0.8, 0.6},
	{2, "50 at once, last", [3]string{"raw, last", "kubelet, last", "nodectl, last"}, theirs, "", 1.0, 0.9},
	{4, "crash → replacement, first crash", [3]string{"raw", "kubelet", "nodectl"}, raw, "", 2, 1.2},
	{5, "manifest gone → nothing left, beyond the grace", [3]string{"raw", "kubelet", "nodectl"}, ours, "ms", 500, 300},
	{6, "idle CPU a minute at 50 pods, agent", [3]string{"", "kubelet, 50 pods", "nodectl, 50 pods"}, theirs, "", 0.15, 0.05},
	{6, "… containerd beside it", [3]string{"", "kubelet, 50 pods, containerd", "nodectl, 50 pods, containerd"}, theirs, "", 1, 0},
	{6, "idle CPU a minute at 110 pods, agent", [3]string{"", "kubelet, 110 pods", "nodectl, 110 pods"}, theirs, "", 0.15, 0.05},
	{6, "… containerd beside it", [3]string{"", "kubelet, 110 pods, containerd", "nodectl, 110 pods, containerd"}, theirs, "", 1, 0},
	{7, "memory (RssAnon) at 110 pods", [3]string{"", "kubelet, 110 pods, RssAnon", "nodectl, 110 pods, RssAnon"}, theirs, "MB", 0.4, 0.2},
	{8, "CRI calls a second, idle, 50 pods", [3]string{"", "kubelet, 50 pods", "nodectl, 50 pods"}, ours, "/s", 0.5, 0.1},
	{8, "CRI calls a second, idle, 110 pods", [3]string{"", "kubelet, 110 pods", "nodectl, 110 pods"}, ours, "/s", 0.5, 0.1},
	{9, "agent restart at 110 pods → all reported right", [3]string{"", "kubelet", "nodectl"}, theirs, "", 0.8, 0.25},

	{9, "… its CPU until then", [3]string{"", "kubelet, its CPU until then", "nodectl, its CPU until then"}, theirs, "", 0, 0},
	{9, "… pods said not to be Ready meanwhile", [3]string{"", "kubelet, pods that were said not to be Ready", "nodectl, pods that were said not to be Ready"}, ours, "pods", 0, 0},
	{7, "memory (VmRSS) at 110 pods", [3]string{"", "kubelet, 110 pods, VmRSS", "nodectl, 110 pods, VmRSS"}, theirs, "MB", 0, 0},
	{15, "size of the program", [3]string{"", "kubelet, MB", "nodectl, MB"}, theirs, "MB", 0, 0},
	{16, "cold start → first container", [3]string{"", "kubelet", "nodectl"}, theirs, "", 0, 0},
}

// arm returns the arm of a row, or nil when it was not measured.
func (w row) arm(r *result.Report, which int) *result.Arm {
	m := r.Find(w.measure)
	if m == nil {
		return nil
	}
	return m.Lookup(w.arms[which])
}

// figure makes the row's figure; nil when an arm was not measured.
func (w row) figure(r *result.Report) *result.Figure {
	a, b := w.arm(r, ours), w.arm(r, w.to)
	if a == nil || b == nil || w.to != ours && b.Median == 0 {
		return nil
	}
	f := &result.Figure{Name: w.metric, Value: a.Median, Unit: w.unit, CI95: [2]float64{a.Low, a.High}, Limit: w.must, Aim: w.aim}
	if w.to != ours {
		f.Name += " / " + []string{"raw", "kubelet"}[w.to]
		f.Value, f.Unit, f.CI95 = a.Median/b.Median, "", result.RatioCI(a.Samples, b.Samples)
	}
	f.OK = w.must == 0 || f.Value <= w.must
	return f
}

// addFigures puts every row's figure into its measure.
func addFigures(r *result.Report) {
	page.SetFigures(r, func(yield func(int, *result.Figure) bool) {
		for _, w := range rows {
			if !yield(w.measure, w.figure(r)) {
				return
			}
		}
	})
}

// table writes the rows that were measured.
func table(r *result.Report) string {
	var b strings.Builder
	b.WriteString("| | metric | raw | kubelet | nodectl | figure | 95 % | must | aim | |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, w := range rows {
		f := w.figure(r)
		if f == nil {
			continue
		}
		fmt.Fprintf(&b, "| M%d | %s | %s | %s | %s | ", w.measure, w.metric, w.text(r, raw), w.text(r, theirs), w.text(r, ours))
		if w.to == ours {
			fmt.Fprintf(&b, "%s | %s–%s | ", f.Text(f.Value), f.Text(f.CI95[0]), f.Text(f.CI95[1]))
		} else {
			fmt.Fprintf(&b, "%.2f × %s | %.2f–%.2f | ", f.Value, []string{"raw", "kubelet"}[w.to], f.CI95[0], f.CI95[1])
		}
		fmt.Fprintf(&b, "%s | %s | %s |\n", limit(f, f.Limit), limit(f, f.Aim), verdict(f))
	}
	return b.String()
}

// text is an arm's median.
func (w row) text(r *result.Report, which int) string {
	a := w.arm(r, which)
	if a == nil {
		return ""
	}
	if a.Unit == "ms" {
		return milliseconds(a.Median)
	}
	return (&result.Figure{Unit: w.unit}).Text(a.Median)
}

func milliseconds(ms float64) string {
	switch {
	case math.Abs(ms) >= 10_000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case math.Abs(ms) >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case math.Abs(ms) < 10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

func limit(f *result.Figure, v float64) string {
	if v == 0 {
		return ""
	}
	return "≤ " + f.Text(v)
}

func verdict(f *result.Figure) string {
	switch {
	case f.Limit == 0:
		return ""
	case !f.OK:
		return "**not met**"
	case f.Aim != 0 && f.Value <= f.Aim:
		return "met, and the aim"
	}
	return "met"
}
