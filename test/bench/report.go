package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nodectl/nodectl/test/report"
)

// markdown returns the report for people, which docs/benchmarks.md contains.
func markdown(r *report.Report) string {
	var b strings.Builder
	b.WriteString(report.Origin(r) + "| | measure | figure | value | 95 % | limit | |\n|---|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, f := range m.Figures {
			fmt.Fprintf(&b, "| %d | %s | %s | %s | %s–%s | %s | %s |\n", m.ID, m.Name, f.Name, f.Text(f.Value), f.Text(f.CI95[0]), f.Text(f.CI95[1]), f.LimitText(f.Limit), f.Outcome())
		}
	}
	label := func(m *report.Measure) string { return strconv.Itoa(m.ID) }
	return b.String() + report.Samples(r, "| | samples of |", label, 0.5, 0, 0.9, 1) + report.Notes(r, label)
}
