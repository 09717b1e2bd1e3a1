package e2e

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// moment is when an agent is killed: around one mutating call.
type moment struct {
	n      int  // the call, from 1
	during bool // while the runtime works on it, not after
}

func (m moment) String() string {
	if m.during {
		return fmt.Sprintf("during call %d", m.n)
	}
	return fmt.Sprintf("after call %d", m.n)
}

// working is about half the time a call takes.
var working = map[string]time.Duration{
	"RunPodSandbox": 40 * time.Millisecond, "StartContainer": 20 * time.Millisecond,
	"StopPodSandbox": 20 * time.Millisecond, "StopContainer": 20 * time.Millisecond,
}

// executioner kills an agent at a moment of its calls.
type executioner struct {
	*criproxy.Proxy
	victim atomic.Pointer[agent]
	moment atomic.Pointer[moment] // nil: kill no agent
	spared atomic.Int32           // mutating calls to skip before the count
}

func (s *stage) executioner() *executioner {
	e := &executioner{}
	due := func(c criproxy.Call, during bool) *agent {
		m := e.moment.Load()
		if m == nil || m.during != during || c.N != m.n+int(e.spared.Load()) {
			return nil
		}
		return e.victim.Load()
	}
	e.Proxy = s.through(criproxy.Hooks{
		Before: func(c criproxy.Call) {
			if a := due(c, true); a != nil {
				// Killed while this call goes on.
				time.AfterFunc(max(working[c.Method], 2*time.Millisecond), func() { _ = a.cmd.Process.Kill() })
			}
		},
		After: func(c criproxy.Call, _ error) {
			if a := due(c, false); a != nil {
				_ = a.cmd.Process.Kill()
				<-a.done // it never gets the answer
			}
		},
	})
	return e
}

// arm sets the moment, counted from now, at which the victim is killed.
func (e *executioner) arm(a *agent, m moment) {
	a.asked.Store(true)
	if m.during {
		a.interrupts()
	}
	e.spared.Store(int32(len(e.Mutations())))
	e.victim.Store(a)
	e.moment.Store(&m)
}

// interrupted says that an agent of the shared node was killed while the runtime worked for
// it. containerd then cancels its work, and a killed runc leaves an empty cgroup behind,
// under a name that the agent does not know: see interrupts.
var interrupted atomic.Bool

// disarm waits for the victim's end.
func (e *executioner) disarm(s *stage) {
	s.Helper()
	a := e.victim.Load()
	wait.Receive(s.T, "the end of the agent that is to be killed", a.done)
	e.moment.Store(nil)
}
