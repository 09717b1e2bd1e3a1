package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestCPUs_PodStopsOrWaits_ContainersFollowTheSharedCPUs: containers are moved while their pod
// stops, and while its source has not answered this agent.
//
// Shows: C-1.46.4
func TestCPUs_PodStopsOrWaits_ContainersFollowTheSharedCPUs(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		m.more = newWishes()
		m.more.name = "file:/more"
		own := func(name string) *pod.Spec {
			s := mkpod(name, guaranteedPod("1"))
			s.Origin.Location, s.Origin.File = "/more", "/more/"+name+".yaml"
			return s
		}
		kept := mkpod("kept")
		m.src.set(kept, mkpod("stops", image("slow-term-25s")))
		m.arrive()
		m.pass(time.Minute)
		m.src.set(kept)
		m.pass(2 * time.Second)
		m.more.set(own("c"))
		m.pass(2 * time.Second)
		wantCPUs(t, m, map[string]string{"c": "1@0", "kept": "0,2-3@", "stops": "0,2-3@"})
		m.pass(time.Minute)
		m.leave()
		m.mute = true
		m.more.set(own("c"), own("d"))
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"c": "1@0", "d": "2@0", "kept": "0,3@"})
	})
}

// TestCPUs_AgentIsKilledAfterAMove_NextAgentComparesWithTheRuntime: no file says that the container
// was moved.
//
// Shows: C-1.46.4
func TestCPUs_AgentIsKilledAfterAMove_NextAgentComparesWithTheRuntime(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		b, c := mkpod("b"), mkpod("c", guaranteedPod("1"))
		m.src.set(b)
		m.arrive()
		m.pass(time.Minute)
		m.disk.refuse(true)
		m.src.set(b, c)
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"b": "0,2-3@", "c": "1@0"})
		m.die()
		m.disk.refuse(false)
		m.rt.Forget(c.Key, "")
		m.src.set(b)
		m.arrive()
		m.pass(time.Minute)
		wantCPUs(t, m, map[string]string{"b": "0-3@"})
	})
}

// TestCPUs_ContainerIsCreatedDuringAChange_ItIsMoved: the runtime takes long to create a container,
// and the shared CPUs change meanwhile. A move that fails is tried again.
//
// Shows: C-1.46.4
func TestCPUs_ContainerIsCreatedDuringAChange_ItIsMoved(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		fourCPUs(t, m)
		b := mkpod("b")
		m.rt.Fault(critest.Fault{Method: "CreateContainer", Pod: b.Key, Delay: 5 * time.Second})
		m.rt.Fault(critest.Fault{Method: "UpdateContainerResources", Pod: b.Key, Times: 1, Err: errors.New("device or resource busy")})
		m.src.set(b)
		m.arrive()
		m.pass(time.Second)
		m.src.set(b, mkpod("c", guaranteedPod("1")))
		m.pass(9 * time.Second)
		wantCPUs(t, m, map[string]string{"b": "0-3@", "c": "1@0"})
		m.pass(10 * time.Second)
		wantCPUs(t, m, map[string]string{"b": "0,2-3@", "c": "1@0"})
	})
}
