// Package wakeup wakes a goroutine that waits for work.
//
// The goroutine that changes shared state calls Send, and the goroutine that reads the state receives
// from the Signal. Several changes before the receiver wakes up are one signal: the receiver reads the
// newest state and has missed nothing.
package wakeup

// Signal wakes one receiver. The zero Signal wakes none.
type Signal chan struct{}

// New returns a Signal.
func New() Signal { return make(Signal, 1) }

// Send wakes the receiver, now or when it receives next. Send never waits.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default: // the receiver has not received the last signal
	}
}
