package tui

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares a screen with testdata/NAME. In the file an escape byte is
// written ^[, and a bar closes every line, as blanks are part of a screen.
func golden(t *testing.T, name, screen string) {
	t.Helper()
	got := strings.ReplaceAll(strings.ReplaceAll(screen, "\x1b", "^["), "\n", "|\n") + "|\n"
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// second returns a document's time, n seconds after ten past twelve.
func second(n int) string {
	return time.Date(2026, 11, 20, 12, 10, n, 0, time.UTC).Format(time.RFC3339)
}

func doc(at int, op, source, location string, pods ...ui.UpdatePod) ui.PodUpdate {
	return ui.PodUpdate{Time: second(at), Op: op, Source: source, Location: location, Pods: pods}
}

func onePod(name, file string, line int) ui.UpdatePod {
	return ui.UpdatePod{PodRef: ui.PodRef{Namespace: "default", Name: name}, Origin: ui.Place{File: file, Line: line}}
}

func problem(at int, op, source, location string, p pod.Problem, over bool) ui.PodUpdate {
	u := doc(at, op, source, location)
	u.Problem, u.Ended = p, over
	return u
}

const cfg = "https://cfg.example.org/teams/payments/pods.yaml"

// story is a stream with every kind of update.
func story() []ui.PodUpdate {
	restarted := onePod("web-n1", "a/web.yaml", 1)
	restarted.Restart = ui.PlanRestart{Containers: []string{"nginx"}}
	lost := problem(8, "CONFLICT", "http", cfg, pod.Problem{File: cfg, Line: 31, Msg: "loses to a/web.yaml:1", Hint: "earlier layer wins"}, false)
	lost.Pods = []ui.UpdatePod{onePod("web-n1", cfg, 31)}
	return []ui.PodUpdate{
		doc(0, "RESTORE", "etcd", "/pods/", onePod("cron-n1", "/pods/cron", 1)),
		doc(1, "ADD", "file", "a/", onePod("metrics-n1", "a/metrics.yaml", 1), onePod("web-n1", "a/web.yaml", 1), onePod("old-n1", "a/old.yaml", 4)),
		doc(2, "ADD", "stdin", "-"),
		doc(3, "ADD", "http", cfg, onePod("api-gateway-with-a-long-name-of-its-own-n1", cfg, 1), onePod("billing-n1", cfg, 16)),
		doc(4, "UPDATE", "file", "a/", restarted),
		doc(5, "REMOVE", "file", "a/", onePod("old-n1", "a/old.yaml", 4)),
		problem(6, "ERROR", "http", cfg, pod.Problem{File: cfg, Msg: "timeout after 10s"}, false),
		problem(7, "REJECT", "file", "a/", pod.Problem{File: "a/metrics.yaml", Line: 14, Column: 9, Path: "spec.containers[0].workdir", Msg: `unknown field "workdir"`}, false),
		lost,
		doc(9, "DELETE", "http", cfg, onePod("billing-n1", cfg, 16)),
		problem(10, "NOTICE", "file", "a/", pod.Problem{File: "a/README", Msg: "skipped: not *.yaml, *.yml or *.json"}, false),
	}
}

// screenOf returns a model that has received updates and keys.
func screenOf(t *testing.T, c Config, width, height int, updates []ui.PodUpdate, keys ...string) *model {
	t.Helper()
	c.Zone = time.UTC
	m := newModel(c)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m.Update(batch(updates))
	press(m, keys...)
	return m
}

// press sends keys to a model by their names.
func press(m *model, keys ...string) (leaves bool) {
	named := map[string]tea.KeyType{
		"tab": tea.KeyTab, "shift+tab": tea.KeyShiftTab, "esc": tea.KeyEsc, "enter": tea.KeyEnter, "ctrl+c": tea.KeyCtrlC, "backspace": tea.KeyBackspace,
		"up": tea.KeyUp, "down": tea.KeyDown, "pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "home": tea.KeyHome, "end": tea.KeyEnd,
	}
	for _, k := range keys {
		msg := tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(k)}
		if kind, ok := named[k]; ok {
			msg = tea.KeyMsg{Type: kind}
		}
		if _, cmd := m.Update(msg); cmd != nil {
			_, leaves = cmd().(tea.QuitMsg)
		}
	}
	return leaves
}

// fitting fails unless a screen has exactly the window's number of lines, and none is wider.
func fitting(t *testing.T, m *model) string {
	t.Helper()
	screen := m.View()
	lines := strings.Split(screen, "\n")
	if len(lines) != m.height {
		t.Errorf("%d lines in a window of %d:\n%s", len(lines), m.height, screen)
	}
	for i, l := range lines {
		if w := lipgloss.Width(l); w > m.width {
			t.Errorf("line %d is %d cells wide in a window of %d: %q", i+1, w, m.width, l)
		}
	}
	return screen
}

