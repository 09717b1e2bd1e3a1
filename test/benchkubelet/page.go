package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/test/bench/page"
	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/node"
)

// section is the part of the docs that this command writes.
var section = page.Section{Command: "make bench-kubelet", Needs: allMeasures()}

// text is the report for people: what docs/benchmarks.md holds.
func text(r *result.Report) string {
	var b strings.Builder
	b.WriteString(page.Origin(r))
	b.WriteString(table(r))
	b.WriteString("\n| | samples of | n | min | p50 | p90 | p99 | max |\n|---|---|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, a := range m.Arms {
			if a.Name == result.Between {
				continue
			}
			p99 := result.Quantile(a.Samples, 0.99)
			fmt.Fprintf(&b, "| M%d | %s | %d | %s | %s | %s | %s | %s |\n", m.ID, a.Name, a.N, a.Text(a.Low), a.Text(a.Median), a.Text(a.P90), a.Text(p99), a.Text(a.High))
		}
	}
	b.WriteString("\n")
	for _, m := range r.Measures {
		fmt.Fprintf(&b, "- M%d before it began: %s\n", m.ID, page.Noise(m))
		for _, n := range m.Notes {
			fmt.Fprintf(&b, "- M%d %s\n", m.ID, n)
		}
	}
	return b.String()
}

// publish writes the page into docs/benchmarks.md, and the plots beside it.
func publish(r *result.Report) error {
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

// plots are the figures of the page.
func plots(r *result.Report) []plot {
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
					s.points = append(s.points, point{float64(pods), result.Quantile(all, 0.5)})
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

func samples(r *result.Report, m int, arm string) []float64 {
	measure := r.Find(m)
	if measure == nil {
		return nil
	}
	if a := measure.Lookup(arm); a != nil {
		return a.Samples
	}
	return nil
}
