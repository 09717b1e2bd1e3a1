package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/compare"
)

// A comparison is of one case with both agents.
type comparison struct {
	c        *Case
	a, b     *CaseRecord // the kubelet's and nodectl's
	na, nb   *normaliser
	found    compare.Differences
	matching [][2]*Run // the same run of the same container
}

// compareCase returns how the agents differ in one case.
func compareCase(c *Case, a, b *CaseRecord, na, nb *normaliser) []compare.Difference {
	k := &comparison{c: c, a: a, b: b, na: na, nb: nb, found: compare.Differences{Quote: true}}
	names, _ := c.pods()
	var both []string
	for _, name := range names {
		p, q := a.Pods[name], b.Pods[name]
		switch {
		case p == nil || q == nil:
			k.differ("recorded", "%s: only with one of the two", name)
		case len(p.Seen) == 0 && len(q.Seen) == 0:
			if !c.Refused { // both refuse, but for different reasons
				k.differ("recorded", "%s: neither takes the manifest: %s", name, reasons(a.Said))
			}
		case c.Refused && len(p.Seen) > 0 && len(q.Seen) > 0:
			k.differ("recorded", "%s: both take the manifest", name)
		case len(q.Seen) == 0 && len(q.Runs) == 0 && (len(p.Seen) > 0 || len(p.Runs) > 0):
			k.differ("refused", "%s: nodectl does not take the manifest: %s", name, reasons(b.Said))
		case len(p.Seen) == 0 && len(p.Runs) == 0 && (len(q.Seen) > 0 || len(q.Runs) > 0):
			k.differ("refused", "%s: the kubelet does not take the manifest: %s", name, reasons(a.Said))
		default:
			both = append(both, name)
		}
	}
	k.facts("cgroup", "above all pods", a.Tiers, b.Tiers)
	k.events(both)
	k.expected(both)
	for _, name := range both {
		k.ends(name, a.Pods[name], b.Pods[name])
		k.progress(name, a.Pods[name], b.Pods[name])
		k.last(name, a.Pods[name], b.Pods[name])
		k.asked(name, a.Pods[name], b.Pods[name])
		k.insides(name, a.Pods[name], b.Pods[name])
		k.logs(name, a.Pods[name], b.Pods[name])
		k.left(name, a.Pods[name], b.Pods[name])
	}
	return k.found.All
}

