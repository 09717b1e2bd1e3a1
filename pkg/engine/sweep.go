package engine

import (
	"context"
	"sync"
)

// sweep keeps the removal of directories of unknown pods (loop.sweepDirectories) from removing
// the directories of pods that are added meanwhile. The sync loop, the workers and the removal
// share it.
type sweep struct {
	mu       sync.Mutex
	known    map[string]bool // the UIDs whose directories stay; nil while no removal runs
	removing string          // the UID whose directories the removal removes now; "" for none
	removed  chan struct{}   // closed when the directories of removing are gone
}

// begin begins a removal that keeps the directories of the known UIDs.
func (s *sweep) begin(known map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = known
}

// end ends the removal.
func (s *sweep) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
	s.next("")
}

// add keeps the directories of a new pod, if a removal runs.
func (s *sweep) add(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known != nil {
		s.known[uid] = true
	}
}

// keeps reports whether the directories of a UID stay. The removal calls it right before it
// removes them, and after it has removed those of the UID before.
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

// next notes that the directories of removing are gone, and that those of uid are next.
func (s *sweep) next(uid string) {
	if s.removing != "" {
		close(s.removed)
	}
	if s.removing = uid; uid != "" {
		s.removed = make(chan struct{})
	}
}

// await waits until the directories of uid are not being removed any more, or until ctx is
// done. add was called for uid before.
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
