package stats

import "time"

// Clock gives it a clock of the test's own.
func (s *Stats) Clock(now func() time.Time) { s.now = now }

// Later moves the clock, so that what was read last is too old.
func (s *Stats) Later(d time.Duration) { s.now = func() time.Time { return time.Now().Add(d) } }
