package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// An expectation is one line of a case's field nodectl.
type expectation struct {
	text string
	at   time.Duration // since the case's first container started; 0 is any time
}

func parseExpectation(line string) (expectation, error) {
	text, at, timed := strings.Cut(line, " at ")
	if !timed {
		return expectation{text: text}, nil
	}
	d, err := time.ParseDuration(at)
	return expectation{text, d}, err
}

// expected compares nodectl's actions with the case's field nodectl.
func (k *comparison) expected(pods []string) {
	if k.c.Nodectl == nil {
		return
	}
	got := k.done(pods)
	fits := len(got) == len(k.c.Nodectl)
	for i := 0; fits && i < len(got); i++ {
		want, err := parseExpectation(k.c.Nodectl[i])
		fits = err == nil && got[i].text == want.text && (want.at == 0 || (got[i].at-want.at).Abs() <= k.c.Within.Duration)
	}
	if fits {
		return
	}
	var lines []string
	for _, g := range got {
		line := g.text
		if g.at > 0 {
			line += " at " + g.at.Round(100*time.Millisecond).String()
		}
		lines = append(lines, line)
	}
	k.differ("nodectl", "%s; expected %s", strings.Join(lines, "; "), strings.Join(k.c.Nodectl, "; "))
}

// done lists nodectl's actions while the manifests existed, and its last report of the pods.
// A case of one pod does not name it.
func (k *comparison) done(pods []string) []expectation {
	var done []expectation
	add := func(pod, text string, at time.Duration) {
		if len(pods) > 1 {
			text = pod + ": " + text
		}
		done = append(done, expectation{text, at})
	}
	events := eventsOf(k.b, pods)
	var from time.Duration
	if i := slices.IndexFunc(events, func(e event) bool { return e.kind == 's' }); i >= 0 {
		from = events[i].at
	}
	for _, e := range events {
		if e.at >= k.b.Gone.Sub(k.b.Zero) {
			continue
		}
		_, text, _ := strings.Cut(e.key, ": ")
		if e.how != "" {
			text += " with " + strings.TrimSpace(e.how)
		}
		add(e.pod, text, e.at-from)
	}
	for _, pod := range pods {
		s := k.b.Pods[pod].final(k.b)
		if s == nil || gone(k.b.Pods[pod], k.b) {
			continue
		}
		ready := ""
		if i := slices.IndexFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady }); i >= 0 {
			ready = string(s.Conditions[i].Status)
		}
		add(pod, fmt.Sprintf("the pod is %s, ready %s", phase(s), ready), 0)
		for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
			add(pod, fmt.Sprintf("%s is %s, restarts %d, last %s", c.Name, state(c.State), c.RestartCount, state(c.LastTerminationState)), 0)
		}
	}
	return done
}

// gone reports whether an agent no longer reported a pod when the case's manifests were
// removed.
func gone(p *PodRecord, c *CaseRecord) bool {
	return p.Seen[len(p.Seen)-1].To.Before(c.Gone.Add(-noticed))
}

// final returns an agent's last status before a case's manifests were removed, and nil if
// there is none.
func (p *PodRecord) final(c *CaseRecord) *v1.PodStatus {
	for i := range slices.Backward(p.Seen) {
		if p.Seen[i].From.Before(c.Gone) {
			return &p.Seen[i].Status
		}
	}
	return nil
}
