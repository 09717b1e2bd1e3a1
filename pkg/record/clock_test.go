package record_test

import (
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/record"
)

// TestF14_TimesOfAnyClock: times from a wrong clock are read as they were written.
//
// Shows: F14
func TestF14_TimesOfAnyClock(t *testing.T) {
	t.Parallel()
	now := time.Now().Round(0)
	for name, at := range map[string]time.Time{
		"the beginning":   time.Unix(0, 0),
		"after 2038":      time.Unix(1<<31, 1),
		"an hour ahead":   now.Add(time.Hour),
		"ten years ahead": now.AddDate(10, 0, 0),
		"ten years back":  now.AddDate(-10, 0, 0),
		"the last year":   time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC),
	} {
		want := sample()
		want.StartTime, want.StopSince = at, at.Add(-time.Hour)
		root := t.TempDir()
		mustSave(t, record.New(root), want)
		got, ok, err := record.New(root).Load(want.Key, want.UID)
		if !ok || err != nil {
			t.Errorf("%s: %t, %v", name, ok, err)
			continue
		}
		if diff := same(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
