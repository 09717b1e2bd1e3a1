package criproxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
)

// Event is the method of rules for single events, not for the call GetContainerEvents that
// delivers them.
const Event = "Event"

// A Rule says which calls get a fault, and which fault. A rule without a fault only watches
// the calls.
type Rule struct {
	Method    string // bare; "" is every call, and no event
	Pod       string // a pod's name; "" is any pod, and calls about none
	Container string // "" is any container, and calls about a pod as a whole
	Skip      int    // how many matching calls pass first
	Times     int    // how many calls then get the fault; 0 is all

	// The faults of a call, in this order, before the runtime gets it; with After, when the
	// runtime has done it and before the client gets the answer.
	After bool
	Delay time.Duration
	Swap  bool  // it waits until the next matching call was answered, or swapPatience has passed
	Hang  bool  // until Lift, or until the client gives up
	Err   error // the answer; after the effect, the real one is lost

	Twice bool // the runtime gets the call twice, the client the second answer
	Empty bool // the answer is an empty message: an empty list

	// For an event, Delay delivers it late, behind newer ones; Swap right behind the next
	// matching one; Hang halts the stream; Err ends it; and:
	Drop      bool
	NoSandbox bool // without its sandbox's status
}

// Made is one call, or event, that a rule matched.
type Made struct {
	Method, Pod, Container string // Container is "" for a pod as a whole
	ID                     string // of the container or the sandbox that it named; "" for none
	Began, Ended           time.Time
	Err                    error // the client's result
}

// A Fault is a rule in force.
type Fault struct {
	Rule
	lifted chan struct{} // closed by Lift

	// Guarded by the proxy's lock.
	proxy *Proxy
	seen  int
	made  []*Made
	more  chan struct{} // closed and replaced at each call
	swap  chan struct{} // closed by the call that a swapped call waits for
}

// Fault puts a rule in force. If several rules match a call, their faults follow one another
// in the order of the calls of Fault.
func (p *Proxy) Fault(r Rule) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &Fault{Rule: r, proxy: p, lifted: make(chan struct{}), more: make(chan struct{})}
	p.faults = append(p.faults, f)
	return f
}

// Lift ends the rule; calls that hang because of it resume.
func (f *Fault) Lift() {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	if i := slices.Index(f.proxy.faults, f); i >= 0 {
		f.proxy.faults = slices.Delete(f.proxy.faults, i, i+1)
		close(f.lifted)
	}
}

// Calls returns the calls that the rule has matched so far, in their order.
func (f *Fault) Calls() []Made {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	all := make([]Made, len(f.made))
	for i, m := range f.made {
		all[i] = *m
	}
	return all
}

// Await returns once the rule has matched n calls, or an error when ctx ends.
func (f *Fault) Await(ctx context.Context, n int) error {
	for {
		f.proxy.mu.Lock()
		got, more := len(f.made), f.more
		f.proxy.mu.Unlock()
		if got >= n {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%s%s: %d calls, want %d: %w", f.Method, f.Pod, got, n, context.Cause(ctx))
		}
	}
}

// hits are the faults that match one call, or event.
type hits []hit

type hit struct {
	*Fault
	made *Made
}

// catch returns the faults that match a call.
func (p *Proxy) catch(ctx context.Context, method, full string, q mem.BufferSlice) hits {
	return p.meet(method, func() whom { return p.names.ofRequest(ctx, full, q) })
}

// meet returns the faults of a method that match the object of the message. It calls ask without
// the lock, and only if there is a fault of the method.
func (p *Proxy) meet(method string, ask func() whom) hits {
	fits := func(f *Fault) bool { return f.Method == method || f.Method == "" && method != Event }
	p.mu.Lock()
	some := slices.ContainsFunc(p.faults, fits)
	p.mu.Unlock()
	if !some {
		return nil
	}
	about := ask()
	p.mu.Lock()
	defer p.mu.Unlock()
	var met hits
	for _, f := range p.faults {
		if !fits(f) || f.Pod != "" && f.Pod != about.pod || f.Container != "" && f.Container != about.container {
			continue
		}
		if f.seen++; f.seen <= f.Skip || f.Times > 0 && f.seen > f.Skip+f.Times {
			continue
		}
		m := &Made{Method: method, Pod: about.pod, Container: about.container, ID: about.id, Began: time.Now()}
		f.made = append(f.made, m)
		close(f.more)
		f.more = make(chan struct{})
		met = append(met, hit{f, m})
	}
	return met
}

func (all hits) any(of func(Rule) bool) bool {
	return slices.ContainsFunc(all, func(h hit) bool { return of(h.Rule) })
}

func (all hits) before(ctx context.Context) error { return all.do(ctx, false) }
func (all hits) after(ctx context.Context) error  { return all.do(ctx, true) }

// do applies the faults of one side of the runtime, and returns the answer of one of them.
func (all hits) do(ctx context.Context, after bool) error {
	for _, h := range all {
		if h.After != after {
			continue
		}
		if h.Delay > 0 {
			pause(ctx, h.Delay, nil)
		}
		if h.Swap {
			h.giveWay(ctx)
		}
		if h.Hang {
			pause(ctx, 0, h.lifted)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if h.Err != nil {
			return h.Err
		}
	}
	return nil
}

// swapPatience is how long a call waits for the one that overtakes it.
const swapPatience = 20 * time.Second

// giveWay holds the first of two calls until the second has ended.
func (h hit) giveWay(ctx context.Context) {
	h.proxy.mu.Lock()
	if h.swap != nil { // this is the second call
		h.proxy.mu.Unlock()
		return
	}
	mine := make(chan struct{})
	h.swap = mine
	h.proxy.mu.Unlock()
	pause(ctx, swapPatience, mine)
}

// end records the client's result.
func (all hits) end(err error) {
	if len(all) == 0 {
		return
	}
	mu := &all[0].proxy.mu
	mu.Lock()
	defer mu.Unlock()
	for _, h := range all {
		h.made.Ended, h.made.Err = time.Now(), err
		if h.swap != nil {
			close(h.swap)
			h.swap = nil
		}
	}
}

// pause returns after d (never, for 0), when over is closed, or when ctx ends.
func pause(ctx context.Context, d time.Duration, over <-chan struct{}) {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-due:
	case <-over:
	case <-ctx.Done():
	}
}

// later runs f in wg after d, unless ctx ends before.
func later(ctx context.Context, wg *sync.WaitGroup, d time.Duration, f func()) {
	wg.Go(func() {
		if pause(ctx, d, nil); ctx.Err() == nil {
			f()
		}
	})
}
