package cpuset

import (
	"fmt"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Near names the NUMA nodes of an admission with a topology policy. Only best-effort allows others.
//
// Shows: C-1.46.12
func TestNear_Policies_NameTheNodesOfTheAdmission(t *testing.T) {
	t.Parallel()
	has := pod.Placement{CPUs: "0", NUMA: []int{1}}
	for topology, want := range map[string]string{
		none: "[] false", bestEffort: "[1] false", restricted: "[1] true", singleNUMANode: "[1] true", "": "[] false",
	} {
		var a *Allocator // no policy at all
		if topology != "" {
			a = allocator(t, machine(t, "two-sockets-smt"), Policy{CPU: static, Topology: topology})
		}
		if nodes, only := a.Near(has); fmt.Sprint(nodes, only) != want {
			t.Errorf("%q: %v %t, want %s", topology, nodes, only, want)
		}
	}
}

// A policy for the topology alone allocates no CPUs and no memory, and writes no state files.
func TestNew_TopologyPolicyAlone_ReservesNothing(t *testing.T) {
	t.Parallel()
	a := allocator(t, machine(t, "two-sockets-smt"), Policy{Topology: restricted})
	s := a.State()
	s.Put("p", "c", pod.Placement{CPUs: "1-2", NUMA: []int{0}})
	if a.Reserves() || len(s.Files()) != 0 || s.Shared() != "" || fmt.Sprint(s.Of("p")) != fmt.Sprint(map[string]pod.Placement{"c": {NUMA: []int{0}}}) {
		t.Errorf("%t, %v, %q, %v", a.Reserves(), s.Files(), s.Shared(), s.Of("p"))
	}
}
