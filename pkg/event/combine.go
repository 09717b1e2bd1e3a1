package event

import (
	"hash/maphash"
	"time"

	v1 "k8s.io/api/core/v1"
)

// What is alike but for its message is combined, once there is much of it: the
// numbers are those of client-go's correlator.
const (
	mostAlike   = 10
	alikeWithin = 10 * time.Minute
	combined    = "(combined from similar events): "
)

// what tells events apart: two that agree in it are one that has happened twice.
type what struct {
	about                 v1.ObjectReference
	kind, reason, message string
}

// kind is what without its message.
type kind struct {
	about        v1.ObjectReference
	kind, reason string
}

// similar is what was told of one kind lately.
type similar struct {
	messages map[uint64]bool // sums of them
	last     time.Time
}

func whatOf(e *v1.Event) what {
	w := what{about: e.InvolvedObject, kind: e.Type, reason: e.Reason, message: e.Message}
	if len(w.message) >= len(combined) && w.message[:len(combined)] == combined {
		w.message = combined
	}
	return w
}

// combine returns the message that an event is told apart by, and the one that is
// shown: with more than a few others like it, it counts as one of them.
func (s *Store) combine(w what, at time.Time) (apart, shown string) {
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

// forgetKinds lets go of what was not told lately, or of all.
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
