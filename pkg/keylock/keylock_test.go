package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestLock_HeldByAnother_WaitsForItOrForTheContext(t *testing.T) {
	t.Parallel()
	var l Locks[string]
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal("another key waits", err)
	}
	other()
	cause := errors.New("over")
	over, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := l.Lock(over, "a"); !errors.Is(err, cause) {
		t.Errorf("a held key: %v", err)
	}
	unlock()
	if len(l.all) != 0 {
		t.Errorf("%d locks are kept", len(l.all))
	}
}

func TestLock_ManyGoroutines_OneHoldsIt(t *testing.T) {
	t.Parallel()
	var l Locks[int]
	var wg sync.WaitGroup
	n := 0 // the race detector reports a second holder
	for range 50 {
		wg.Go(func() {
			unlock, err := l.Lock(t.Context(), 1)
			if err != nil {
				t.Error(err)
				return
			}
			n++
			unlock()
		})
	}
	wg.Wait()
	if n != 50 || len(l.all) != 0 {
		t.Errorf("%d calls, %d locks are kept", n, len(l.all))
	}
}
