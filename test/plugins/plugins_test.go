package plugins

import (
	"slices"
	"testing"
	"time"
)

// A second call counts as a repetition if an agent may have lost the answer of the first. Else it has an
// effect twice. After the effect is undone or lost, a call is the first again.
func TestEffects_SecondCall_IsRepeatedOrTwice(t *testing.T) {
	t.Parallel()
	lost := false
	n := &Node{Lost: func(time.Time) bool { return lost }}
	e := &Effects{}
	e.put(n, "a")
	e.put(n, "b")
	if got := e.Left(); !slices.Equal(got, []string{"a", "b"}) || e.Repeated() != 0 || len(e.Twice()) != 0 {
		t.Fatalf("after the first calls: %v, %d repeated, twice %v", got, e.Repeated(), e.Twice())
	}
	lost = true
	e.put(n, "a")
	lost = false
	e.put(n, "b")
	if e.Repeated() != 1 || !slices.Equal(e.Twice(), []string{"b"}) {
		t.Errorf("%d repeated, twice %v", e.Repeated(), e.Twice())
	}
	e.Doubt(func(what string) bool { return what == "b" })
	e.put(n, "a")
	e.put(n, "b")
	if e.Repeated() != 2 || !slices.Equal(e.Twice(), []string{"b", "b"}) {
		t.Errorf("after the end of an agent: %d repeated, twice %v", e.Repeated(), e.Twice())
	}
	e.drop("a")
	e.put(n, "a")
	e.Lose()
	e.put(n, "b")
	if got := e.Left(); !slices.Equal(got, []string{"b"}) || e.Repeated() != 2 || len(e.Twice()) != 2 {
		t.Errorf("after the ends: %v, %d repeated, twice %v", got, e.Repeated(), e.Twice())
	}
}
