package file

import "time"

// Hold sets how long a file must be missing, and how long a bad reading must last, before the
// source accepts that. It is for tests that must not depend on their own speed.
func (s *Source) Hold(vanishing, worse time.Duration) *Source {
	s.vanishing, s.worse = vanishing, worse
	return s
}
