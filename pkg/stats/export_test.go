package stats

import "time"

// Later moves the clock, so that what was read last is too old.
func (s *Stats) Later(d time.Duration) { s.now = func() time.Time { return time.Now().Add(d) } }
