package main

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
)

func problems(text string) []pod.Problem {
	f, _ := manifest.Parse([]byte(text), manifest.Options{Node: "n1", Static: true})
	return f.Problems
}

func TestPodsAreDrawnFromTheSeedAlone(t *testing.T) {
	draw := func() string {
		a := &artist{Rand: rand.New(rand.NewPCG(5, 0))}
		var b strings.Builder
		for i := range 200 {
			p, end := a.draw(fmt.Sprint("p", i), "/x")
			w := &wish{pod: p, edits: 1}
			text, err := w.text()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s\n%s", end, text)
		}
		return b.String()
	}
	if diff := cmp.Diff(draw(), draw()); diff != "" {
		t.Errorf("a seed drew two stories:\n%s", diff)
	}
}

// Every pod that is drawn is a manifest for nodectl, and every end is drawn.
func TestDrawnPodsAreManifests(t *testing.T) {
	a := &artist{Rand: rand.New(rand.NewPCG(6, 0))}
	ends := map[end]int{}
	for i := range 500 {
		p, end := a.draw(fmt.Sprint("p", i), "/x")
		ends[end]++
		text, err := (&wish{pod: p, edits: 1}).text()
		if err != nil {
			t.Fatal(err)
		}
		if found := problems(text); len(found) > 0 {
			t.Errorf("%v\n%s", found, text)
		}
	}
	for _, e := range []end{runs, succeeds, fails, loops, stuck} {
		if ends[e] == 0 {
			t.Errorf("no pod %s", e)
		}
	}
	for _, text := range broken[1:] {
		if found := problems(text); len(found) == 0 {
			t.Errorf("nothing is wrong with %q", text)
		}
	}
}

func TestOnlyWhatGrowsBeyondNoiseAndSlackHasLeaked(t *testing.T) {
	var pods, flat, noisy, leak []float64
	for i := range 20 {
		pods = append(pods, float64(100*(i+1)))
		flat = append(flat, 30)
		noisy = append(noisy, 30+float64(i%2)*5)
		leak = append(leak, 30+float64(i)*0.5)
	}
	for _, c := range []struct {
		name   string
		values []float64
		ok     bool
	}{
		{"mounts", flat, true},
		{"steady threads", noisy, true},
		{"steady goroutines", leak, false},
		{"mounts", leak, false},
		{"containerd RssAnon, MB", leak, true},
	} {
		if g := grown(c.name, pods, c.values); g.OK != c.ok {
			t.Errorf("%s %v: %+v", c.name, c.values, g)
		}
	}
	if slope, noise := line(pods, leak); slope < 0.00499 || slope > 0.00501 || noise > 1e-6 {
		t.Errorf("slope %v ± %v of a line that rises by 0.5 every 100", slope, noise)
	}
}

func TestReportNamesWhatGrows(t *testing.T) {
	r := &result{Deeds: map[string]int{"new pod": 3}, Said: map[string]int{}, Machine: map[string]string{}}
	for i := range 10 {
		r.Rounds = append(r.Rounds, round{Pods: 100 * (i + 1), Inventory: inventory{"mounts": 7 + i}, Sample: sample{"steady goroutines": 30}})
	}
	r.finish()
	if text := r.text(); r.OK || !regexp.MustCompile(`(?m)^ +7 +16 +16 +\+10 .* GROWS mounts$`).MatchString(text) {
		t.Errorf("ok %v:\n%s", r.OK, text)
	}
}

func TestSettled_WishWaitsForAnother_FollowsIt(t *testing.T) {
	on := func(of end, until string, gone bool) *wish {
		w := &wish{end: runs, after: &wish{end: of, gone: gone}}
		p, _ := (&artist{Rand: rand.New(rand.NewPCG(1, 1))}).draw("p", "/x")
		p.Annotations = map[string]string{dependsOn: "a" + until}
		w.pod = p
		return w
	}
	for _, c := range []struct {
		*wish
		known bool
	}{
		{on(runs, ":ready", false), true},
		{on(runs, "", false), true},
		{on(runs, ":done", false), false},
		{on(succeeds, ":done", false), true},
		{on(loops, ":started", false), false},
		{on(runs, ":ready", true), false},
	} {
		if _, known := c.settled(); known != c.known {
			t.Errorf("after one that %s, gone %v, by %q: known %v", c.after.end, c.after.gone, c.pod.Annotations[dependsOn], known)
		}
	}
}
