//go:build full

// Package managers compares package cpuset with the CPU, memory, device and topology managers of the kubelet
// (hack/kubelet/managers), on drawn machines and pods.
package managers

import (
	"bufio"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	ours "github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
	"github.com/nodectl/nodectl/pkg/pod"
)

var update = flag.Bool("update", false, "record the cases of package cpuset again")

// theirs is the kubelet's managers, in a process.
type theirs struct {
	in  *json.Encoder
	out *json.Decoder
}

// These types are those of hack/kubelet/managers.
type (
	testCase struct {
		CPUs, Sockets   int
		Topology        []numaNode
		CPU             string
		CPUOptions      map[string]string
		Reserved        string
		Memory          string
		ReservedMemory  map[int]v1.ResourceList
		TopologyPolicy  string
		TopologyOptions map[string]string
		Scope           string
		Reservation     v1.ResourceList
		Devices         map[string][]listed
		Steps           []step
	}
	numaNode struct {
		ID        int         `json:"node_id"`
		Memory    uint64      `json:"memory"`
		HugePages []hugePages `json:"hugepages"`
		Cores     []core      `json:"cores"`
		Distances []uint64    `json:"distances"`
	}
	hugePages struct {
		Size  uint64 `json:"page_size"` // kB
		Pages uint64 `json:"num_pages"`
	}
	core struct {
		ID      int     `json:"core_id"`
		Threads []int   `json:"thread_ids"`
		Socket  int     `json:"socket_id"`
		Caches  []cache `json:"uncore_caches"`
	}
	cache struct {
		ID int `json:"id"`
	}
	listed struct {
		ID      string
		Healthy bool
		NUMA    []int64
	}
	step struct {
		Add     *v1.Pod
		Remove  string
		Restart bool
	}
	answer struct {
		Refused, Error string
		CPUs           map[string]string
		Memory         map[string][]struct {
			Nodes []int
			Type  v1.ResourceName
			Size  uint64
		}
		Devices map[string]map[string][]string
		Shared  string
		Files   map[string]string
	}
)

// ownMounts are the attributes of a process with mounts of its own. The device manager of the kubelet has
// its files in a fixed directory.
func ownMounts() *syscall.SysProcAttr {
	if os.Getuid() == 0 {
		return &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // its mounts become private, too
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
}

// start builds and starts the kubelet's managers.
func start(t *testing.T) *theirs {
	t.Helper()
	program := filepath.Join(t.TempDir(), "managers")
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", program, "./managers")
	build.Dir = "../../hack/kubelet"
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", build.Args, err, out)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, ownMounts()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return &theirs{in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
}

// ask returns the kubelet's answers to a case.
func (k *theirs) ask(c *testCase) (all []answer, err error) {
	if err := k.in.Encode(c); err != nil {
		return nil, err
	}
	err = k.out.Decode(&all)
	return all, err
}

// caseOf returns a case for the kubelet: the same machine and policy.
func caseOf(m ours.Machine, p ours.Policy) *testCase {
	c := &testCase{
		CPUs: len(m.CPUs), CPU: p.CPU, CPUOptions: p.CPUOptions, Reserved: p.Reserved.String(), Memory: p.Memory, ReservedMemory: map[int]v1.ResourceList{},
		TopologyPolicy: p.Topology, TopologyOptions: p.TopologyOptions, Scope: p.Scope, Reservation: p.Reservation,
	}
	sockets := map[int]bool{}
	for _, cpu := range m.CPUs {
		sockets[cpu.Socket] = true
	}
	c.Sockets = len(sockets)
	for _, n := range m.Nodes {
		node, cores := numaNode{ID: n.ID, Memory: n.Memory, Distances: n.Distances}, map[int]*core{}
		for _, name := range slices.Sorted(maps.Keys(n.HugePages)) {
			size := resource.MustParse(strings.TrimPrefix(string(name), v1.ResourceHugePagesPrefix))
			node.HugePages = append(node.HugePages, hugePages{uint64(size.Value()) >> 10, n.HugePages[name] / uint64(size.Value())})
		}
		for _, id := range slices.Sorted(maps.Keys(m.CPUs)) {
			cpu := m.CPUs[id]
			if cpu.Node != n.ID {
				continue
			}
			if cores[cpu.Core] == nil {
				cores[cpu.Core] = &core{ID: cpu.Core, Socket: cpu.Socket, Caches: []cache{{cpu.Cache}}}
			}
			cores[cpu.Core].Threads = append(cores[cpu.Core].Threads, id)
		}
		for _, id := range slices.Sorted(maps.Keys(cores)) {
			node.Cores = append(node.Cores, *cores[id])
		}
		c.Topology = append(c.Topology, node)
	}
	for id, of := range p.ReservedMemory {
		c.ReservedMemory[id] = v1.ResourceList{}
		for name, n := range of {
			c.ReservedMemory[id][name] = *resource.NewQuantity(int64(n), resource.BinarySI)
		}
	}
	return c
}

// add adds a step in both forms.
func (c *testCase) add(s cpusettest.Step) {
	switch s.Action {
	case "add":
		c.Steps = append(c.Steps, step{Add: cpusettest.Pod(s.UID, s.Containers...)})
	case "remove":
		c.Steps = append(c.Steps, step{Remove: s.UID})
	default:
		c.Steps = append(c.Steps, step{Restart: true})
	}
}

// text returns the kubelet's answer to a pod as cpusettest.Show does.
func (a *answer) text() string {
	if a.Refused != "" {
		return a.Refused
	}
	has := map[string]pod.Placement{}
	for name, set := range a.CPUs {
		has[name] = pod.Placement{CPUs: set}
	}
	for name, blocks := range a.Memory {
		p := has[name]
		for _, b := range blocks {
			p.Memory = append(p.Memory, pod.Block{NUMAAffinity: b.Nodes, Type: b.Type, Size: b.Size})
		}
		has[name] = p
	}
	return cpusettest.Show(has, a.Shared)
}

// admit lets our managers admit the pod of a step.
func admit(s *ours.State, at cpusettest.Step) string {
	if r := s.Admit(cpusettest.Pod(at.UID, at.Containers...)); r != nil {
		return r.Reason + ": " + r.Message
	}
	var c ours.CPUManagerCheckpoint
	if text := s.Files()[ours.CPUStateFile]; text != nil {
		if err := json.Unmarshal(text, &c); err != nil {
			return err.Error()
		}
	}
	return cpusettest.Show(s.Of(at.UID), c.DefaultCPUSet)
}

// do does a step that adds no pod.
func do(s *ours.State, at cpusettest.Step) *ours.State {
	return s.Without(func(uid string) bool { return at.Action == "remove" && uid == at.UID })
}
