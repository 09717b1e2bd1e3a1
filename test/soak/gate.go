package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/criproxy"
)

// A gate delays or fails calls between an agent and containerd.
//
// The soak shuts it before it ends an agent or containerd: new calls wait, and calls on their way
// are done, with their answers held back. So the agent dies at the worst moment: its request is
// done and it does not know. An interrupted call leaves objects that containerd and its plugins
// then forget (package e2e shows that). Here, they would hide the leaks of the agent.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed while the gate is open
	held   int           // calls that wait, before they are made or before their answer
	slow   time.Duration // calls take up to so much longer
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{})}
	close(g.opened)
	return g
}

func (g *gate) hooks() criproxy.Hooks {
	return criproxy.Hooks{
		Before: func(c criproxy.Call) {
			if slow := g.slowness(); slow > 0 && c.Method != "GetContainerEvents" {
				<-time.After(rand.N(slow))
			}
			g.pass(c)
		},
		After: func(c criproxy.Call, _ error) { g.pass(c) },
	}
}

func (g *gate) slowness() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slow
}

func (g *gate) setSlow(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slow = d
}

// pass lets a call that changes pods through when the gate is open.
func (g *gate) pass(c criproxy.Call) {
	if c.N == 0 {
		return
	}
	g.mu.Lock()
	opened := g.opened
	g.held++
	g.mu.Unlock()
	<-opened
	g.mu.Lock()
	g.held--
	g.mu.Unlock()
}

// shut shuts the gate, and returns when containerd works on no call of the agent.
func (g *gate) shut(ctx context.Context, p *criproxy.Proxy) error {
	const limit = 2 * time.Minute // the longest that an agent waits for a call
	g.mu.Lock()
	g.opened = make(chan struct{})
	g.mu.Unlock()
	return arm.Until(ctx, limit, 5*time.Millisecond, func() (bool, error) {
		g.mu.Lock()
		held := g.held
		g.mu.Unlock()
		busy := p.Busy() - held
		if busy <= 0 {
			return true, nil
		}
		return false, fmt.Errorf("%d calls have not ended", busy)
	})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.opened)
}
