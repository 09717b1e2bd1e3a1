// Package boundedcall makes calls that may never end: those to file systems whose server does not
// answer hang in the kernel, and nothing can end them.
//
// The periodic jobs of the engine, the statistics and `nodectl why` make such calls for many pods
// or mounts, each under a name. A call that hangs delays the others once, by a bounded time. Until
// it has ended, no other call is made for its name, and the number of calls that run is bounded.
//
// A worker that leaves a call behind when the agent exits uses Start.
//
// No other package starts a goroutine that outlives the function that started it.
package boundedcall

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/panics"
)

// ErrHangs says that a call has not ended in time, or that an earlier one of its name has not
// ended yet. ErrBusy says that a call was not made, because too many others have not ended.
var (
	ErrHangs = errors.New("no answer from the file system or the runtime")
	ErrBusy  = errors.New("too many other calls have not ended")
)

// afterEnd is how long a call may take to end after its context has ended (F4).
const afterEnd = time.Second

// Calls makes calls by name. It is safe for concurrent use.
type Calls struct {
	limit   int
	mu      sync.Mutex // guards running, for the length of one access
	running map[string]bool
}

// New returns Calls that run at most limit calls at once.
func New(limit int) *Calls { return &Calls{limit: limit, running: make(map[string]bool)} }

// Do runs f and returns its error. If f does not end within limit, where that is not 0, or soon
// after the end of ctx, Do returns ErrHangs and f continues: the caller must then use nothing
// that f writes. A panic of f is an error.
func (c *Calls) Do(ctx context.Context, name string, limit time.Duration, f func() error) error {
	if err := c.begin(name); err != nil {
		return err
	}
	done := Start(func() error {
		defer c.end(name)
		return f()
	})
	var late <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	select {
	case err := <-done:
		return err
	case <-late:
		return ErrHangs
	case <-ctx.Done():
	}
	end := time.NewTimer(afterEnd)
	defer end.Stop()
	select {
	case err := <-done:
		return err
	case <-end.C:
		return ErrHangs
	}
}

// Start runs f in a goroutine, which the caller may leave behind, and returns the channel that
// gets the error of f. A panic of f is an error.
func Start(f func() error) <-chan error {
	done := make(chan error, 1) // its goroutine never waits for the receiver
	go func() { done <- panics.ToError(f) }()
	return done
}

func (c *Calls) begin(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.running[name]:
		return ErrHangs
	case len(c.running) >= c.limit:
		return ErrBusy
	}
	c.running[name] = true
	return nil
}

func (c *Calls) end(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, name)
}
