package pleg

import (
	"testing"
	"time"
)

func TestF5_GapIsNoticed(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		gap  time.Duration
		want bool
	}{{10 * time.Second, false}, {20 * time.Second, false}, {21 * time.Second, true}, {8 * time.Hour, true}, {-time.Hour, false}} {
		if got := overslept(at, at.Add(c.gap), 10*time.Second); got != c.want {
			t.Errorf("overslept(gap %s) = %v, want %v", c.gap, got, c.want)
		}
	}
}