func TestScreen80x24(t *testing.T) {
	t.Parallel()
	c := Config{Title: "a/, " + cfg}
	golden(t, "80x24.txt", fitting(t, screenOf(t, c, 80, 24, story())))
	c.Color = true
	golden(t, "80x24-color.txt", fitting(t, screenOf(t, c, 80, 24, story())))
	golden(t, "empty.txt", fitting(t, screenOf(t, Config{Title: "a/"}, 80, 24, nil)))
}

// TestColourSaysNothingAlone: without colour a screen has the same text, and no escapes.
func TestColourSaysNothingAlone(t *testing.T) {
	t.Parallel()
	plain := screenOf(t, Config{}, 80, 24, story()).View()
	colored := screenOf(t, Config{Color: true}, 80, 24, story()).View()
	if strings.ContainsRune(plain, '\x1b') {
		t.Errorf("an escape byte in a screen without colour: %q", plain)
	}
	if !strings.ContainsRune(colored, '\x1b') {
		t.Error("no colour in a screen with colour")
	}
	if diff := cmp.Diff(plain, strip(colored)); diff != "" {
		t.Errorf("colour changes the text (-without +with):\n%s", diff)
	}
}

// strip removes colour sequences.
func strip(s string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		_, s, _ = strings.Cut(rest, "m")
	}
}

// TestResizing: the screen fits every size of the window, small ones too, and a window that
// grows again shows everything again.
func TestResizing(t *testing.T) {
	t.Parallel()
	m := screenOf(t, Config{Title: "a/"}, 80, 24, story())
	before := m.View()
	m.Update(tea.WindowSizeMsg{Width: 40, Height: 10})
	golden(t, "40x10.txt", fitting(t, m))
	m.Update(tea.WindowSizeMsg{Width: 60, Height: 7})
	golden(t, "60x7.txt", fitting(t, m))
	for width := 1; width < 130; width += 7 {
		for height := 1; height < 40; height += 3 {
			m.Update(tea.WindowSizeMsg{Width: width, Height: height})
			fitting(t, m)
		}
	}
	m.Update(tea.WindowSizeMsg{})
	if m.View() != "" {
		t.Error("a window without cells shows something")
	}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	if diff := cmp.Diff(before, m.View()); diff != "" {
		t.Errorf("after resizing (-before +after):\n%s", diff)
	}
}

// TestHostileText: any text in a manifest stays text, in its line and its column.
func TestHostileText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"\x1b[2J\x1b]0;owned\a", "a\nb\r\tc\x00\x7f", "\u202egnp.exe\u2066", "\xff\xfe\xc3", "\u009b31m",
		strings.Repeat("界", 300), strings.Repeat("e\u0301", 300), strings.Repeat("👩\u200d👩\u200d👧", 60), "a" + strings.Repeat("\u0301", 5000),
		strings.Repeat("☺\ufe0f", 100), strings.Repeat("x", 1<<20),
	} {
		p := problem(2, "REJECT", text, text, pod.Problem{File: text, Msg: text, Hint: text, Path: text}, false)
		e := problem(3, "ERROR", text, text, pod.Problem{File: text, Msg: text}, false)
		all := []ui.PodUpdate{doc(1, "ADD", text, text, ui.UpdatePod{PodRef: ui.PodRef{Namespace: text, Name: text}, Origin: ui.Place{File: text, Line: 1}}), p, e}
		m := screenOf(t, Config{Title: text}, 80, 24, all)
		m.filter = ui.Clean(text)
		screen := fitting(t, m)
		for _, r := range screen {
			if r != '\n' && ui.Clean(string(r)) != string(r) {
				t.Fatalf("%.40q puts %q on the screen", text, r)
			}
		}
	}
}

