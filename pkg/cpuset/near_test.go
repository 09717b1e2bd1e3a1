package cpuset

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Near names the NUMA nodes of CPUs and memory, and none without a topology policy.
func TestNear_Placements_NamesTheirNodes(t *testing.T) {
	t.Parallel()
	reserved := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	a, err := New(machine(t, "two-sockets-smt"), Policy{CPU: static, Topology: bestEffort, Reservation: reserved})
	if err != nil {
		t.Fatal(err)
	}
	unaligned, err := New(machine(t, "two-sockets-smt"), Policy{CPU: static, Reservation: reserved})
	if err != nil {
		t.Fatal(err)
	}
	memory := func(nodes ...int) []pod.Block {
		return []pod.Block{{NUMAAffinity: nodes, Type: v1.ResourceMemory, Size: 1}}
	}
	for _, c := range []struct {
		of   *Allocator
		has  pod.Placement
		want string
	}{
		{a, pod.Placement{CPUs: "18"}, "[1]"},
		{a, pod.Placement{CPUs: "0,18"}, "[0 1]"},
		{a, pod.Placement{CPUs: "0,500"}, "[0]"},
		{a, pod.Placement{Memory: memory(1)}, "[1]"},
		{a, pod.Placement{CPUs: "18", Memory: memory(0)}, "[0 1]"},
		{a, pod.Placement{Shared: "0-23"}, "[]"},
		{unaligned, pod.Placement{CPUs: "18"}, "[]"},
		{nil, pod.Placement{CPUs: "18"}, "[]"},
	} {
		if got := fmt.Sprint(c.of.Near(c.has)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.has, got, c.want)
		}
	}
}
