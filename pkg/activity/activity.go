// Package activity records the current work of an agent for each pod: the calls that have begun and
// not ended, with their times, and the state of each pod that is not settled.
//
// The engine makes a Board and puts it into its contexts, with the pod that each worker, probe or
// job works for. Code that may hang reports its call with Begin: the engine its steps and hooks,
// cri each call to the runtime, image its pulls, volume each volume, apiclient each request.
// `nodectl why` shows the Board.
//
// An idle pod costs nothing: the Board holds only calls that run and pods that wait. It has no
// goroutine and no history.
package activity

import (
	"cmp"
	"context"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kinds of calls.
const (
	Step    = "step"    // one step of a plan; the calls that it makes have entries of their own
	Runtime = "runtime" // a call to the container runtime
	Pull    = "pull"    // an image pull; Target is the registry
	Volume  = "volume"  // work on a volume or a directory of a pod
	Log     = "log"     // rotation of a container's log
	Record  = "record"  // a file of the agent
	Hook    = "hook"    // a lifecycle hook
	Probe   = "probe"   // a probe that runs
	Request = "request" // a request to an API server
	Watch   = "watch"   // a watch at an API server since its last event
	Program = "program" // a credential provider
	Slot    = "slot"    // the wait for a start slot
	Driver  = "driver"  // a call to a CSI driver, or the wait for one; Target is the volume, Host the driver
	Claim   = "claim"   // a call to a DRA driver; Target is the ResourceClaim, Host the driver
	Plugin  = "plugin"  // a call to a device plugin, or the wait for one; Target is the container, Host the resource
)

// Call is one call that has begun and not ended.
type Call struct {
	Kind string `json:"kind"`
	// Name is the operation ("CreateContainer", "preStop"). Target is its object: a container, an
	// image, a URL.
	Name   string `json:"name"`
	Target string `json:"target,omitempty"`
	// Host is the registry or the server that has to answer, Path the file or directory that is
	// used.
	Host string `json:"host,omitempty"`
	Path string `json:"path,omitempty"`
	// Resolving is the host whose name is being looked up for the call.
	Resolving string `json:"resolving,omitempty"`
	// Version is the newest resource version that a watch has shown.
	Version string    `json:"version,omitempty"`
	Since   time.Time `json:"since"`
	// Limit is the time after which the call fails by itself; zero: never.
	Limit time.Time `json:"limit,omitzero"`

	pod pod.Key
}

// State is the state of a pod that is not settled, from the newest plan of its worker. The State of
// the zero Key applies to all pods.
type State struct {
	// Steps are the next steps of the plan.
	Steps []string `json:"steps,omitempty"`
	// WaitFor is the condition that the pod waits for, and Until the time at which it continues in
	// any case; both may be empty.
	WaitFor string    `json:"waitFor,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	// Failures are the steps that failed and are tried again.
	Failures []Failure `json:"failures,omitempty"`
	// Since is when the pod began to wait for the same.
	Since time.Time `json:"since"`
}

// Failure is a step that failed.
type Failure struct {
	Container string    `json:"container,omitempty"` // empty: of the pod
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	Count     int       `json:"count"`
	Until     time.Time `json:"until,omitzero"` // the next try
}

// Board holds the calls and states of one agent. Its methods may be called from many
// goroutines; those of a nil Board do nothing.
type Board struct {
	mu     sync.Mutex // guards the maps, for the length of one access
	calls  map[*Call]struct{}
	states map[pod.Key]State
}

// NewBoard returns an empty Board.
func NewBoard() *Board {
	return &Board{calls: make(map[*Call]struct{}), states: make(map[pod.Key]State)}
}

// key is the key of a context's place.
type key struct{}

// place is the board of a context, and the pod that its goroutine works for; the zero Key is the
// agent as a whole.
type place struct {
	board *Board
	pod   pod.Key
}

// Context returns ctx with the Board: calls that begin with it are those of the agent.
func (b *Board) Context(ctx context.Context) context.Context {
	if b == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, place{board: b})
}

// WithPod returns ctx for work for one pod.
func WithPod(ctx context.Context, of pod.Key) context.Context {
	at, ok := ctx.Value(key{}).(place)
	if !ok {
		return ctx
	}
	at.pod = of
	return context.WithValue(ctx, key{}, at)
}

// Begin notes a call that begins now, on the Board of ctx. end notes its end.
func Begin(ctx context.Context, c Call) (end func()) {
	at, ok := ctx.Value(key{}).(place)
	if !ok {
		return func() {}
	}
	return at.board.Begin(at.pod, c)
}

// Trace is Begin for a call that uses the network: while a connection that is made with the
// returned context waits for the address of a host, the call names that host.
func Trace(ctx context.Context, c Call) (traced context.Context, end func()) {
	at, ok := ctx.Value(key{}).(place)
	if !ok {
		return ctx, func() {}
	}
	noted := at.board.note(at.pod, c)
	resolving := func(host string) {
		at.board.mu.Lock()
		defer at.board.mu.Unlock()
		noted.Resolving = host
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSStart: func(i httptrace.DNSStartInfo) { resolving(i.Host) },
		DNSDone:  func(httptrace.DNSDoneInfo) { resolving("") },
	}), func() { at.board.end(noted) }
}

// Begin notes a call for a pod that begins now. end notes its end.
func (b *Board) Begin(of pod.Key, c Call) (end func()) {
	if b == nil {
		return func() {}
	}
	noted := b.note(of, c)
	return func() { b.end(noted) }
}

// note adds a call that begins now.
func (b *Board) note(of pod.Key, c Call) *Call {
	c.pod, c.Since = of, time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[&c] = struct{}{}
	return &c
}

func (b *Board) end(c *Call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, c)
}

// Calls returns the calls of a pod, or with the zero Key of the agent as a whole, the oldest
// first.
func (b *Board) Calls(of pod.Key) []Call {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	var all []Call
	for c := range b.calls {
		if c.pod == of {
			all = append(all, *c)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(a, b Call) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Host, b.Host))
	})
	return all
}

// SetState stores the state of a pod. Its Since stays that of the state before, if the pod waits
// for the same. A state without steps, failures and WaitFor is removed: the pod is settled.
func (b *Board) SetState(of pod.Key, s State) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(s.Steps) == 0 && len(s.Failures) == 0 && s.WaitFor == "" {
		delete(b.states, of)
		return
	}
	s.Since = time.Now()
	if before, ok := b.states[of]; ok && before.WaitFor == s.WaitFor && slices.Equal(before.Steps, s.Steps) {
		s.Since = before.Since
	}
	b.states[of] = s
}

// State returns the state of a pod; ok is false for a settled pod.
func (b *Board) State(of pod.Key) (s State, ok bool) {
	if b == nil {
		return s, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok = b.states[of]
	return s, ok
}
