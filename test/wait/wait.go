// Package wait waits in tests for the effects of other goroutines, processes and machines.
//
// A test that must also pass on a busy machine cannot know how long anything takes. It knows the
// observed value. So each function here waits as long as the observed value keeps changing: it
// gives up when the value has been the same for Stall, or when Limit has passed since the call, and
// it reports the last value. Limit ends the wait even if the function that observes does not
// return.
//
// A test that waits for a condition calls this package. Only a test whose subject is time itself
// uses timers, and then inside a testing/synctest bubble.
package wait

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

const (
	// Stall is how long an observed value may stay the same before a wait fails. On a machine
	// whose run queue holds thirty processes, one sandbox has taken half a minute.
	Stall = 3 * time.Minute
	// Limit is how long a wait may take in all, however often the value changes.
	Limit = 10 * time.Minute
)

// An Option changes when a wait gives up.
type Option int

// WithoutStall lets a value stay the same until Limit, for a condition that waits for other tests.
const WithoutStall Option = 1

// Polls start close together, so that a fast test stays fast, and then spread out, so that waiting
// takes no CPU from the observed work.
const (
	firstPoll = time.Millisecond
	lastPoll  = 100 * time.Millisecond

	// An observation that takes long, such as a command, is made less often: the pause is
	// costFactor times as long as the observation took, up to costlyPoll.
	costFactor = 9
	costlyPoll = time.Second
)

// Until calls observe until it reports done, and returns the value it observed then. On failure, it
// reports the description and the last value. Two values are the same if they print the same with
// %v, so a value that holds a pointer needs a String method to be distinguished. observe runs in a
// goroutine of its own, one call at a time; it may fail the test.
func Until[T any](t testing.TB, what string, observe func() (value T, done bool), options ...Option) T {
	t.Helper()
	value, err := poll(observe, options...)
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
	return value
}

// NoError calls f until it returns nil. The observed value is the text of the error.
func NoError(t testing.TB, f func() error, options ...Option) {
	t.Helper()
	if err := Try(f, options...); err != nil {
		t.Fatal(err)
	}
}

// Try is NoError for code that goes on after a failure: it returns the last error
// instead of failing the test.
func Try(f func() error, options ...Option) error {
	_, err := poll(func() (error, bool) { err := f(); return err, err == nil }, options...)
	return err
}

// Equal calls get until it returns want.
func Equal[T comparable](t testing.TB, what string, want T, get func() T) {
	t.Helper()
	Until(t, fmt.Sprintf("%s is %v", what, want), func() (T, bool) { got := get(); return got, got == want })
}

// True calls f until it returns true. It can only say that the condition never held: prefer Until
// or Equal, which report the observed value.
func True(t testing.TB, what string, f func() bool) {
	t.Helper()
	Until(t, what, func() (bool, bool) { ok := f(); return ok, ok })
}

// Receive returns the next value of c, or the zero value once c is closed. It fails the
// test when nothing comes for Limit.
func Receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	select {
	case v := <-c:
		return v
	case <-limit.C:
		t.Fatalf("waiting for %s: nothing within %s", what, Limit)
		panic("unreachable")
	}
}

func poll[T any](observe func() (T, bool), options ...Option) (T, error) {
	begun := time.Now()
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	changed, last := begun, ""
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		asked := time.Now()
		value, done, ended := observed(observe, limit.C)
		if !ended {
			return value, fmt.Errorf("not within %s, still observing, last observed: %s", Limit, last)
		}
		if done {
			return value, nil
		}
		now, text := time.Now(), fmt.Sprint(value)
		if text != last {
			changed, last = now, text
		}
		switch {
		case now.Sub(begun) >= Limit:
			return value, fmt.Errorf("not within %s, last observed: %s", Limit, last)
		case now.Sub(changed) >= Stall && !slices.Contains(options, WithoutStall):
			return value, fmt.Errorf("unchanged for %s, last observed: %s", Stall, last)
		}
		time.Sleep(max(pause, min(costFactor*now.Sub(asked), costlyPoll)))
	}
}

// observed returns the result of observe; ended is false if the limit comes first. A panic of
// observe, and the end of its goroutine by FailNow, become the caller's.
func observed[T any](observe func() (T, bool), limit <-chan time.Time) (value T, done, ended bool) {
	type outcome struct {
		value          T
		done, returned bool
		panicked       any
	}
	c := make(chan outcome, 1) // one outcome; there is room when the caller has left
	go func() {
		var o outcome
		defer func() {
			if !o.returned {
				o.panicked = recover()
			}
			if err, ok := o.panicked.(runtime.Error); ok {
				o.panicked = fmt.Sprintf("%v\n%s", err, debug.Stack())
			}
			c <- o
		}()
		o.value, o.done = observe()
		o.returned = true
	}()
	select {
	case o := <-c:
		switch {
		case o.panicked != nil:
			panic(o.panicked)
		case !o.returned:
			runtime.Goexit()
		}
		return o.value, o.done, true
	case <-limit:
		return value, false, false
	}
}
