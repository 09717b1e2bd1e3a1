package ui

import (
	"io"
	"testing"
)

// Each container has a row, with its memory and the NUMA nodes of that, and its devices.
func TestAllocations_Containers_OneRowEach(t *testing.T) {
	t.Parallel()
	d := AllocationList{Items: []Allocation{
		{Namespace: "shop", Pod: "web", Container: "main", CPUs: "2-3", Memory: []AllocatedMemory{{"memory", 2 << 30, []int{0, 1}}}},
		{Namespace: "shop", Pod: "gpu", Container: "a\x1b[2J", Devices: []AllocatedDevices{{"x.com/gpu", []string{"0", "1"}}, {"x.com/nic", []string{"n"}}}},
		{Namespace: "shop", Pod: "dra", Container: "main", Claims: []AllocatedClaim{{"big", []ClaimDevice{{"x.com", "n1", "g0"}, {"x.com", "n1", "g1"}}}}},
	}}
	const want = `NAMESPACE   POD   CONTAINER   CPUS   MEMORY             DEVICES
shop        web   main        2-3    memory=2.0Gi@0,1   -
shop        gpu   a\x1b[2J    -      -                  x.com/gpu=0,1 x.com/nic=n
shop        dra   main        -      -                  claim:big=x.com/n1/g0,x.com/n1/g1
`
	if got := New(io.Discard, Screen{}).Allocations(d); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got := New(io.Discard, Screen{}).Allocations(AllocationList{}); got != "" {
		t.Errorf("without containers: %q", got)
	}
}
