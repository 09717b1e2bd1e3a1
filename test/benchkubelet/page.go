package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

// section is the part of the docs that this command writes.
var section = report.Section{Command: "make bench-kubelet", Needs: allMeasures()}

// text returns the report for people, which docs/benchmarks.md contains.
func text(r *report.Report) string {
	label := func(m *report.Measure) string { return "M" + strconv.Itoa(m.ID) }
	return report.Origin(r) + table(r) + report.Samples(r, "| | samples of |", label, 0, 0.5, 0.9, 0.99, 1) + report.Notes(r, label)
}

// publish writes the page into docs/benchmarks.md, and the plots beside it.
func publish(r *report.Report) error {
	var links strings.Builder
	for _, p := range plots(r) {
		fmt.Fprintf(&links, "![%s](plots/%s)\n", p.title, p.file)
	}
	if err := section.Write(r, text(r)+"\n"+links.String()); err != nil {
		return err
	}
	dir := filepath.Join(node.Repo(), "docs/plots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range plots(r) {
		if err := os.WriteFile(filepath.Join(dir, p.file), []byte(p.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// plots are the figures of the report.
func plots(r *report.Report) []plot {
	arms := []string{"raw", "kubelet", "nodectl"}
	curves := func(m int, log bool, title, suffix string) panel {
		p := panel{title: title, x: "ms", y: "share", log: log, top: 1}
		for _, a := range arms {
			p.series = append(p.series, distribution(a, samples(r, m, a+suffix)))
		}
		return p
	}
	over := func(m int, title, unit, suffix string) panel {
		p := panel{title: title, x: "pods", y: unit}
		for _, a := range arms[1:] {
			s := series{name: a, dots: true}
			for _, pods := range fleets {
				if all := samples(r, m, fmt.Sprintf("%s, %d pods%s", a, pods, suffix)); len(all) > 0 {
					s.points = append(s.points, point{float64(pods), report.Quantile(all, 0.5)})
				}
			}
			p.series = append(p.series, s)
		}
		return p
	}
	return []plot{
		{"start.svg", "Single start: share of starts that took at most so long", []panel{
			curves(1, false, "S0: no volume", ", S0"), curves(1, false, "S2: emptyDir", ", S2")}},
		{"batch.svg", "50 at once: share of pods that ran by then", []panel{curves(2, false, "every pod of every round", ", every pod")}},
		{"crash.svg", "First crash: share of replacements that ran by then", []panel{curves(4, false, "SIGKILL → started", "")}},
		{"gone.svg", "Manifest gone: share of pods of which nothing was left by then, beyond the grace", []panel{curves(5, true, "unlink → nothing left", "")}},
		{"restart.svg", "Restart of the agent at 110 pods, and a cold start", []panel{
			curves(9, false, "exec → all reported right", ""), curves(16, false, "exec → first container", "")}},
		{"cost.svg", "What an idle agent costs", []panel{
			over(6, "CPU a minute", "ms", ""), over(7, "RssAnon", "MB", ", RssAnon"), over(8, "CRI calls", "a second", "")}},
	}
}

func samples(r *report.Report, m int, arm string) []float64 {
	measure := r.Find(m)
	if measure == nil {
		return nil
	}
	if a := measure.Lookup(arm); a != nil {
		return a.Samples
	}
	return nil
}
