package pod

import "time"

// PullNews is one step on the way to an image that a container needs: it is there
// already, it is being pulled, or it was pulled.
type PullNews struct {
	Image   string // as the runtime is asked for it
	Present bool   // it was there, and the pod may use it
	Pulled  bool   // it was pulled just now; neither: it is about to be
	Took    time.Duration
	Waited  time.Duration // Took, and what the pull waited for others before
	Bytes   int64         // of the image; 0 is unknown
}

// Warn takes what a person should hear of although it went well, with the reason of its
// event. It may be called from any goroutine, and must not wait; nil hears nothing.
type Warn func(reason, message string)

// Say calls w unless it is nil.
func (w Warn) Say(reason, message string) {
	if w != nil {
		w(reason, message)
	}
}