// reasons shortens an agent's log lines about a manifest.
func reasons(said []string) string {
	var out []string
	for _, s := range said {
		for _, from := range []string{"err=", " path="} {
			if _, rest, ok := strings.Cut(s, from); ok {
				s = rest
				break
			}
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return "it does not say why"
	}
	return strings.Join(out, "; ")
}

// of is a difference of the case in an aspect.
func (k *comparison) of(aspect string) compare.Difference {
	return compare.Difference{Case: k.c.Name, API: k.c.API, Aspect: aspect}
}

func (k *comparison) differ(aspect, format string, args ...any) {
	k.found.Add(k.of(aspect), format, args...)
}

// An event is the start or the end of one run of a container, or the creation of a sandbox.
type event struct {
	key  string // the same with both agents
	how  string // it ended
	pod  string
	kind byte // start, end, box
	at   time.Duration
}

// eventsOf returns the events of a case, in order.
func eventsOf(c *CaseRecord, pods []string) []event {
	var out []event
	add := func(kind byte, pod, key, how string, at time.Time) {
		out = append(out, event{pod + ": " + key, how, pod, kind, at.Sub(c.Zero)})
	}
	for _, name := range pods {
		p := c.Pods[name]
		for i, s := range p.Sandboxes {
			add('b', name, fmt.Sprintf("sandbox %d is made", i+1), "", s.Created)
		}
		for _, r := range lives(p) {
			if r.Started.IsZero() {
				add('s', name, r.name+" is made and does not start", "", r.Created)
				continue
			}
			add('s', name, r.name+" starts", "", r.Started)
			if !r.Finished.IsZero() {
				add('e', name, r.name+" ends", fmt.Sprintf("%d %s", r.Exit, r.Reason), r.Finished)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b event) int { return int(a.at - b.at) })
	return out
}

// A life is a run with a name that distinguishes it from the container's other runs.
type life struct {
	*Run
	name string
}

func lives(p *PodRecord) []life {
	count := map[string]int{}
	var out []life
	for _, r := range p.Runs {
		count[r.Container]++
		out = append(out, life{r, fmt.Sprintf("%s %d", r.Container, count[r.Container])})
	}
	return out
}

// events compares which containers started and ended, in which order and when.
func (k *comparison) events(pods []string) {
	ea, eb := eventsOf(k.a, pods), eventsOf(k.b, pods)
	at := map[string]time.Duration{}
	for _, e := range eb {
		at[e.key] = e.at
	}
	known := map[string]bool{}
	for _, e := range ea {
		known[e.key] = true
	}
	k.missing(ea, func(key string) bool { _, ok := at[key]; return ok }, k.a, "the kubelet's", "nodectl's")
	k.missing(eb, func(key string) bool { return known[key] }, k.b, "nodectl's", "the kubelet's")
	for i, e := range ea {
		tb, ok := at[e.key]
		if !ok {
			continue
		}
		for _, f := range ea[i+1:] {
			apart := 300 * time.Millisecond
			if e.kind == 's' && f.kind == 's' && e.pod == f.pod {
				apart = 30 * time.Millisecond // one after the other, in one go
			}
			if g, ok := at[f.key]; ok && f.at-e.at > apart && tb-g > 30*time.Millisecond {
				k.differ("order", "%s before %s; nodectl: %s after", e.key, f.key, compare.Seconds(tb-g))
			}
		}
		k.when(ea[:i], e, at, tb)
	}
}

// missing returns the events of only one agent, except those that would have come after the
// manifests were removed.
func (k *comparison) missing(events []event, has func(string) bool, c *CaseRecord, whose, other string) {
	for _, e := range events {
		if has(e.key) {
			continue
		}
		if late := c.Gone.Sub(c.Zero) - k.c.Within.Duration; e.at > late && e.kind != 'e' {
			continue
		}
		if e.kind == 'e' && !has(strings.TrimSuffix(e.key, "ends")+"starts") {
			continue // reported with its start
		}
		k.differ("events", "%s after %s in %s run, not in %s", e.key, compare.Seconds(e.at), whose, other)
	}
}

// when compares the time between an event and the one before it.
func (k *comparison) when(earlier []event, e event, at map[string]time.Duration, tb time.Duration) {
	from, fromB, what := time.Duration(0), time.Duration(0), "the manifest appears"
	for _, f := range earlier {
		if t, ok := at[f.key]; ok && f.pod == e.pod && f.at >= from {
			from, fromB, what = f.at, t, f.key
		}
	}
	for i, m := range k.a.Moments {
		if t := m.At.Sub(k.a.Zero); t >= from && t <= e.at && i < len(k.b.Moments) {
			from, fromB, what = t, k.b.Moments[i].At.Sub(k.b.Zero), m.What
		}
	}
	if t := k.a.Gone.Sub(k.a.Zero); t >= from && t <= e.at {
		from, fromB, what = t, k.b.Gone.Sub(k.b.Zero), "the manifest is gone"
	}
	da, db := e.at-from, tb-fromB
	if tolerance := k.c.Within.Duration + max(da, db)*15/100; (da - db).Abs() > tolerance {
		k.differ("times", "%s %s after %s; nodectl %s", e.key, compare.Seconds(da), what, compare.Seconds(db))
	}
}

// ends compares how each run of each container ended, and how it was stopped.
func (k *comparison) ends(name string, p, q *PodRecord) {
	other := map[string]life{}
	for _, r := range lives(q) {
		other[r.name] = r
	}
	for _, r := range lives(p) {
		o, ok := other[r.name]
		if !ok {
			continue
		}
		k.matching = append(k.matching, [2]*Run{r.Run, o.Run})
		if r.Finished.IsZero() != o.Finished.IsZero() {
			continue // events reports that
		}
		if r.Exit != o.Exit || r.Reason != o.Reason {
			k.differ("exits", "%s: %s ends with %d %s; nodectl %d %s", name, r.name, r.Exit, r.Reason, o.Exit, o.Reason)
		}
		if r.Attempt != o.Attempt {
			k.differ("restarts", "%s: %s has attempt %d; nodectl %d", name, r.name, r.Attempt, o.Attempt)
		}
		switch {
		case r.Asked.IsZero() != o.Asked.IsZero():
			k.differ("stops", "%s: %s is asked to stop: %t; nodectl %t", name, r.name, !r.Asked.IsZero(), !o.Asked.IsZero())
		case (r.Grace-o.Grace) > 1 || (o.Grace-r.Grace) > 1:
			k.differ("stops", "%s: %s is given %d s to stop; nodectl %d s", name, r.name, r.Grace, o.Grace)
		}
	}
}
