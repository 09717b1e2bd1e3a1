//go:build full

package managers

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	ours "github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
)

const (
	mebi = 1 << 20
	gibi = 1 << 30
)

// drawMachine draws a machine with one or two sockets and one to eight NUMA nodes. even is false if its
// cores, nodes or caches are of several sizes.
func drawMachine(t *rapid.T) (m ours.Machine, even bool) {
	sockets := rapid.IntRange(1, 2).Draw(t, "sockets")
	perSocket := rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(t, "nodes per socket")
	joined := perSocket == 1 && sockets == 2 && rapid.IntRange(0, 4).Draw(t, "joined") == 0 // one node for both
	cores := rapid.IntRange(1, 6).Draw(t, "cores per node")
	threads := rapid.IntRange(1, 2).Draw(t, "threads per core")
	caches := rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "caches per node")
	even = rapid.IntRange(0, 3).Draw(t, "even") > 0
	if even && cores%caches != 0 {
		caches = 1
	}
	adjacent := rapid.Bool().Draw(t, "threads are adjacent")
	m.CPUs = map[int]ours.CPU{}
	all, number := sockets*perSocket*cores, 0
	for node := range sockets * perSocket {
		socket, id := node/perSocket, node
		if joined {
			id = 0
		}
		for c := range cores {
			if !even && c > 0 && rapid.IntRange(0, 4).Draw(t, "offline") == 0 {
				number++
				continue
			}
			place := ours.CPU{Socket: socket, Node: id, Cache: socket}
			if caches > 1 {
				place.Cache = node*caches + c*caches/cores
			}
			n := threads
			if !even {
				n = rapid.IntRange(1, threads).Draw(t, "threads")
			}
			for thread := range n {
				cpu := number + thread*all
				if adjacent {
					cpu = number*threads + thread
				}
				if thread == 0 {
					place.Core = cpu
				}
				m.CPUs[cpu] = place
			}
			number++
		}
	}
	nodes := sockets * perSocket
	if joined {
		nodes = 1
	}
	for id := range nodes {
		m.Nodes = append(m.Nodes, drawNode(t, id, nodes, even))
	}
	return m, even
}

func drawNode(t *rapid.T, id, nodes int, even bool) ours.Node {
	n := ours.Node{ID: id, Memory: 8 * gibi, HugePages: map[v1.ResourceName]uint64{"hugepages-2Mi": 512 * mebi}}
	if !even {
		n.Memory = uint64(rapid.IntRange(4, 16).Draw(t, "memory")) * gibi
		n.HugePages["hugepages-2Mi"] = uint64(rapid.IntRange(0, 3).Draw(t, "huge pages")) * 256 * mebi
	}
	for to := range nodes {
		d := 10 + 10*uint64(max(id, to)-min(id, to))
		if !even && id != to {
			d = uint64(rapid.IntRange(11, 40).Draw(t, "distance"))
		}
		n.Distances = append(n.Distances, d)
	}
	return n
}

// drawPolicy draws policies that allocate something.
func drawPolicy(t *rapid.T, m ours.Machine) ours.Policy {
	p := ours.Policy{
		CPU:         rapid.SampledFrom([]string{"static", "static", "static", "none"}).Draw(t, "cpu policy"),
		Memory:      rapid.SampledFrom([]string{"None", "Static"}).Draw(t, "memory policy"),
		Topology:    rapid.SampledFrom([]string{"none", "best-effort", "restricted", "single-numa-node"}).Draw(t, "topology policy"),
		Scope:       rapid.SampledFrom([]string{"container", "pod"}).Draw(t, "scope"),
		Reservation: v1.ResourceList{v1.ResourceCPU: resource.MustParse(rapid.SampledFrom([]string{"500m", "1", "2"}).Draw(t, "reserved"))},
		CPUOptions:  map[string]string{}, TopologyOptions: map[string]string{}, Reserved: cpuset.New(),
	}
	if p.CPU == "none" {
		p.Memory = "Static"
	} else {
		for _, option := range []string{"full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket", "distribute-cpus-across-cores", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"} {
			if rapid.IntRange(0, 4).Draw(t, option) == 0 {
				p.CPUOptions[option] = "true"
			}
		}
		if n := p.Reservation[v1.ResourceCPU]; rapid.Bool().Draw(t, "reserved by number") && int(n.Value()) < len(m.CPUs) {
			ids := rapid.Permutation(slices.Sorted(maps.Keys(m.CPUs))).Draw(t, "reserved CPUs")
			p.Reserved = cpuset.New(ids[:n.Value()]...)
		}
	}
	if p.Topology != "none" && rapid.IntRange(0, 3).Draw(t, "closest") == 0 {
		p.TopologyOptions["prefer-closest-numa-nodes"] = "true"
	}
	if p.Memory == "Static" {
		p.ReservedMemory = map[int]ours.Reserved{}
		sum := int64(0)
		for _, n := range m.Nodes {
			if size := int64(rapid.IntRange(0, 2).Draw(t, "reserved memory")) * gibi; size > 0 || n.ID == 0 {
				size = max(size, gibi)
				p.ReservedMemory[n.ID] = ours.Reserved{v1.ResourceMemory: uint64(size)}
				sum += size
			}
		}
		p.Reservation[v1.ResourceMemory] = *resource.NewQuantity(sum, resource.BinarySI)
	}
	return p
}

// drawSteps draws pods that are added and removed, and restarts.
func drawSteps(t *rapid.T, m ours.Machine) (steps []cpusettest.Step) {
	n := rapid.IntRange(1, 12).Draw(t, "steps")
	for i := range n {
		switch kind := rapid.IntRange(0, 9).Draw(t, "step"); {
		case kind < 7 || i == 0:
			steps = append(steps, cpusettest.Step{Action: "add", UID: fmt.Sprint("p", i), Containers: drawPod(t, len(m.CPUs))})
		case kind < 9:
			steps = append(steps, cpusettest.Step{Action: "remove", UID: fmt.Sprint("p", rapid.IntRange(0, i-1).Draw(t, "of"))})
		default:
			steps = append(steps, cpusettest.Step{Action: "restart"})
		}
	}
	return steps
}

// drawPod draws the containers of a pod.
func drawPod(t *rapid.T, cpus int) (list []string) {
	one := func(prefix, name string) {
		amount := fmt.Sprint(rapid.IntRange(1, max(1, cpus/2)).Draw(t, "cpus"))
		switch rapid.IntRange(0, 11).Draw(t, "kind") {
		case 0:
			amount = "1500m"
		case 1:
			amount += "<64"
		}
		text := fmt.Sprintf("%s%s=%s/%dMi", prefix, name, amount, 256*rapid.IntRange(1, 24).Draw(t, "memory"))
		if rapid.IntRange(0, 5).Draw(t, "huge") == 0 {
			text += fmt.Sprintf("/%dMi", 64*rapid.IntRange(1, 6).Draw(t, "pages"))
		}
		list = append(list, text)
	}
	for i := range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "init containers") {
		one(rapid.SampledFrom([]string{"i:", "s:"}).Draw(t, "of kind"), fmt.Sprint("i", i))
	}
	for i := range rapid.IntRange(1, 2).Draw(t, "containers") {
		one("", fmt.Sprint("c", i))
	}
	return list
}
