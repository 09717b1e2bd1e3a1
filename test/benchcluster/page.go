package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/node"
)

// row is one line of the table: nodectl's median divided by the kubelet's.
type row struct {
	measure int
	metric  string
	suffix  string // of both arms' names
	unit    string // of what is not a duration
	limit   float64
}

// rows are the lines for what was measured.
func rows(r *result.Report) []row {
	all := []row{{singleID, "create → Running, one pod", "", "", 0.9}}
	for _, m := range r.Measures {
		if m.ID > batchID {
			all = append(all,
				row{m.ID, fmt.Sprintf("create → Running, %d at once, last", m.ID-batchID), ", last", "", 0.9},
				row{m.ID, "… p50", ", p50", "", 0},
				row{m.ID, "… first", ", first", "", 0},
				row{m.ID, "… the agent's CPU until then", ", its CPU until then", "", 0})
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
	for _, m := range r.Measures {
		m.Figures = nil
	}
	for _, w := range rows(r) {
		if f := w.figure(r); f != nil {
			m := r.Find(w.measure)
			m.Figures = append(m.Figures, f)
		}
	}
}

// page is the report for people: what docs/benchmarks.md holds.
func page(r *result.Report) string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "Taken on %s on %s, %s memory, Linux %s, cgroup %s; %s, runc %s, %s; kubelet %s (%s), nodectl %s (%s), %s.\n\n",
		r.Time.Format("2006-01-02"), m["cpu"], m["memory"], m["kernel"], m["cgroup"], m["runtime"], m["runc"], m["containerd"],
		m["kubelet version"], m["kubelet"], m["commit"], m["nodectl"], m["go"])
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
		loud := ""
		if !m.Quiet() {
			loud = " — NOT QUIET, provisional"
		}
		fmt.Fprintf(&b, "- %s: %s. Before it began: %s%s\n", m.Name, m.Method, m.Noise, loud)
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

// The lines of docs/benchmarks.md between which this command writes.
const (
	markBegin = "<!-- begin: make bench-cluster -->\n"
	markEnd   = "<!-- end: make bench-cluster -->\n"
)

// whole returns an error for what a page for readers lacks.
func whole(r *result.Report) error {
	if r.Quick {
		return errors.New("a quick run shows that it works, not how fast anything is")
	}
	for _, id := range []int{singleID, batchID + 50, batchID + 110, idleID, memoryID} {
		if r.Find(id) == nil {
			return errors.New("a part is missing: the docs are of one whole run")
		}
	}
	return nil
}

// publish writes the page into docs/benchmarks.md.
func publish(r *result.Report) error {
	if err := whole(r); err != nil {
		return fmt.Errorf("docs are not written: %w", err)
	}
	file := filepath.Join(node.Repo(), "docs/benchmarks.md")
	doc, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := insert(string(doc), page(r))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// insert puts a text between the marks.
func insert(doc, text string) (string, error) {
	before, rest, ok := strings.Cut(doc, markBegin)
	_, after, ended := strings.Cut(rest, markEnd)
	if !ok || !ended {
		return "", fmt.Errorf("no lines %q and %q", strings.TrimSpace(markBegin), strings.TrimSpace(markEnd))
	}
	return before + markBegin + text + markEnd + after, nil
}
