package file

import "time"

// Hold changes how long a file must be away, and how long bad news must last,
// before it is believed; for tests that must not depend on their own speed.
func (s *Source) Hold(vanishing, badNews time.Duration) *Source {
	s.vanishing, s.badNews = vanishing, badNews
	return s
}
