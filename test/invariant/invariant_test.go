package invariant

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

var begin = time.Now()

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

// lived is a run of container main; with to 0 it still runs.
func lived(pod string, attempt uint32, from, to int) Life {
	l := Life{ID: fmt.Sprintf("%012d", attempt), Pod: pod, UID: "uid-" + pod, Name: "main", Attempt: attempt, From: at(from)}
	if to > 0 {
		l.To = at(to)
	}
	return l
}

// history is one in which web was desired at the given seconds, "x" away, "?" broken.
func history(words ...string) *History {
	h := &History{}
	for _, w := range words {
		var when int
		kind, _ := w[:1], must(fmt.Sscan(w[1:], &when))
		c := change{at: at(when)}
		switch kind {
		case "+":
			c.pod = &v1.Pod{}
		case "?":
			c.broken = true
		}
		if h.changes == nil {
			h.changes = make(map[string][]change)
		}
		h.changes["web"] = append(h.changes["web"], c)
	}
	return h
}

func must(n int, err error) int {
	if err != nil {
		panic(err)
	}
	return n
}

// expect compares violations by invariant and second.
func expect(t *testing.T, what string, found []Violation, want ...string) {
	t.Helper()
	var got []string
	for _, v := range found {
		got = append(got, fmt.Sprintf("%s %d", v.Promise, int(v.At.Sub(begin).Seconds())))
		if v.What == "" || !strings.Contains(v.String(), v.Pod) {
			t.Errorf("%s: says nothing: %s", what, v)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: found %v, want %v: %v", what, got, want, found)
	}
}

// Shows: I1
func TestI1_TwoLivesAtOnce(t *testing.T) {
	expect(t, "one after the other", Twice([]Life{lived("web", 0, 1, 2), lived("web", 1, 3, 0)}))
	expect(t, "overlap", Twice([]Life{lived("web", 0, 1, 4), lived("web", 1, 3, 0)}), "I1 3")
	expect(t, "the first lives on", Twice([]Life{lived("web", 0, 1, 0), lived("web", 1, 3, 4)}), "I1 3")
	expect(t, "another pod", Twice([]Life{lived("web", 0, 1, 0), lived("db", 1, 3, 4)}))
}

// Shows: I2, I9
func TestI2_I9_EndedThoughWanted(t *testing.T) {
	stop := func(h *History, second int) []Violation {
		s := Scope{History: h, Stops: []criproxy.Made{{Method: "StopContainer", Pod: "web", ID: lived("web", 0, 2, 9).ID, Began: at(second)}}}
		return s.innocent([]Life{lived("web", 0, 2, 9)})
	}
	expect(t, "wanted", stop(history("+1"), 5), "I2 5")
	expect(t, "broken", stop(history("+1", "?3"), 5), "I9 5")
	expect(t, "away", stop(history("+1", "-4"), 5))
	expect(t, "edited", stop(history("+1", "+4"), 5))
	expect(t, "has ended", stop(history("+1"), 10))
	expect(t, "not yet away", stop(history("+1", "-6"), 5), "I2 5")
	s := Scope{History: history("+1"), Stops: []criproxy.Made{{Method: "StopPodSandbox", Pod: "web", ID: "box", Began: at(5)}}}
	inside, other := lived("web", 0, 2, 9), lived("web", 1, 2, 9)
	inside.Box, other.Box = "box", "newer"
	expect(t, "one of two sandboxes", s.innocent([]Life{inside, other}), "I2 5")
	excused := history("+1")
	excused.Excuse("web")
	expect(t, "excused", stop(excused, 5))
}

// Shows: I4
func TestI4_LivesAfterTheEnd(t *testing.T) {
	expect(t, "rising", rising([]Life{lived("web", 0, 2, 3), lived("web", 1, 4, 0)}, history("+1")))
	expect(t, "the same attempt", rising([]Life{lived("web", 1, 2, 3), lived("web", 1, 4, 0)}, history("+1")), "I4 4")
	expect(t, "made again", rising([]Life{lived("web", 1, 2, 3), lived("web", 0, 6, 0)}, history("+1", "-4", "+5")))
	expect(t, "on its way when it went", ghosts([]Life{lived("web", 0, 5, 6)}, history("+1", "-4")))
	expect(t, "long gone", ghosts([]Life{lived("web", 0, 50, 0)}, history("+1", "-4")), "I4 50")
	expect(t, "back", ghosts([]Life{lived("web", 0, 50, 0)}, history("+1", "-4", "+49")))
}

// Shows: I4
func TestI4_JournalTakesNothingBack(t *testing.T) {
	say := func(second int, phase v1.PodPhase, restarts int32) line {
		return line{Time: at(second), Pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u"},
			Status:     v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{{Name: "main", RestartCount: restarts}}},
		}}
	}
	expect(t, "rises", final([]line{say(20, v1.PodRunning, 0), say(30, v1.PodRunning, 1), say(40, v1.PodFailed, 1)}, history("+1")))
	expect(t, "falls", final([]line{say(20, v1.PodRunning, 2), say(30, v1.PodRunning, 1)}, history("+1")), "I4 30")
	expect(t, "lives again", final([]line{say(20, v1.PodSucceeded, 0), say(30, v1.PodRunning, 0)}, history("+1")), "I4 30")
	expect(t, "edited", final([]line{say(20, v1.PodSucceeded, 0), say(30, v1.PodRunning, 0)}, history("+1", "+25")))
	gone := say(25, v1.PodFailed, 3)
	gone.Gone = true
	expect(t, "made again", final([]line{say(20, v1.PodRunning, 3), gone, say(30, v1.PodRunning, 0)}, history("+1")))
}

// Shows: I5, I8
func TestI5_I8_WhatAnAgentSays(t *testing.T) {
	s := Scope{Secrets: []string{"hunter2"}}
	for i := range maxRepeats + 1 {
		s.Said = append(s.Said, fmt.Sprintf("time=%d failed try %d of 0123456789abcdef", i, i))
	}
	if found := s.bounded(); len(found) != 1 || found[0].Promise != "I5" {
		t.Errorf("found %v", found)
	}
	s.Said = append(s.Said, "password hunter2")
	if found := s.secrets(); len(found) != 1 || found[0].Promise != "I8" {
		t.Errorf("found %v", found)
	}
	s = Scope{}
	for range maxDebug {
		s.Said = append(s.Said, "level=DEBUG msg=Asked")
	}
	if found := s.bounded(); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	s.Said = append(s.Said, s.Said[0])
	if found := s.bounded(); len(found) != 1 {
		t.Errorf("found %v", found)
	}
	s = Scope{Pid: os.Getpid()}
	if found := s.bounded(); len(found) > 0 {
		t.Errorf("this test is too large: %v", found)
	}
}

func TestJournalIsReadBesideItsWriter(t *testing.T) {
	s := Scope{Root: t.TempDir()}
	if lines, err := s.journal(); err != nil || len(lines) > 0 {
		t.Errorf("none: %v, %v", lines, err)
	}
	const text = `{"time":"2026-01-02T03:04:05Z","pod":{"metadata":{"name":"web"}}}` + "\n" + `{"time":"2026-01-02T03:04:05Z","gone":true,"po`
	if err := os.WriteFile(filepath.Join(s.Root, "journal.jsonl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if lines, err := s.journal(); err != nil || len(lines) != 1 || lines[0].Pod.Name != "web" {
		t.Errorf("one and a half: %v, %v", lines, err)
	}
}
