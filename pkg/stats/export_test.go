package stats

import "time"

// Clock sets a test's clock.
func (s *Stats) Clock(now func() time.Time) { s.now = now }

// Later moves the clock, so that the last reading is too old.
func (s *Stats) Later(d time.Duration) { s.now = func() time.Time { return time.Now().Add(d) } }

// Mounts sets the list of mounts.
func (s *Stats) Mounts(file string) { s.mountinfo = file }
