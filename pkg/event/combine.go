package event

import (
	"hash/maphash"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Many events that differ only in their message are combined, with the limits of
// client-go's correlator.
const (
	mostAlike   = 10
	alikeWithin = 10 * time.Minute
	combined    = "(combined from similar events): "
)

// identity identifies events: two with the same value are one event that happened twice.
type identity struct {
	about                 v1.ObjectReference
	kind, reason, message string
}

// kind identifies events that differ only in the message.
type kind struct {
	about        v1.ObjectReference
	kind, reason string
}

// similar holds the recent messages of one kind.
type similar struct {
	messages map[uint64]bool // checksums of them
	last     time.Time
}

func identityOf(e *v1.Event) identity {
	w := identity{about: e.InvolvedObject, kind: e.Type, reason: e.Reason, message: e.Message}
	if len(w.message) >= len(combined) && w.message[:len(combined)] == combined {
		w.message = combined
	}
	return w
}

// combine returns the message that identifies an event, and the message to show. Beyond a
// few events of one kind, further ones count as one event.
func (s *Store) combine(w identity, at time.Time) (apart, shown string) {
	k := kind{w.about, w.kind, w.reason}
	a := s.kinds[k]
	if a == nil || at.Sub(a.last) > alikeWithin {
		if a == nil && len(s.kinds) >= maxEvents {
			s.forgetKinds(at)
		}
		a = &similar{messages: make(map[uint64]bool, 1)}
		s.kinds[k] = a
	}
	a.last = at
	sum := maphash.String(s.seed, w.message)
	if a.messages[sum] || len(a.messages) < mostAlike {
		a.messages[sum] = true
		return w.message, w.message
	}
	shown = combined + w.message
	return combined, shown[:min(len(shown), maxMessage)]
}

// forgetKinds drops the kinds without recent events, or all if there are still too many.
func (s *Store) forgetKinds(now time.Time) {
	for k, a := range s.kinds {
		if now.Sub(a.last) > alikeWithin {
			delete(s.kinds, k)
		}
	}
	if len(s.kinds) >= maxEvents {
		clear(s.kinds)
	}
}