// TestStateOfTheStory: the sums on the screen are those of the stream.
func TestStateOfTheStory(t *testing.T) {
	t.Parallel()
	s := screenOf(t, Config{}, 80, 24, story()).state
	var got []string
	for _, l := range s.sourceLines {
		got = append(got, fmt.Sprintf("%s %d pods ready=%v restored=%v failing=%v rejects=%d", l.source, l.pods, l.ready, l.restored, l.failing, l.rejects))
	}
	want := []string{
		"etcd 1 pods ready=false restored=true failing=false rejects=0",
		"file 2 pods ready=true restored=false failing=false rejects=1",
		"stdin 0 pods ready=true restored=false failing=false rejects=0",
		"http 2 pods ready=true restored=false failing=true rejects=0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"default/api-gateway-with-a-long-name-of-its-own-n1 ADD ", "default/billing-n1 DELETE ", "default/cron-n1 RESTORE ",
		"default/metrics-n1 ADD rejected", "default/web-n1 UPDATE conflict",
	}, podsOf(s)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

// podsOf returns pods in the order of the screen.
func podsOf(s *state) []string {
	var all []string
	for _, p := range s.order {
		all = append(all, p.name+" "+p.op+" "+s.marks(p))
	}
	return all
}

// TestProblemsEnd: ended problems leave no mark, also if the stream reports only the end of
// the last of several problems.
func TestProblemsEnd(t *testing.T) {
	t.Parallel()
	s := newState()
	s.apply(story())
	lost := story()[8]
	lost.Ended = true
	first := story()[7].Problem
	second := first
	second.Line = 20
	s.apply([]ui.PodUpdate{
		lost,
		problem(20, "REJECT", "file", "a/", second, false), // in place of the first
		problem(21, "REJECT", "file", "a/", second, true),
		problem(22, "ERROR", "http", cfg, pod.Problem{File: cfg, Msg: "timeout after 10s"}, true),
	})
	for _, p := range s.order {
		if marks := s.marks(p); marks != "" {
			t.Errorf("%s is still marked %s", p.name, marks)
		}
	}
	for _, l := range s.sourceLines {
		if l.rejects != 0 || l.failing || !l.since.IsZero() {
			t.Errorf("%s: %d rejects, failing %v since %s", l.source, l.rejects, l.failing, l.since)
		}
	}
	// Two problems that appeared together end one by one.
	s.apply([]ui.PodUpdate{
		problem(30, "REJECT", "file", "a/", first, false),
		problem(30, "REJECT", "file", "a/", second, false),
		problem(31, "REJECT", "file", "a/", second, true),
	})
	if s.rejected["a/metrics.yaml"] == nil {
		t.Error("one of two problems ended, and the file is no longer rejected")
	}
}

// TestFailureKeepsItsBeginning: a failure that changes its reason keeps its start time.
func TestFailureKeepsItsBeginning(t *testing.T) {
	t.Parallel()
	s := newState()
	s.apply([]ui.PodUpdate{
		problem(1, "ERROR", "http", cfg, pod.Problem{Msg: "timeout"}, false),
		problem(5, "ERROR", "http", cfg, pod.Problem{Msg: "refused"}, false),
	})
	if l := s.sourceLines[0]; l.reason != "refused" || l.since.Second() != 1 || l.ready {
		t.Errorf("failing since %s: %s, ready %v", l.since, l.reason, l.ready)
	}
}

// TestModel_SourceAlreadyFails_ShowsSinceWhen: a source that already fails is shown with the start time of
// the failure. It is STALE if it has pods from an older reading, and FAILING if it was never
// read.
func TestModel_SourceAlreadyFails_ShowsSinceWhen(t *testing.T) {
	t.Parallel()
	stale := problem(40, "ERROR", "http", cfg, pod.Problem{Msg: "https://cfg.example:8443: connection refused"}, false)
	stale.Since = second(7)
	m := fitting(t, screenOf(t, Config{}, 80, 24, []ui.PodUpdate{
		doc(40, "ADD", "http", cfg, onePod("web-n1", cfg, 1)), stale,
		problem(41, "ERROR", "etcd", "/pods/", pod.Problem{Msg: "no such host"}, false),
	}))
	for _, want := range []string{`(?m)^STALE +http .* 1 pod +since 12:10:07: .*…`, `(?m)^FAILING +etcd .* 0 pods +since 12:10:41: no such host$`, `2 not read`} {
		if !regexp.MustCompile(want).MatchString(m) {
			t.Errorf("no %s in\n%s", want, m)
		}
	}
}

// TestSetReplacesEverything: a SET is the whole set. A pod known from the same file keeps its
// source and its last change. Problems lost with the updates before it are reported again, or
// have ended.
func TestSetReplacesEverything(t *testing.T) {
	t.Parallel()
	s := newState()
	s.apply(story())
	s.apply([]ui.PodUpdate{
		{Time: second(40), Op: "DROPPED", Source: "file", Location: "a/", Dropped: 1030},
		doc(40, "SET", "file", "a/", onePod("web-n1", "a/web.yaml", 1), onePod("new-n1", cfg, 3), onePod("billing-n1", cfg, 16)),
		problem(40, "ERROR", "http", cfg, pod.Problem{Msg: "timeout after 10s"}, false),
	})
	if diff := cmp.Diff([]string{"default/billing-n1 DELETE ", "default/new-n1 SET ", "default/web-n1 UPDATE "}, podsOf(s)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	for _, l := range s.sourceLines {
		want := map[string]int{"file": 1, "http": 2}[l.source]
		if l.pods != want || l.rejects != 0 {
			t.Errorf("%s has %d pods and rejects %d", l.source, l.pods, l.rejects)
		}
		if l.source == "http" && (!l.failing || l.since.Second() != 6) {
			t.Errorf("http is failing %v since %s", l.failing, l.since)
		}
	}
}
