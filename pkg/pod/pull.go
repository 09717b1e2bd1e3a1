package pod

import "time"

// PullProgress is one step of the pull of a container's image: the image is present, its
// pull begins, it takes long, or it was pulled.
type PullProgress struct {
	Image   string // as the runtime is asked for it
	Present bool   // it was there, and the pod may use it
	Pulled  bool   // it was pulled just now
	Pending bool   // its pull has not ended after Waited; none of the three: it is about to begin
	Queued  bool   // Pending: it waits for other pulls
	Took    time.Duration
	Waited  time.Duration // Took, and the wait for other pulls before it
	Bytes   int64         // of the image; 0 is unknown
}

// Warn receives the warning of an operation that succeeded, with the reason of its
// event. Any goroutine may call it, and it must not block; it may be nil.
type Warn func(reason, message string)

// Report calls w unless it is nil.
func (w Warn) Report(reason, message string) {
	if w != nil {
		w(reason, message)
	}
}
