package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// story writes the behaviour of an agent in one case as a list, to explain a difference.
func story(out io.Writer, c *Case, r *Recording) {
	rec := r.Cases[c.Name]
	if rec == nil {
		return
	}
	n := newNormaliser(r)
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	add := func(at time.Time, format string, args ...any) {
		lines = append(lines, line{at.Sub(rec.Zero), fmt.Sprintf(format, args...)})
	}
	names, _ := c.pods()
	for _, e := range eventsOf(rec, names) {
		lines = append(lines, line{e.at, e.key})
	}
	for _, m := range rec.Moments {
		add(m.At, "— %s —", m.What)
	}
	add(rec.Gone, "— the manifests are gone —")
	for _, name := range names {
		p := rec.Pods[name]
		if p == nil {
			continue
		}
		for _, run := range lives(p) {
			if !run.Asked.IsZero() {
				add(run.Asked, "%s: %s is asked to stop within %d s", name, run.name, run.Grace)
			}
			if !run.Finished.IsZero() {
				add(run.Finished, "%s: %s ended with %d %s", name, run.name, run.Exit, run.Reason)
			}
		}
		when := func(what string, of func(*v1.PodStatus) string) {
			for _, s := range n.stretches(rec, p, of) {
				lines = append(lines, line{s.From, fmt.Sprintf("    %s: %s is %s", name, what, s.Is)})
			}
		}
		when("phase", func(s *v1.PodStatus) string { return string(s.Phase) + " " + s.Reason + " " + s.Message })
		when("Ready", func(s *v1.PodStatus) string {
			for _, c := range s.Conditions {
				if c.Type == v1.PodReady {
					return string(c.Status) + " " + c.Reason
				}
			}
			return ""
		})
		for _, cn := range containersOf(p) {
			when(cn, func(s *v1.PodStatus) string {
				for _, cs := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
					if cs.Name == cn {
						return fmt.Sprintf("%s, ready %t, restarts %d, last %s", state(cs.State), cs.Ready, cs.RestartCount, state(cs.LastTerminationState))
					}
				}
				return ""
			})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	fmt.Fprintf(out, "%s, %s\n", c.Name, r.Arm)
	for _, l := range lines {
		fmt.Fprintf(out, "  %7.2f  %s\n", l.at.Seconds(), l.text)
	}
	for _, s := range rec.Said {
		fmt.Fprintf(out, "  said: %s\n", s)
	}
}
