package main

import (
	"fmt"
	"strings"

	"github.com/nodectl/nodectl/test/bench/result"
)

// markdown is the report for people: what docs/benchmarks.md holds.
func markdown(r *result.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %s memory, Linux %s, cgroup %s; %s, runc %s, %s; nodectl %s (%s), %s.\n\n",
		r.Time.Format("2006-01-02"), r.Machine["cpu"], r.Machine["memory"], r.Machine["kernel"], r.Machine["cgroup"],
		r.Machine["runtime"], r.Machine["runc"], r.Machine["containerd"], r.Machine["commit"], r.Machine["nodectl"], r.Machine["go"])
	b.WriteString("| | measure | figure | value | 95 % | limit | |\n|---|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, f := range m.Figures {
			limit, verdict := "≤ "+f.Text(f.Limit), "ok"
			switch {
			case f.Limit == 0:
				limit, verdict = "", ""
			case !f.OK:
				verdict = "**missed**"
			}
			fmt.Fprintf(&b, "| %d | %s | %s | %s | %s–%s | %s | %s |\n", m.ID, m.Name, f.Name, f.Text(f.Value), f.Text(f.CI95[0]), f.Text(f.CI95[1]), limit, verdict)
		}
	}
	b.WriteString("\n| | samples of | n | median | min | p90 | max |\n|---|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, a := range m.Arms {
			fmt.Fprintf(&b, "| %d | %s | %d | %s | %s | %s | %s |\n", m.ID, a.Name, a.N, a.Text(a.Median), a.Text(a.Low), a.Text(a.P90), a.Text(a.High))
		}
	}
	b.WriteString("\n")
	for _, m := range r.Measures {
		loud := ""
		if !m.Quiet() {
			loud = " — NOT QUIET, provisional"
		}
		fmt.Fprintf(&b, "- %d before it began: %s%s\n", m.ID, m.Noise, loud)
		for _, n := range m.Notes {
			fmt.Fprintf(&b, "- %d %s\n", m.ID, n)
		}
	}
	return b.String()
}
