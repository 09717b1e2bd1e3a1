package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// A directory may hold thousands of files that are no manifests; an update of one pod does
// not compare them.
func TestLogState_ThousandsOfUnchangedProblems_CostNothing(t *testing.T) {
	before := &podconfig.Merged{}
	for i := range 3000 {
		p := pod.Problem{File: fmt.Sprintf("a/%04d", i), Msg: "x"}
		before.Problems, before.Skipped = append(before.Problems, p), append(before.Skipped, p)
		before.Conflicts = append(before.Conflicts, podconfig.Conflict{Kind: "Pod", Key: pod.Key{Name: p.File}, Reason: "x"})
	}
	after := *before
	l := &loop{log: slog.New(slog.DiscardHandler), state: before}
	if n := testing.AllocsPerRun(10, func() { l.logState(&after) }); n > 10 {
		t.Errorf("%.0f allocations", n)
	}
}

// TestLogState_ThousandsOfProblems_AreFewLines: an attacker's source rejects thousands of
// pods, names each twice, and shifts all by one line at each poll.
func TestLogState_ThousandsOfProblems_AreFewLines(t *testing.T) {
	var out bytes.Buffer
	l := &loop{log: slog.New(slog.NewTextHandler(&out, nil))}
	state := func(n, shift int) *podconfig.Merged {
		m := &podconfig.Merged{}
		for i := range n {
			p := pod.Problem{File: "/m/a", Line: 1 + i + shift, Column: 2, Path: fmt.Sprintf("items[%d]", i), Msg: "no"}
			m.Problems, m.Skipped = append(m.Problems, p), append(m.Skipped, p)
			origin := pod.Origin{Source: "file", Location: "/m", File: "/m/a", Line: p.Line}
			m.Conflicts = append(m.Conflicts, podconfig.Conflict{Kind: "Pod", Key: pod.Key{Name: p.Path}, Winner: origin, Loser: origin, Reason: "x"})
		}
		return m
	}
	lines := func(m *podconfig.Merged) []string {
		out.Reset()
		l.logState(m)
		l.state = m
		return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	}
	const n = 15_000
	if got := lines(state(n, 0)); len(got) != 3*(mostLogged+1) || !strings.Contains(got[mostLogged], fmt.Sprintf(`msg="Not logging further messages of this kind" message="Rejecting pod / Error in manifest file" count=%d hint="nodectl get sources"`, n-mostLogged)) {
		t.Errorf("%d lines, one of them %s", len(got), got[min(mostLogged, len(got)-1)])
	}
	if got := lines(state(n, 1)); len(got) != 1 || got[0] != "" {
		t.Errorf("shifted by a line: %d lines, first %s", len(got), got[0])
	}
	if got := lines(state(n+1, 2)); len(got) != 3 || !strings.Contains(got[0], `file=/m/a:15003:2 field=items[15000]`) {
		t.Errorf("shifted, with one more: %q", got)
	}
}

// TestLogState_SameMistakeAgain_IsLogged: a second problem with the text of an existing one
// is new, wherever in the file it is.
func TestLogState_SameMistakeAgain_IsLogged(t *testing.T) {
	var out bytes.Buffer
	l := &loop{log: slog.New(slog.NewTextHandler(&out, nil))}
	problems := func(lines ...int) *podconfig.Merged {
		m := &podconfig.Merged{}
		for _, line := range lines {
			m.Problems = append(m.Problems, pod.Problem{File: "/m/a", Line: line, Path: "spec.containers[0].image", Msg: "required"})
		}
		return m
	}
	for _, c := range []struct {
		state *podconfig.Merged
		want  string
	}{
		{problems(7), "/m/a:7"}, {problems(8), ""}, {problems(3, 8), "/m/a:3"}, {problems(4, 9, 14), "/m/a:14"}, {problems(9), ""}, {problems(), ""}, {problems(9), "/m/a:9"},
	} {
		out.Reset()
		l.logState(c.state)
		l.state = c.state
		if got := strings.Count(out.String(), "Error in manifest file"); got != min(1, len(c.want)) || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: %q, want %q", c.state.Problems, out.String(), c.want)
		}
	}
}

// TestLogState_ProblemOfPod_NamesPod: a rejected pod is named; an error without a known pod names
// its file only, because the other pods of the file continue.
func TestLogState_ProblemOfPod_NamesPod(t *testing.T) {
	var out bytes.Buffer
	l := &loop{log: slog.New(slog.NewTextHandler(&out, nil))}
	l.logState(&podconfig.Merged{Problems: []pod.Problem{
		{File: "/m/a", Line: 7, Path: "spec.containers[0].image", Msg: "required", Pod: pod.Key{Namespace: "default", Name: "web"}},
		{File: "/m/b", Msg: "file is empty"},
	}})
	for _, want := range []string{`msg="Rejecting pod" pod=default/web file=/m/a:7 field=spec.containers[0].image error=required`, `msg="Error in manifest file" file=/m/b field="" error="file is empty"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %s in\n%s", want, out.String())
		}
	}
}
