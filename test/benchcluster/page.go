package main

import (
	"fmt"
	"strings"

	"github.com/nodectl/nodectl/test/report"
)

// rows are the table's lines for the measures taken: nodectl's median divided by the
// kubelet's, of both arms with a suffix.
func rows(r *report.Report) (all []report.Row) {
	add := func(measure int, metric, suffix, unit string, limit float64) {
		all = append(all, report.Row{Measure: measure, Metric: metric, Arms: []string{"kubelet" + suffix, "nodectl" + suffix}, Unit: unit, Must: limit})
	}
	add(singleID, "create → Running, one pod", "", "", 0.9)
	for _, m := range r.Measures {
		if m.ID > batchID {
			add(m.ID, fmt.Sprintf("create → Running, %d at once, last", m.ID-batchID), ", last", "", 0.9)
			add(m.ID, "… p50", ", p50", "", 0)
			add(m.ID, "… first", ", first", "", 0)
			add(m.ID, "… the agent's CPU until then", ", its CPU until then", "", 0)
			add(m.ID, "… the API server's and etcd's", ", control plane's CPU", "", 0)
			add(m.ID, "… the whole machine's", ", the machine's CPU", "", 0)
		}
	}
	add(memoryID, "memory, RssAnon", ", RssAnon", "MB", 0.4)
	add(memoryID, "… Pss", ", Pss", "MB", 0)
	add(memoryID, "… VmRSS", ", VmRSS", "MB", 0)
	add(idleID, "idle CPU a minute, agent", "", "", 0.2)
	add(idleID, "… containerd beside it", ", containerd beside it", "", 0)
	// Limits of bytes, not of a ratio: the kubelet may write none either. 0.0005 kB stands for 0.
	for _, w := range []report.Row{
		{Metric: fmt.Sprintf("disk writes in ten minutes at %d pods, agent", restPods), Arms: []string{"kubelet, written", "nodectl, written"}, Must: 0.0005},
		{Metric: "… containerd beside it", Arms: []string{"kubelet, containerd's", "nodectl, containerd's"}, Must: 64},
	} {
		w.Measure, w.To, w.Unit = writesID, 1, "kB"
		all = append(all, w)
	}
	return all
}

// addFigures puts every row's figure into its measure.
func addFigures(r *report.Report) { report.SetFigures(r, rows(r)) }

// section is the part of the docs that this command writes.
var section = report.Section{Command: "make bench-cluster", Needs: []int{singleID, batchID + 50, batchID + 110, idleID, memoryID, writesID}}

// text returns the report for people, which docs/benchmarks.md contains.
func text(r *report.Report) string {
	var b strings.Builder
	b.WriteString(report.Origin(r))
	b.WriteString("| metric | kubelet | nodectl | nodectl / kubelet | 95 % | must | |\n|---|---|---|---|---|---|---|\n")
	for _, w := range rows(r) {
		if f := w.Figure(r); f != nil {
			fmt.Fprintf(&b, "| %s | %s | %s | %.2f | %.2f–%.2f | %s | %s |\n", w.Metric, w.Text(r, 0), w.Text(r, 1), f.Value, f.CI95[0], f.CI95[1], f.LimitText(f.Limit), f.Outcome())
		}
	}
	b.WriteString(report.Samples(r, "| samples of | arm |", func(m *report.Measure) string { return m.Name }, 0, 0.5, 0.9, 1))
	for _, m := range r.Measures {
		fmt.Fprintf(&b, "- %s: %s. Before it began: %s\n", m.Name, m.Method, m.NoiseText())
	}
	return b.String()
}
