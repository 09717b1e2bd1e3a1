package engine

import (
	"context"
	"sync"
)

// sweep is what the removal of directories of unknown pods and the pods that come
// meanwhile know of each other. Loop, workers and the sweep itself share it.
type sweep struct {
	mu       sync.Mutex
	known    map[string]bool // UIDs whose directories stay; nil while nothing is swept
	removing string          // the UID whose directories are being removed; "" for none
	removed  chan struct{}   // closed when they are
}

// begin starts a sweep that leaves what known names.
func (s *sweep) begin(known map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = known
}

// end ends it.
func (s *sweep) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
	s.next("")
}

// add has a sweep leave what belongs to a pod that has come.
func (s *sweep) add(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known != nil {
		s.known[uid] = true
	}
}

// keeps is asked right before a UID's directories are removed: what it was asked for
// before has been done by then.
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

// next says that what was being removed is, and what is from now on.
func (s *sweep) next(uid string) {
	if s.removing != "" {
		close(s.removed)
	}
	if s.removing = uid; uid != "" {
		s.removed = make(chan struct{})
	}
}

// await waits until nothing of uid, which was added, is being removed any more, or until
// the end of ctx.
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
