package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/compare"
)

// brief is how long a value may last that only one of the two shows: whether a shorter value is
// seen depends on the times of the looks and the speed of the machine.
const brief = 2 * time.Second

// differences lists the differences.
func differences(a, b *Recording) []compare.Difference {
	k := &compare.Differences{}
	of := func(name, aspect string) compare.Difference {
		return compare.Difference{Case: name, API: true, Aspect: aspect}
	}
	for _, name := range compare.Keys(a.Pods, b.Pods) {
		p, q := a.Pods[name], b.Pods[name]
		if p == nil || q == nil {
			k.Add(of(name, "object"), "%s; nodectl %s", presence(p != nil), presence(q != nil))
			continue
		}
		for _, track := range compare.Keys(p.Tracks, q.Tracks) {
			x, y := p.Tracks[track], q.Tracks[track]
			if !same(x, y) {
				k.Add(of(name, "status"), "%s: %s; nodectl %s", track, trackText(x), trackText(y))
			}
		}
		k.Facts(of(name, "meta"), "", p.Meta, q.Meta)
		k.Lists(of(name, "events"), "", p.Events, q.Events)
		if q.Patches > p.Patches+1 { // one more depends on which changes coincide
			k.Add(of(name, "patches"), "%d; nodectl %d", p.Patches, q.Patches)
		}
	}
	for _, name := range compare.Keys(a.Course, b.Course) {
		if x, y := strings.Join(a.Course[name], "; "), strings.Join(b.Course[name], "; "); x != y {
			k.Add(of(name, "course"), "%q; nodectl %q", x, y)
		}
	}
	for _, name := range compare.Keys(a.Facts, b.Facts) {
		k.Facts(of(name, "facts"), "", a.Facts[name], b.Facts[name])
	}
	for _, name := range compare.Keys(a.Names, b.Names) {
		k.Lists(of(name, "names"), "", a.Names[name], b.Names[name])
	}
	k.Lists(of("requests", "requests"), "", slices.Sorted(maps.Keys(a.Requests)), slices.Sorted(maps.Keys(b.Requests)))
	return k.All
}

func presence(ok bool) string {
	if ok {
		return "there"
	}
	return "not there"
}

// same reports whether two tracks are the same, except for brief values.
func same(x, y []Step) bool { return compare.Same(stretches(x), stretches(y), brief-time.Millisecond) }

// stretches is a track without the empty values before the first and after the last value.
func stretches(track []Step) []compare.Stretch {
	var all []compare.Stretch
	for at, i := time.Duration(0), 0; i < len(track); i++ {
		end := at + time.Duration(track[i].For)*time.Millisecond
		if edge := i == 0 || i == len(track)-1; track[i].Is != "" || !edge {
			all = append(all, compare.Stretch{Is: track[i].Is, From: at, To: end})
		}
		at = end
	}
	return all
}

// trackText is a track in words.
func trackText(track []Step) string {
	if len(track) == 0 {
		return "never set"
	}
	var words []string
	for _, s := range track {
		is := s.Is
		if is == "" {
			is = "not set"
		}
		if s.For < brief.Milliseconds() {
			is += " (briefly)"
		}
		words = append(words, is)
	}
	return strings.Join(words, " → ")
}
