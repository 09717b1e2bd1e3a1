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

// The lines of docs/benchmarks.md between which this command writes.
const (
	markBegin = "<!-- begin: make bench-kubelet -->\n"
	markEnd   = "<!-- end: make bench-kubelet -->\n"
)

// page is the report for people: what docs/benchmarks.md holds.
func page(r *result.Report) string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "Taken on %s on %s, %s memory, Linux %s, cgroup %s; %s, runc %s, %s; kubelet %s (%s), nodectl %s (%s), %s.\n\n",
		r.Time.Format("2006-01-02"), m["cpu"], m["memory"], m["kernel"], m["cgroup"], m["runtime"], m["runc"], m["containerd"],
		m["kubelet version"], m["kubelet"], m["commit"], m["nodectl"], m["go"])
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
		loud := ""
		if !m.Quiet() {
			loud = " — NOT QUIET, provisional"
		}
		fmt.Fprintf(&b, "- M%d before it began: %s%s\n", m.ID, m.Noise, loud)
		for _, n := range m.Notes {
			fmt.Fprintf(&b, "- M%d %s\n", m.ID, n)
		}
	}
	return b.String()
}

// whole returns an error for what a page for readers lacks.
func whole(r *result.Report) error {
	if r.Quick {
		return errors.New("a quick run shows that it works, not how fast anything is")
	}
	for _, n := range allMeasures() {
		if r.Find(n) == nil {
			return fmt.Errorf("M%d is missing; --continue adds it", n)
		}
	}
	return nil
}

// publish writes the page into docs/benchmarks.md, and the plots beside it.
func publish(o options, r *result.Report) error {
	if !o.docs {
		return nil
	}
	if err := whole(r); err != nil {
		return fmt.Errorf("docs are not written: %w", err)
	}
	docs := filepath.Join(node.Repo(), "docs")
	if err := os.MkdirAll(filepath.Join(docs, "plots"), 0o755); err != nil {
		return err
	}
	var links strings.Builder
	for _, p := range plots(r) {
		if err := os.WriteFile(filepath.Join(docs, "plots", p.file), []byte(p.svg()), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&links, "![%s](plots/%s)\n", p.title, p.file)
	}
	file := filepath.Join(docs, "benchmarks.md")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	written, err := insert(string(text), page(r)+"\n"+links.String())
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(written), 0o644)
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
