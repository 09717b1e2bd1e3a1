package file

import (
	"slices"
	"testing"
	"time"
)

// TestGoneDue_FilesRemovedOneAfterTheOther_GoTogether: the files that one rm removes
// disappear in one set, so that their pods stop in order. A file that an editor replaces never
// counts as removed too early.
func TestGoneDue_FilesRemovedOneAfterTheOther_GoTogether(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1000, 0)
	ms := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Millisecond) }
	for name, c := range map[string]struct {
		since []int    // after begin, in ms
		at    int      // when they are due
		due   []string // then
	}{
		"one":                    {[]int{0}, 100, []string{"a"}},
		"two, 5 ms apart":        {[]int{0, 5}, 105, []string{"a", "b"}},
		"three, the last first":  {[]int{90, 40, 0}, 190, []string{"a", "b", "c"}},
		"more come all the time": {[]int{0, 50, 99, 101, 190}, 200, []string{"a", "b", "c"}},
	} {
		l := newScan(t.Context(), New(Config{Path: "/m"}))
		for i, since := range c.since {
			l.gone[string(rune('a'+i))] = ms(since)
		}
		if early := l.goneDue(ms(c.at - 1)); len(early) > 0 {
			t.Errorf("%s: %q are due before %d ms", name, early, c.at)
		}
		if due := l.goneDue(ms(c.at)); !slices.Equal(due, c.due) {
			t.Errorf("%s: %q are due, want %q", name, due, c.due)
		}
		l.wantFull, l.nextFull = false, ms(100_000)
		if due := l.nextDue(); !due.Equal(ms(c.at)) {
			t.Errorf("%s: the next scan is at %v, want %d ms", name, due.Sub(begin), c.at)
		}
	}
}
