package main

import (
	"fmt"
	"strings"

	"github.com/nodectl/nodectl/test/report"
)

// The arms of a row.
const (
	raw = iota
	theirs
	ours
)

// rows are the lines in the order of the table, then those that it does not require.
var rows = []report.Row{
	row(1, "single start, no volume", []string{"raw, S0", "kubelet, S0", "nodectl, S0"}, raw, "", 1.25, 1.10),
	row(1, "single start, with emptyDir", []string{"raw, S2", "kubelet, S2", "nodectl, S2"}, raw, "", 1.35, 1.10),
	row(2, "50 at once, first", []string{"raw, first", "kubelet, first", "nodectl, first"}, theirs, "", 0.4, 0.25),
	row(2, "50 at once, p50", []string{"raw, p50", "kubelet, p50", "nodectl, p50"}, theirs, "", 0.8, 0.6),
	row(2, "50 at once, last", []string{"raw, last", "kubelet, last", "nodectl, last"}, theirs, "", 1.0, 0.9),
	row(4, "crash → replacement, first crash", []string{"raw", "kubelet", "nodectl"}, raw, "", 2, 1.2),
	row(5, "manifest gone → nothing left, beyond the grace", []string{"raw", "kubelet", "nodectl"}, ours, "ms", 500, 300),
	row(6, "idle CPU a minute at 50 pods, agent", []string{"", "kubelet, 50 pods", "nodectl, 50 pods"}, theirs, "", 0.15, 0.05),
	row(6, "… containerd beside it", []string{"", "kubelet, 50 pods, containerd", "nodectl, 50 pods, containerd"}, theirs, "", 1, 0),
	row(6, "idle CPU a minute at 110 pods, agent", []string{"", "kubelet, 110 pods", "nodectl, 110 pods"}, theirs, "", 0.15, 0.05),
	row(6, "… containerd beside it", []string{"", "kubelet, 110 pods, containerd", "nodectl, 110 pods, containerd"}, theirs, "", 1, 0),
	row(7, "memory (RssAnon) at 110 pods", []string{"", "kubelet, 110 pods, RssAnon", "nodectl, 110 pods, RssAnon"}, theirs, "MB", 0.4, 0.2),
	row(8, "CRI calls a second, idle, 50 pods", []string{"", "kubelet, 50 pods", "nodectl, 50 pods"}, ours, "/s", 0.5, 0.1),
	row(8, "CRI calls a second, idle, 110 pods", []string{"", "kubelet, 110 pods", "nodectl, 110 pods"}, ours, "/s", 0.5, 0.1),
	row(9, "agent restart at 110 pods → all reported right", []string{"", "kubelet", "nodectl"}, theirs, "", 0.8, 0.25),

	row(9, "… its CPU until then", []string{"", "kubelet, its CPU until then", "nodectl, its CPU until then"}, theirs, "", 0, 0),
	row(9, "… pods said not to be Ready meanwhile", []string{"", "kubelet, pods that were said not to be Ready", "nodectl, pods that were said not to be Ready"}, ours, "pods", 0, 0),
	row(7, "memory (VmRSS) at 110 pods", []string{"", "kubelet, 110 pods, VmRSS", "nodectl, 110 pods, VmRSS"}, theirs, "MB", 0, 0),
	row(15, "size of the program", []string{"", "kubelet, MB", "nodectl, MB"}, theirs, "MB", 0, 0),
	row(16, "cold start → first container", []string{"", "kubelet", "nodectl"}, theirs, "", 0, 0),
}

func row(measure int, metric string, arms []string, to int, unit string, must, aim float64) report.Row {
	return report.Row{Measure: measure, Metric: metric, Arms: arms, To: to, Unit: unit, Must: must, Aim: aim}
}

// addFigures puts every row's figure into its measure.
func addFigures(r *report.Report) { report.SetFigures(r, rows) }

// table writes the rows that were measured.
func table(r *report.Report) string {
	var b strings.Builder
	b.WriteString("| | metric | raw | kubelet | nodectl | figure | 95 % | must | aim | |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, w := range rows {
		f := w.Figure(r)
		if f == nil {
			continue
		}
		fmt.Fprintf(&b, "| M%d | %s | %s | %s | %s | ", w.Measure, w.Metric, w.Text(r, raw), w.Text(r, theirs), w.Text(r, ours))
		if w.To == ours {
			fmt.Fprintf(&b, "%s | %s–%s | ", f.Text(f.Value), f.Text(f.CI95[0]), f.Text(f.CI95[1]))
		} else {
			fmt.Fprintf(&b, "%.2f × %s | %.2f–%.2f | ", f.Value, w.ToArm(), f.CI95[0], f.CI95[1])
		}
		fmt.Fprintf(&b, "%s | %s | %s |\n", f.LimitText(f.Limit), f.LimitText(f.Aim), f.Outcome())
	}
	return b.String()
}
