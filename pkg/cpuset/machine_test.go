package cpuset

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
)

// machine reads a described machine.
func machine(t testing.TB, name string) Machine {
	t.Helper()
	m, err := Read(cpusettest.Sys(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRead_MachinesOfTheField_AreDescribed(t *testing.T) {
	for _, c := range []struct {
		name                               string
		cpus, cores, sockets, numa, caches int
		cpu                                int
		place                              CPU
	}{
		{"two-sockets-smt", 24, 12, 2, 2, 2, 18, CPU{Core: 6, Socket: 1, Node: 1, Cache: 1}},
		{"eight-nodes", 64, 32, 2, 8, 16, 35, CPU{Core: 3, Node: 0, Cache: 1}},
		{"asymmetric", 10, 10, 2, 2, 2, 8, CPU{Core: 8, Socket: 1, Node: 1, Cache: 1}},
		{"hybrid", 16, 12, 1, 1, 1, 7, CPU{Core: 6}},
		{"one-socket", 8, 8, 1, 1, 1, 5, CPU{Core: 5}},
	} {
		m := machine(t, c.name)
		all := cpus(m.CPUs)
		got := fmt.Sprint(len(all), all.parts(coreOf).Size(), all.parts(socketOf).Size(), all.parts(nodeOf).Size(), all.parts(cacheOf).Size(), m.CPUs[c.cpu])
		if want := fmt.Sprint(c.cpus, c.cores, c.sockets, c.numa, c.caches, c.place); got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
	}
	m := machine(t, "two-sockets-smt")
	if n := m.Nodes[1]; n.Memory != 64<<30 || n.HugePages["hugepages-1Gi"] != 2<<30 || n.HugePages["hugepages-2Mi"] != 1<<30 || fmt.Sprint(n.Distances) != "[21 10]" {
		t.Errorf("node 1: %+v", n)
	}
	if n := machine(t, "asymmetric").Nodes; len(n) != 3 || n[1].Memory != 0 || n[2].Memory != 128<<30 {
		t.Errorf("nodes: %+v", n)
	}
}

func TestRead_MachineWithoutCPUs_IsAnError(t *testing.T) {
	if _, err := Read(fstest.MapFS{}); err == nil {
		t.Error("no error")
	}
}
