package ui

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// sources are one of each state.
func sources() []feed.SourceState {
	since := time.Date(2026, 11, 20, 12, 5, 2, 0, time.UTC)
	layer := func(kind, location string, edit func(*podconfig.LayerState)) feed.SourceState {
		l := podconfig.LayerState{Name: kind + ":" + location, Source: kind, Location: location}
		edit(&l)
		return feed.SourceState{LayerState: l}
	}
	all := []feed.SourceState{
		layer("file", "/etc/nodectl/manifests", func(l *podconfig.LayerState) { l.Ready, l.Pods, l.LastGood = true, 3, since }),
		layer("http", "https://cfg/pods.yaml", func(l *podconfig.LayerState) {
			l.Ready, l.Pods, l.LastGood, l.Since, l.Error = true, 2, since.Add(-time.Hour), since, "timeout\x1b[31m"
		}),
		layer("http", "https://gone/pods.yaml", func(l *podconfig.LayerState) { l.Since, l.Error = since, "no such host" }),
		layer("etcd", "/pods/", func(l *podconfig.LayerState) {
			l.Restored, l.Pods, l.LastGood, l.Since = true, 1, since.Add(-24*time.Hour), since
		}),
		layer("api", "https://api:6443", func(l *podconfig.LayerState) { l.Since = since }),
		layer("stdin", "-", func(l *podconfig.LayerState) { l.Ready, l.Ended, l.Pods, l.LastGood = true, true, 1, since }),
	}
	all[0].Problems = []pod.Problem{{File: "/etc/nodectl/manifests/broken.yaml", Line: 14, Column: 9, Msg: "unknown field"}}
	all[0].Skipped = []pod.Problem{{File: "/etc/nodectl/manifests/.swp", Msg: "dot file"}}
	all[5].Conflicts = []podconfig.Conflict{{Kind: "Pod", Key: pod.Key{Namespace: "default", Name: "web-n1"},
		Winner: origin("file", "/etc/nodectl/manifests", "/etc/nodectl/manifests/web.yaml", 1), Loser: origin("stdin", "-", "-", 3), Reason: "earlier layer wins"}}
	return all
}

func TestSources(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 10, 2, 0, time.UTC)
	d := NewSourceList(sources())
	v := New(io.Discard, Screen{})
	golden(t, "sources.txt", v.Sources(d, false, now))
	golden(t, "sources-wide.txt", v.Sources(d, true, now))
	doc, err := JSON(d)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sources.json", doc)
	if got, want := SourceNames(d), "source/file:/etc/nodectl/manifests\n"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q first", got, want)
	}
	empty, err := JSONLine(NewSourceList(nil))
	if err != nil || !strings.Contains(empty, `"items":[]`) {
		t.Errorf("%s, %v", empty, err)
	}
}

// TestSinceOfAnotherDayHasItsDate: a source may be stale for longer than a day.
func TestSinceOfAnotherDayHasItsDate(t *testing.T) {
	t.Parallel()
	v, zone := New(io.Discard, Screen{}), time.FixedZone("", 3600)
	plan := MergePlan{Sources: []PlanSource{{Source: "http", Location: "u", Stale: true, Since: "2026-11-20T12:05:02Z", Error: "timeout"}}}
	for now, want := range map[time.Time]string{
		time.Date(2026, 11, 20, 23, 0, 0, 0, zone): "stale since 13:05:02: timeout",
		time.Date(2026, 11, 21, 9, 0, 0, 0, zone):  "stale since 2026-11-20 13:05:02: timeout",
	} {
		if got := v.Plan(plan, false, now); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSourcesFitATerminal: a long URL is cut on a terminal, but not in a pipe or with -o wide.
func TestSourcesFitATerminal(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 10, 2, 0, time.UTC)
	url := "https://config.example.com/a/rather/long/path/to/pods.yaml?token=redacted"
	d := SourceList{Items: []SourceItem{
		{Source: "file", Location: "/etc/nodectl/manifests", Pods: 3, State: SourceOK, LastRead: "2026-11-20T12:05:02Z",
			Problems: []pod.Problem{{File: "/etc/nodectl/manifests/web.yaml", Line: 1, Msg: "unknown field"}}},
		{Source: "http", Location: url, Pods: 2, State: SourceStale, Since: "2026-11-20T12:05:02Z", LastRead: "2026-11-20T11:05:02Z", Error: "timeout"},
	}}
	narrow := New(io.Discard, Screen{Width: 80})
	plan := MergePlan{Sources: []PlanSource{{Source: "http", Location: url, Stale: true, Since: "2026-11-20T12:05:02Z", Error: "timeout"}}}
	for _, text := range []string{narrow.Sources(d, false, now), narrow.Plan(plan, false, now)} {
		for line := range strings.Lines(text) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%d cells: %s", n, line)
			}
		}
		if !strings.Contains(text, "since 12:05:02: timeout\n") {
			t.Errorf("since when and why is not whole:\n%s", text)
		}
	}
	whole := []string{narrow.Sources(d, true, now), New(io.Discard, Screen{}).Sources(d, false, now), narrow.Plan(plan, true, now), New(io.Discard, Screen{}).Plan(plan, false, now)}
	for _, text := range whole {
		if !strings.Contains(text, url) {
			t.Errorf("the URL was cut:\n%s", text)
		}
	}
}

// TestError_ReaderComesLate_HasItsStartTime: a late reader sees since when a source fails; the
// time of the line is that of the update.
func TestError_ReaderComesLate_HasItsStartTime(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 20, 12, 5, 2, 0, time.UTC)
	for _, c := range []struct {
		late time.Duration
		msg  string
		want string
	}{
		{time.Millisecond, "timeout", " timeout\n"},
		{time.Hour, "timeout", " since 2026-11-20T12:05:02Z: timeout\n"},
		{time.Hour, "has not answered since 2026-11-20T12:05:02Z", " has not answered since 2026-11-20T12:05:02Z\n"},
	} {
		u := feed.Update{Time: began.Add(c.late), Op: feed.ERROR, Source: "http", Location: "u", Since: began, Problem: pod.Problem{File: "u", Msg: c.msg}}
		d := NewPodUpdate(u, 1, false)
		if d.Since != "2026-11-20T12:05:02Z" {
			t.Errorf("since %q", d.Since)
		}
		if got := New(io.Discard, Screen{}).Update(d, false); !strings.HasSuffix(got, " "+c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
