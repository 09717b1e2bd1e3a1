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

// brief is how long a value may last, in milliseconds, that only one of the two shows:
// whether a shorter value is seen depends on the times of the looks and the speed of the
// machine.
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
	if q.Patches > p.Patches+1 { // one more depends on which changes coincide
		k.add(name, "patches", "%d; nodectl %d", p.Patches, q.Patches)
	}
}

// same reports whether two tracks are the same, except for brief values.
func same(x, y []Step) bool {
	for {
		inX, inY := common(x, y)
		a, b := without(x, inX), without(y, inY)
		if len(a) == len(x) && len(b) == len(y) {
			break
		}
		x, y = a, b
	}
	return slices.EqualFunc(x, y, func(a, b Step) bool { return a.Is == b.Is })
}

// without returns a track without its brief values that are not common to both, and without
// the empty values before the first and after the last value.
func without(track []Step, common []bool) []Step {
	var out []Step
	for i, s := range track {
		edge := s.Is == "" && (i == 0 || i == len(track)-1)
		switch {
		case !common[i] && (s.For < brief || edge):
		case len(out) > 0 && out[len(out)-1].Is == s.Is:
			out[len(out)-1].For += s.For
		default:
			out = append(out, s)
		}
	}
	return out
}

// common says which values of two tracks are of their longest common subsequence.
func common(x, y []Step) (inX, inY []bool) {
	length := make([][]int, len(x)+1)
	for i := range length {
		length[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			length[i][j] = max(length[i+1][j], length[i][j+1])
			if x[i].Is == y[j].Is {
				length[i][j] = max(length[i][j], length[i+1][j+1]+1)
			}
		}
	}
	inX, inY = make([]bool, len(x)), make([]bool, len(y))
	for i, j := 0, 0; i < len(x) && j < len(y); {
		switch {
		case x[i].Is == y[j].Is && length[i][j] == length[i+1][j+1]+1:
			inX[i], inY[j] = true, true
			i, j = i+1, j+1
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	return inX, inY
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
