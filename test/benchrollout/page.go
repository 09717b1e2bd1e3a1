package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/report"
)

// section is the part of the docs that this command writes. Its measures are those of the arms that
// need no packages of Debian.
var section = report.Section{Command: "make bench-rollout", Needs: []int{updatesID, badID, updatesOf(1), badOf(1)}}

// none is the limit of figures that have to be 0: a limit of 0 stands for none.
const none = 0.5

// addFigures adds the figures to the measures that were taken. Only nodectl has limits.
func addFigures(r *report.Report, deadline time.Duration) {
	for _, m := range r.Measures {
		m.Figures = nil
		if m.Lookup(failedKept) == nil {
			continue // it was interrupted, or its arm is absent
		}
		failed, back := none, deadline.Seconds()+1
		if m.ID > firstIDs {
			failed, back = 0, 0
		}
		m.Max(failedKept, failed, "requests")
		m.Max(failedFresh, failed, "requests")
		if m.ID%firstIDs == updatesID {
			m.Max(updateTook, 0, "ms")
			continue
		}
		m.Max(slowest, back, "s")
	}
}

// text returns the report for people, which docs/benchmarks.md contains.
func text(r *report.Report) string {
	var b strings.Builder
	b.WriteString(report.Origin(r) + comparison(r) + "| measure | figure | value | smallest–largest | limit | |\n|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, f := range m.Figures {
			limit := f.LimitText(f.Limit)
			if f.Limit == none {
				limit = "0"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s–%s | %s | %s |\n", m.Name, f.Name, f.Text(f.Value), f.Text(f.CI95[0]), f.Text(f.CI95[1]), limit, f.Outcome())
		}
	}
	label := func(m *report.Measure) string { return m.Name }
	b.WriteString(report.Samples(r, "| samples of | series |", label, 0, 0.5, 0.9, 1))
	for _, m := range r.Measures {
		fmt.Fprintf(&b, "- %s: %s.\n", m.Name, m.Method)
	}
	return b.String() + report.Notes(r, label)
}

// column has the measures of an arm; nil for one that was not taken.
type column struct {
	name         string
	updates, bad *report.Measure
}

// columns returns the arms of which a measure was taken.
func columns(r *report.Report) (all []column) {
	taken := func(id int) *report.Measure {
		if m := r.Find(id); m != nil && m.Lookup(failedKept) != nil {
			return m
		}
		return nil
	}
	for i, k := range kinds {
		if c := (column{k.name, taken(updatesOf(i)), taken(badOf(i))}); c.updates != nil || c.bad != nil {
			all = append(all, c)
		}
	}
	return all
}

// comparison is a table of all arms, "" if there is only one. A median has nodectl's median divided
// by it in parentheses.
func comparison(r *report.Report) string {
	all := columns(r)
	if len(all) < 2 {
		return ""
	}
	updates := func(c column) *report.Measure { return c.updates }
	versions := func(c column) *report.Measure { return c.bad }
	var b strings.Builder
	row := func(name string, cell func(c column) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, c := range all {
			b.WriteString(" " + cell(c) + " |")
		}
		b.WriteString("\n")
	}
	row("", func(c column) string { return c.name })
	row("---", func(column) string { return "---" })
	for _, part := range []struct {
		name, series string
		of           func(column) *report.Measure
	}{{"updates", updateTook, updates}, {"bad versions", slowest, versions}} {
		row(part.name, func(c column) string { return rounds(part.of(c), part.series) })
		row("failed requests, "+part.name, func(c column) string { return failures(part.of(c)) })
		row("requests that were left out, "+part.name, func(c column) string { return value(part.of(c), leftOut) })
		if part.name == "updates" {
			row("an update, median", func(c column) string { return medianOf(all[0], c, updates, updateTook) })
			continue
		}
		for _, kind := range badKinds {
			row(kind+": failed requests a version, mean", func(c column) string { return mean(versions(c), "failed requests a round, "+kind) })
			row(kind+": complete again, median", func(c column) string { return medianOf(all[0], c, versions, backTook+kind) })
		}
	}
	return b.String() + "\n"
}

// rounds is how many rounds a measure had.
func rounds(m *report.Measure, series string) string {
	if m == nil {
		return ""
	}
	n := 0
	for _, a := range m.Arms {
		if a.Name == series && series == updateTook || strings.HasPrefix(a.Name, backTook) {
			n += a.N
		}
	}
	return fmt.Sprint(n)
}

// failures is how many requests of a measure failed, and of how many.
func failures(m *report.Measure) string {
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%.0f of %.0f", m.Arm(failedKept).Median+m.Arm(failedFresh).Median, m.Arm(sent).Median)
}

// value is the only sample of a series.
func value(m *report.Measure, series string) string {
	if m == nil || m.Lookup(series) == nil {
		return ""
	}
	return fmt.Sprintf("%.0f", m.Lookup(series).Median)
}

// mean is the mean of a series.
func mean(m *report.Measure, series string) string {
	if m == nil || m.Lookup(series) == nil {
		return ""
	}
	sum := 0.0
	for _, v := range m.Lookup(series).Samples {
		sum += v
	}
	return fmt.Sprintf("%.1f", sum/float64(m.Lookup(series).N))
}

// medianOf is the median of a series of durations, with the ratio of nodectl's median to it.
func medianOf(first, c column, of func(column) *report.Measure, series string) string {
	if of(c) == nil || of(c).Lookup(series) == nil {
		return ""
	}
	median := of(c).Lookup(series).Median
	text := fmt.Sprintf("%.1f s", median/1000)
	if first.name != kinds[0].name || c.name == first.name || of(first) == nil || of(first).Lookup(series) == nil || median == 0 {
		return text
	}
	return fmt.Sprintf("%s (%.2f)", text, of(first).Lookup(series).Median/median)
}
