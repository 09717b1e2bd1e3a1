package criproxy

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events is the method of the event stream.
const events = "GetContainerEvents"

// relay passes on the events of one stream. It calls check with the first one, or with the
// error in its place.
func (p *Proxy) relay(ctx context.Context, in grpc.ServerStream, out grpc.ClientStream, check func(mem.BufferSlice, error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var late sync.WaitGroup
	defer late.Wait()
	defer cancel()
	var one sync.Mutex // a stream has one sender at a time
	send := func(m mem.BufferSlice) error {
		one.Lock()
		defer one.Unlock()
		return in.SendMsg(m)
	}
	aside := make(map[*Fault]mem.BufferSlice) // events that wait for the next one
	for first := true; ; first = false {
		var m mem.BufferSlice
		err := out.RecvMsg(&m)
		if first {
			if fault := check(m, err); fault != nil {
				return fault
			}
		}
		if err != nil {
			return unlessEOF(err)
		}
		met := p.meet(Event, func() whom { return p.names.ofEvent(ctx, m) })
		now := []mem.BufferSlice{m}
		for _, h := range met {
			switch {
			case h.Hang:
				pause(ctx, 0, h.lifted)
			case h.NoSandbox:
				now = withoutSandbox(now)
			case h.Twice:
				now = append(now, now...)
			case h.Drop:
				now = nil
			case h.Delay > 0:
				old := now
				now = nil
				later(ctx, &late, h.Delay, func() {
					for _, m := range old {
						_ = send(m) // an error means that the client has left
					}
				})
			case h.Swap && aside[h.Fault] == nil && len(now) > 0:
				aside[h.Fault], now = now[0], now[1:]
			case h.Swap:
				now = append(now, aside[h.Fault])
				delete(aside, h.Fault)
			case h.Err != nil:
				met.end(h.Err)
				return h.Err
			}
		}
		for _, m := range now {
			if err := send(m); err != nil {
				return err
			}
		}
		met.end(nil)
	}
}

// withoutSandbox returns events as a runtime sends them when their sandbox has gone
// meanwhile.
func withoutSandbox(list []mem.BufferSlice) []mem.BufferSlice {
	var all []mem.BufferSlice
	for _, m := range list {
		var e cri.ContainerEventResponse
		if proto.Unmarshal(m.Materialize(), &e) == nil {
			e.PodSandboxStatus = nil
			if text, err := proto.Marshal(&e); err == nil {
				m = mem.BufferSlice{mem.SliceBuffer(text)}
			}
		}
		all = append(all, m)
	}
	return all
}
