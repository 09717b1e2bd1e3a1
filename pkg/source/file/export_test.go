package file

import "time"

// Hold sets how long a file must be away, and how long a bad reading must last, before
// it is accepted; for tests that must not depend on their own speed.
func (s *Source) Hold(vanishing, badNews time.Duration) *Source {
	s.vanishing, s.badNews = vanishing, badNews
	return s
}
