package wakeup

import "testing"

// Signals before the receiver receives are one. A signal after it is another one.
func TestSignal_SentSeveralTimes_IsReceivedOnce(t *testing.T) {
	s := New()
	for range 2 {
		for range 3 {
			s.Send()
		}
		select {
		case <-s:
		default:
			t.Fatal("the receiver gets no signal")
		}
		select {
		case <-s:
			t.Fatal("the receiver gets a signal twice")
		default:
		}
	}
}

// A Signal that no code has made has no receiver, and its sender does not wait.
func TestSignal_Zero_DoesNotBlockItsSender(t *testing.T) {
	var s Signal
	s.Send()
}
