package critest

import (
	"context"
	"maps"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Fault is a failure of calls or events. The first fault that matches a call and is not
// used up applies.
type Fault struct {
	// Method is CRI's name of the call ("RunPodSandbox"), "Events" for events,
	// "" for every call.
	Method string
	// Pod and Container restrict the fault; zero matches any.
	Pod       pod.Key
	Container string
	Skip      int // so many matching calls succeed first
	Times     int // so many then fail; 0 is all

	Delay     time.Duration // before anything else
	Late      bool          // RunPodSandbox: it is done after Delay though its call has ended
	Hang      bool          // no answer until the caller leaves or a lift; then it goes on
	Err       error         // the answer, without effect
	DropReply bool          // the call takes effect, and the answer is lost: Unavailable
	Repeat    bool          // the call takes effect twice, or the event is sent twice
	Empty     bool          // lists are empty
	Drop      bool          // the event is lost
	NoSandbox bool          // the event has no sandbox
}

type fault struct {
	Fault
	skipped, used int
	lifted        chan struct{} // closed when the fault is removed
}

// Fault adds a fault; the returned function removes it.
func (rt *Runtime) Fault(f Fault) (lift func()) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	added := &fault{Fault: f, lifted: make(chan struct{})}
	rt.faults = append(rt.faults, added)
	return func() {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		for i, f := range rt.faults {
			if f == added {
				rt.faults = append(rt.faults[:i:i], rt.faults[i+1:]...)
				close(f.lifted)
				return
			}
		}
	}
}

// call is the part of a call that a fault matches.
type call struct {
	method    string
	key       pod.Key
	container string
}

// fault returns the fault for a call and uses it up by one; nil if the call succeeds. The
// caller holds the mutex.
func (rt *Runtime) fault(c call) *fault {
	for _, f := range rt.faults {
		if f.Method != c.method && (f.Method != "" || c.method == "Events") ||
			f.Pod != (pod.Key{}) && f.Pod != c.key || f.Container != "" && f.Container != c.container {
			continue
		}
		if f.Times > 0 && f.used >= f.Times {
			continue
		}
		if f.skipped < f.Skip {
			f.skipped++
			continue
		}
		f.used++
		return f
	}
	return nil
}

var errDown = status.Error(codes.Unavailable, "connection error: the runtime is down")

// intercept runs before every unary call, both in process and served: it keeps the
// transcript and applies faults.
func (rt *Runtime) intercept(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	name := path.Base(info.FullMethod)
	rt.mu.Lock()
	life := rt.life
	if life.Err() != nil {
		rt.mu.Unlock()
		return nil, errDown
	}
	c, text := rt.describe(name, q)
	line := rt.record(name, text)
	f := rt.fault(c)
	rt.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()

	a, err := rt.faulty(ctx, f, q, handle)
	if mutating[name] {
		rt.stall(ctx)
		if err != nil {
			rt.amend(line, err)
		} else {
			rt.done(line)
		}
	}
	switch {
	case life.Err() != nil:
		return nil, errDown
	case err == nil && f != nil && f.DropReply:
		return nil, status.Error(codes.Unavailable, "connection error: the reply was lost")
	}
	return a, err
}

// faulty makes the call with the fault.
func (rt *Runtime) faulty(ctx context.Context, f *fault, q any, handle grpc.UnaryHandler) (any, error) {
	if f == nil {
		return handle(ctx, q)
	}
	if f.Late {
		return rt.late(ctx, f.Delay, q, handle)
	}
	if f.Delay > 0 {
		wait := time.NewTimer(f.Delay)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-f.lifted:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if f.Hang {
		select {
		case <-f.lifted:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := handle(ctx, q)
	if f.Repeat {
		_, _ = handle(ctx, q) // the second answer of a repeated request is dropped
	}
	if f.Empty && err == nil {
		switch a.(type) {
		case *runtimeapi.ListPodSandboxResponse:
			a = &runtimeapi.ListPodSandboxResponse{}
		case *runtimeapi.ListContainersResponse:
			a = &runtimeapi.ListContainersResponse{}
		}
	}
	return a, err
}

// late makes the sandbox after a delay, even if its caller leaves; until then its name is
// reserved (F3).
func (rt *Runtime) late(ctx context.Context, delay time.Duration, q any, handle grpc.UnaryHandler) (any, error) {
	name := sandboxName(q.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetMetadata())
	rt.mu.Lock()
	rt.making[name] = true
	rt.mu.Unlock()
	type result struct {
		answer any
		err    error
	}
	done := make(chan result, 1) // buffered: the call does not wait for a receiver
	time.AfterFunc(delay, func() {
		rt.mu.Lock()
		delete(rt.making, name)
		rt.mu.Unlock()
		a, err := handle(context.WithoutCancel(ctx), q)
		done <- result{a, err}
	})
	select {
	case r := <-done:
		return r.answer, r.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Calls returns the number of calls of each CRI method.
func (rt *Runtime) Calls() map[string]int {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	out := make(map[string]int, len(rt.calls))
	for k, v := range rt.calls {
		out[k] = v
	}
	return out
}

// Reset clears the transcript and the call counts, and restarts its time at zero. Pods and
// images stay.
func (rt *Runtime) Reset() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.log, rt.calls, rt.start = nil, map[string]int{}, time.Now()
}

// Crash stops the runtime's service: calls in flight and all further ones fail, streams
// end, sockets are removed. Containers keep running.
func (rt *Runtime) Crash() {
	rt.mu.Lock()
	rt.kill()
	servers := maps.Clone(rt.servers)
	rt.mu.Unlock()
	for _, s := range servers {
		s.stop()
	}
}

// Restart starts the service again, on the same sockets.
func (rt *Runtime) Restart() error {
	rt.mu.Lock()
	rt.life, rt.kill = context.WithCancel(context.Background())
	var paths []string
	for p := range rt.servers {
		paths = append(paths, p)
	}
	rt.mu.Unlock()
	var failed []string
	for _, p := range paths {
		if err := rt.listen(p); err != nil {
			failed = append(failed, err.Error())
		}
	}
	if failed != nil {
		return status.Error(codes.Internal, strings.Join(failed, "; "))
	}
	return nil
}
