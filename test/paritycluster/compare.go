package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Difference is one thing that the two clusters show differently.
type Difference struct {
	Case   string // a pod, or what else is looked at
	Aspect string // status, events, patches, meta, course, facts, names, requests
	What   string
}

func (d Difference) String() string { return d.Case + ": " + d.Aspect + ": " + d.What }

// brief is how long a value may last, in milliseconds, that one of the two never
// shows: what comes and goes faster is decided by when each looks, and how fast the
// machine is.
const brief = 2000

// compare lists what differs.
func compare(a, b *Recording) []Difference {
	k := &comparison{}
	for _, name := range keys(a.Pods, b.Pods) {
		p, q := a.Pods[name], b.Pods[name]
		if p == nil || q == nil {
			k.add(name, "object", "%s; nodectl %s", presence(p != nil), presence(q != nil))
			continue
		}
		k.pod(name, p, q)
	}
	for _, name := range keys(a.Course, b.Course) {
		if x, y := strings.Join(a.Course[name], "; "), strings.Join(b.Course[name], "; "); x != y {
			k.add(name, "course", "%q; nodectl %q", x, y)
		}
	}
	for _, name := range keys(a.Facts, b.Facts) {
		k.facts(name, "facts", a.Facts[name], b.Facts[name])
	}
	for _, name := range keys(a.Names, b.Names) {
		k.sets(name, "names", a.Names[name], b.Names[name])
	}
	k.sets("requests", "requests", slices.Collect(maps.Keys(a.Requests)), slices.Collect(maps.Keys(b.Requests)))
	return k.found
}

type comparison struct{ found []Difference }

func (k *comparison) add(of, aspect, format string, args ...any) {
	k.found = append(k.found, Difference{of, aspect, fmt.Sprintf(format, args...)})
}

func presence(ok bool) string {
	if ok {
		return "there"
	}
	return "not there"
}

func (k *comparison) pod(name string, p, q *Pod) {
	for _, track := range keys(p.Tracks, q.Tracks) {
		x, y := p.Tracks[track], q.Tracks[track]
		if !same(x, y) {
			k.add(name, "status", "%s: %s; nodectl %s", track, told(x), told(y))
		}
	}
	k.facts(name, "meta", p.Meta, q.Meta)
	k.sets(name, "events", p.Events, q.Events)
	if q.Patches > p.Patches {
		k.add(name, "patches", "%d; nodectl %d", p.Patches, q.Patches)
	}
}

// same reports whether two tracks go the same way, but for what was brief.
func same(x, y []Step) bool {
	// The longest common subsequence; what is not in it must be brief, or nothing at
	// all, before the first or after the last value.
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if x[i].Is == y[j].Is {
				common[i][j] = max(common[i][j], common[i+1][j+1]+1)
			}
		}
	}
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i].Is == y[j].Is && common[i][j] == common[i+1][j+1]+1:
			i, j = i+1, j+1
		case j == len(y) || i < len(x) && common[i+1][j] >= common[i][j+1]:
			if x[i].Is != "" && x[i].For >= brief {
				return false
			}
			i++
		default:
			if y[j].Is != "" && y[j].For >= brief {
				return false
			}
			j++
		}
	}
	return true
}

// told is a track in words.
func told(track []Step) string {
	if len(track) == 0 {
		return "never set"
	}
	var words []string
	for _, s := range track {
		is := s.Is
		if is == "" {
			is = "not set"
		}
		if s.For < brief {
			is += " (briefly)"
		}
		words = append(words, is)
	}
	return strings.Join(words, " → ")
}

func (k *comparison) facts(of, aspect string, x, y Facts) {
	for _, path := range keys(x, y) {
		u, ok := x[path]
		v, has := y[path]
		switch {
		case !ok:
			k.add(of, aspect, "%s is not set; nodectl %q", path, v)
		case !has:
			k.add(of, aspect, "%s is %q; nodectl not set", path, u)
		case u != v:
			k.add(of, aspect, "%s is %q; nodectl %q", path, u, v)
		}
	}
}

func (k *comparison) sets(of, aspect string, x, y []string) {
	for _, s := range keys(set(x), set(y)) {
		if !slices.Contains(y, s) {
			k.add(of, aspect, "only the kubelet's has %s", s)
		} else if !slices.Contains(x, s) {
			k.add(of, aspect, "only nodectl's has %s", s)
		}
	}
}

func set(all []string) map[string]bool {
	m := map[string]bool{}
	for _, s := range all {
		m[s] = true
	}
	return m
}

// keys returns those of both, sorted.
func keys[V any](a, b map[string]V) []string {
	all := slices.Collect(maps.Keys(a))
	all = slices.AppendSeq(all, maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}
