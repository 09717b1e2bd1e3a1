package tui

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/nodectl/nodectl/pkg/ui"
)

// many returns a stream of n pods, one update each, in no order.
func many(n int) []ui.PodUpdate {
	all := make([]ui.PodUpdate, n)
	for i, k := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		all[i] = doc(i%60, "ADD", "file", "a/", onePod(fmt.Sprintf("pod-%05d", k), fmt.Sprintf("a/%05d.yaml", k), 1))
	}
	return all
}

func TestLeaving(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"q", "esc", "ctrl+c"} {
		if !press(screenOf(t, Config{}, 80, 24, nil), key) {
			t.Errorf("%s does not leave", key)
		}
	}
	m := screenOf(t, Config{}, 80, 24, nil)
	if press(m, "/", "q", "esc") || m.typing {
		t.Error("q and Esc leave while a filter is typed")
	}
	if !press(m, "/", "ctrl+c") {
		t.Error("Ctrl-C does not leave while a filter is typed")
	}
	m = screenOf(t, Config{}, 80, 24, nil)
	m.Update(ended{})
	if screen := m.View(); !strings.Contains(screen, "The updates have ended") {
		t.Errorf("the end of the stream is not on the screen:\n%s", screen)
	}
}

func TestScrolling(t *testing.T) {
	t.Parallel()
	m := screenOf(t, Config{}, 80, 24, many(100))
	at := func(want string) {
		t.Helper()
		if screen := fitting(t, m); !strings.Contains(screen, want) {
			t.Errorf("%q is not on the screen:\n%s", want, screen)
		}
	}
	at("PODS 100  1-12 of 100")
	press(m, "down", "j", "j", "up")
	at("3-14 of 100")
	press(m, "pgdown")
	at("14-25 of 100")
	press(m, "end", "down", "pgdown")
	at("89-100 of 100")
	press(m, "k", "pgup")
	at("77-88 of 100")
	press(m, "home", "up", "pgup")
	at("1-12 of 100")

	// The newest update stays visible, unless the user scrolled away from it.
	press(m, "tab")
	at(">> UPDATES  95-100 of 100")
	m.Update(batch(many(1)))
	at("96-101 of 101")
	press(m, "up")
	m.Update(batch(many(2)))
	at("95-100 of 103")
	press(m, "end")
	m.Update(batch(many(2)))
	at("100-105 of 105")

	press(m, "tab")
	at(">> SOURCES")
	press(m, "shift+tab")
	at(">> UPDATES")
	press(m, "?")
	at("PgUp PgDn")
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 200})
	at("PODS 100 -")
}

func TestFilter(t *testing.T) {
	t.Parallel()
	m := screenOf(t, Config{}, 80, 24, many(100), "end", "/", "0", "7", "7", "X", "backspace")
	if !strings.Contains(m.View(), "filter pods: 077_") {
		t.Errorf("the filter is not on the screen:\n%s", m.View())
	}
	press(m, "enter")
	if screen := fitting(t, m); !strings.Contains(screen, `PODS 1 of 100 with "077"`) || !strings.Contains(screen, "default/pod-00077") {
		t.Errorf("not filtered:\n%s", screen)
	}
	m.Update(batch([]ui.PodUpdate{doc(3, "ADD", "file", "a/", onePod("other-077", "a/o.yaml", 1)), doc(3, "REMOVE", "file", "a/", onePod("pod-00077", "a/00077.yaml", 1))}))
	if screen := fitting(t, m); !strings.Contains(screen, "default/other-077") || strings.Contains(screen, "+  ADD        12:10:03  file   default/pod-00077") {
		t.Errorf("the filter does not follow:\n%s", screen)
	}
	press(m, "/zz", "enter") // typed so fast that it is one message
	if screen := fitting(t, m); !strings.Contains(screen, "no pod name contains this text") {
		t.Errorf("an empty filter says nothing:\n%s", screen)
	}
	press(m, "/", "esc")
	if len(m.matching()) != 100 {
		t.Errorf("%d pods after the filter was dropped", len(m.matching()))
	}
}

// TestOrder: pods are sorted by name, in any order of arrival and removal, with one line
// each.
func TestOrder(t *testing.T) {
	t.Parallel()
	s, r := newState(), rand.New(rand.NewPCG(3, 4))
	want := map[string]bool{}
	for range 300 {
		var updates []ui.PodUpdate
		for range r.IntN(40) {
			name := fmt.Sprintf("pod-%03d", r.IntN(200))
			op := []string{"ADD", "UPDATE", "REMOVE", "RECONCILE"}[r.IntN(4)]
			if want["default/"+name] = op != "REMOVE"; op == "REMOVE" {
				delete(want, "default/"+name)
			}
			updates = append(updates, doc(1, op, "file", "a/", onePod(name, "a/"+name, 1)))
		}
		s.apply(updates)
		var got []string
		for _, p := range s.order {
			got = append(got, p.name)
			if !want[p.name] {
				t.Fatalf("%s is gone and shown", p.name)
			}
		}
		if len(got) != len(want) || !slices.IsSorted(got) {
			t.Fatalf("%d pods instead of %d, sorted: %v", len(got), len(want), slices.IsSorted(got))
		}
		if len(s.sourceLines) > 0 && s.sourceLines[0].pods != len(want) {
			t.Fatalf("the source has %d pods, not %d", s.sourceLines[0].pods, len(want))
		}
	}
}

// TestUpdatesAreBounded: a stream of any length keeps a bounded number of lines.
func TestUpdatesAreBounded(t *testing.T) {
	t.Parallel()
	s := newState()
	for range 20 {
		s.apply(many(500))
	}
	big := doc(0, "SET", "file", "a/")
	for i := range 9000 {
		big.Pods = append(big.Pods, onePod(fmt.Sprint(i), "a/x", i))
	}
	s.apply([]ui.PodUpdate{big})
	if len(s.updates) > 2*keepUpdates || len(s.order) != 9000 {
		t.Errorf("%d lines of updates, %d pods", len(s.updates), len(s.order))
	}
}

// TestFiveThousandPods: an update of one pod among 5,000, and the screen after
// it, take a small part of a frame, and a filter does not change that.
func TestFiveThousandPods(t *testing.T) { // not parallel: it counts allocations
	m := screenOf(t, Config{Color: true}, 80, 24, many(5000))
	for _, filter := range []string{"", "pod-0"} {
		m.filter, m.stale = filter, true
		allocs := testing.AllocsPerRun(20, func() {
			m.Update(batch([]ui.PodUpdate{doc(1, "UPDATE", "file", "a/", onePod("pod-01234", "a/01234.yaml", 1))}))
			m.View()
		})
		if allocs > 2500 { // of the screen's lines; with 50 pods they are as many
			t.Errorf("filter %q: %.0f allocations for one update and one screen", filter, allocs)
		}
	}
}

func BenchmarkUpdateAndScreen5000(b *testing.B) {
	m := newModel(Config{Color: true, Zone: time.UTC})
	m.Update(batch(many(5000)))
	one := batch([]ui.PodUpdate{doc(1, "ADD", "file", "a/", onePod("zz", "a/zz", 1)), doc(1, "REMOVE", "file", "a/", onePod("zz", "a/zz", 1))})
	for b.Loop() {
		m.Update(one)
		m.View()
	}
}

func BenchmarkFirstSet5000(b *testing.B) {
	all := batch(many(5000))
	for b.Loop() {
		m := newModel(Config{Color: true, Zone: time.UTC})
		m.Update(all)
		m.View()
	}
}
