package main

import (
	"fmt"
	"strings"

	"github.com/nodectl/nodectl/test/bench/page"
	"github.com/nodectl/nodectl/test/bench/result"
)

// row is one line of the table: nodectl's median divided by the kubelet's.
type row struct {
	measure int
	metric  string
	suffix  string // of both arms' names
	unit    string // if not a duration
	limit   float64
}

// rows are the table's lines for the measures taken.
func rows(r *result.Report) []row {
	all := []row{{singleID, "create → Running, one pod", "", "", 0.9}}
	for _, m := range r.Measures {
		if m.ID > batchID {
			all = append(all,
				row{m.ID, fmt.Sprintf("create → Running, %d at once, last", m.ID-batchID), ", last", "", 0.9},
				row{m.ID, "… p50", ", p50", "", 0},
				row{m.ID, "… first", ", first", "", 0},
				row{m.ID, "… the agent's CPU until then", ", its CPU until then", "", 0},
				row{m.ID, "… the API server's and etcd's", ", control plane's CPU", "", 0},
				row{m.ID, "… the whole machine's", ", the machine's CPU", "", 0})
		}
	}
	return append(all,
		row{memoryID, "memory, RssAnon", ", RssAnon", "MB", 0.4},
		row{memoryID, "… Pss", ", Pss", "MB", 0},
		row{memoryID, "… VmRSS", ", VmRSS", "MB", 0},
		row{idleID, "idle CPU a minute, agent", "", "", 0.2},
		row{idleID, "… containerd beside it", ", containerd beside it", "", 0})
}

// arms returns the kubelet's and nodectl's; nil where one was not measured.
func (w row) arms(r *result.Report) (theirs, ours *result.Arm) {
	m := r.Find(w.measure)
	if m == nil {
		return nil, nil
	}
	return m.Lookup("kubelet" + w.suffix), m.Lookup("nodectl" + w.suffix)
}

// figure makes the row's figure; nil when an arm was not measured.
func (w row) figure(r *result.Report) *result.Figure {
	theirs, ours := w.arms(r)
	if theirs == nil || ours == nil || theirs.Median == 0 {
		return nil
	}
	f := &result.Figure{Name: w.metric, Value: ours.Median / theirs.Median, CI95: result.RatioCI(ours.Samples, theirs.Samples), Limit: w.limit}
	f.OK = w.limit == 0 || f.Value <= w.limit
	return f
}

// addFigures puts every row's figure into its measure.
func addFigures(r *result.Report) {
	page.SetFigures(r, func(yield func(int, *result.Figure) bool) {
		for _, w := range rows(r) {
			if !yield(w.measure, w.figure(r)) {
				return
			}
		}
	})
}

// section is the part of the docs that this command writes.
var section = page.Section{Command: "make bench-cluster", Needs: []int{singleID, batchID + 50, batchID + 110, idleID, memoryID}}

// text is the report for people: what docs/benchmarks.md holds.
func text(r *result.Report) string {
	var b strings.Builder
	b.WriteString(page.Origin(r))
	b.WriteString("| metric | kubelet | nodectl | nodectl / kubelet | 95 % | must | |\n|---|---|---|---|---|---|---|\n")
	for _, w := range rows(r) {
		f := w.figure(r)
		if f == nil {
			continue
		}
		theirs, ours := w.arms(r)
		limit, verdict := "", ""
		if f.Limit != 0 {
			limit, verdict = fmt.Sprintf("≤ %.2f", f.Limit), "met"
			if !f.OK {
				verdict = "**not met**"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f | %.2f–%.2f | %s | %s |\n", w.metric, w.text(theirs), w.text(ours), f.Value, f.CI95[0], f.CI95[1], limit, verdict)
	}
	b.WriteString("\n| samples of | arm | n | min | p50 | p90 | max |\n|---|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, a := range m.Arms {
			if a.Name != result.Between {
				fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s |\n", m.Name, a.Name, a.N, a.Text(a.Low), a.Text(a.Median), a.Text(a.P90), a.Text(a.High))
			}
		}
	}
	b.WriteString("\n")
	for _, m := range r.Measures {
		fmt.Fprintf(&b, "- %s: %s. Before it began: %s\n", m.Name, m.Method, page.Noise(m))
	}
	return b.String()
}

// text is an arm's median.
func (w row) text(a *result.Arm) string {
	if w.unit != "" {
		return fmt.Sprintf("%.1f %s", a.Median, w.unit)
	}
	return a.Text(a.Median)
}
