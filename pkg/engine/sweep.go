package engine

import (
	"context"
	"sync"
)

// sweep keeps the removal of directories of unknown pods from removing those of new pods.
// Loop, workers and the removal share it.
type sweep struct {
	mu       sync.Mutex
	known    map[string]bool // UIDs whose directories stay; nil while nothing is swept
	removing string          // the UID whose directories are being removed; "" for none
	removed  chan struct{}   // closed when they are
}

// begin starts a sweep that keeps the directories of known.
func (s *sweep) begin(known map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = known
}

// end ends the sweep.
func (s *sweep) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
	s.next("")
}

// add has a sweep keep the directories of a new pod.
func (s *sweep) add(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known != nil {
		s.known[uid] = true
	}
}

// keeps reports whether the directories of a UID stay. The sweep calls it right before it
// removes them: the ones before are removed by then.
func (s *sweep) keeps(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[uid] {
		s.next("")
		return true
	}
	s.next(uid)
	return false
}

// next notes that the removal in progress is done, and which one begins.
func (s *sweep) next(uid string) {
	if s.removing != "" {
		close(s.removed)
	}
	if s.removing = uid; uid != "" {
		s.removed = make(chan struct{})
	}
}

// await waits until no directories of uid, which was added, are being removed any more, or
// until the end of ctx.
func (s *sweep) await(ctx context.Context, uid string) {
	s.mu.Lock()
	removing, removed := s.removing == uid, s.removed
	s.mu.Unlock()
	if !removing {
		return
	}
	select {
	case <-removed:
	case <-ctx.Done():
	}
}
