// Command managers runs the CPU, memory, device and topology managers of the kubelet on described machines.
// test/managers compares package cpuset with it.
//
// It reads a Case in JSON from each line of stdin, and writes an Answer to each step of it, one line
// a case. The types of the managers are the kubelet's own, with its state files in a temporary
// directory; only the machine and the pods are made up.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// Case is a machine, its policies, and the steps.
type Case struct {
	CPUs, Sockets   int
	Topology        []cadvisor.Node
	CPU             string
	CPUOptions      map[string]string
	Reserved        string
	Memory          string
	ReservedMemory  map[int]v1.ResourceList
	TopologyPolicy  string
	TopologyOptions map[string]string
	Scope           string
	Reservation     v1.ResourceList
	Devices         map[string][]Device // by resource; nil: there is no device manager
	Steps           []Step
}

// Step adds a pod, removes one, or starts the managers again from their state files.
type Step struct {
	Add     *v1.Pod
	Remove  string
	Restart bool
}

// Answer is the result of a step.
type Answer struct {
	Refused string // reason and message
	Error   string // the managers do not start, or one panicked
	CPUs    map[string]string
	Memory  map[string][]Block
	Devices map[string]map[string][]string // IDs by container and resource, sorted
	Shared  string
	Files   map[string]string
}

// Block is memory of a container.
type Block struct {
	Nodes []int
	Type  v1.ResourceName
	Size  uint64
}

func main() {
	klog.SetLogger(logr.Discard())
	gates := map[string]bool{"CPUManagerPolicyAlphaOptions": true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		fail(err)
	}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for in.More() {
		var c Case
		if err := in.Decode(&c); err != nil {
			fail(err)
		}
		if err := out.Encode(run(&c)); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "managers:", err)
	os.Exit(1)
}

// node is a kubelet's managers, and the pods that it runs.
type node struct {
	*Case
	dir      string
	mu       sync.Mutex // of the next two fields: the CPU manager has a goroutine that asks for pods
	active   []*v1.Pod
	asked    chan struct{} // closed when a manager asks for pods
	topology topologymanager.Manager
	cpus     cpumanager.Manager
	memory   memorymanager.Manager
	devices  *devicemanager.ManagerImpl // nil: there are no devices
}

// run does the steps of a case until the managers cannot start or panic.
func run(c *Case) (answers []Answer) {
	dir, err := os.MkdirTemp("", "managers")
	if err != nil {
		fail(err)
	}
	defer os.RemoveAll(dir)
	n := &node{Case: c, dir: dir}
	defer n.stop()
	if c.Devices != nil {
		ownDirectory()
	}
	if err := n.start(); err != nil {
		return []Answer{{Error: err.Error()}}
	}
	for _, s := range c.Steps {
		a := n.step(s)
		if answers = append(answers, a); a.Error != "" {
			break
		}
	}
	return answers
}

// These methods are the node that the managers ask.
func (n *node) pods() []*v1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asked != nil {
		close(n.asked)
		n.asked = nil
	}
	return n.active
}

func (n *node) set(active []*v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.active = active
}

func (*node) AddSource(string)                            {}
func (*node) AllReady() bool                              { return true }
func (*node) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }
func (*node) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

// start makes the managers from the state files.
func (n *node) start() (err error) {
	reserved, err := cpuset.Parse(n.Reserved)
	if err != nil {
		return err
	}
	machine := &cadvisor.MachineInfo{NumCores: n.Case.CPUs, NumSockets: n.Sockets, Topology: n.Topology}
	if n.topology, err = topologymanager.NewManager(machine.Topology, n.TopologyPolicy, n.Scope, n.TopologyOptions); err != nil {
		return err
	}
	if n.cpus, err = cpumanager.NewManager(logr.Discard(), n.CPU, n.CPUOptions, 24*time.Hour, machine, reserved, n.Reservation, n.dir, n.topology); err != nil {
		return err
	}
	var memory []kubeletconfig.MemoryReservation
	for id, of := range n.ReservedMemory {
		memory = append(memory, kubeletconfig.MemoryReservation{NumaNode: int32(id), Limits: of})
	}
	if n.memory, err = memorymanager.NewManager(logr.Discard(), n.Memory, machine, n.Reservation, memory, n.dir, n.topology); err != nil {
		return err
	}
	ctx := context.Background()
	asked := make(chan struct{})
	n.asked = asked
	if err := n.cpus.Start(ctx, n.pods, n, n, n, containermap.NewContainerMap()); err != nil {
		return err
	}
	if n.CPU == "static" {
		<-asked // its goroutine removes the state of pods that are gone, once
	}
	if err := n.memory.Start(ctx, n.pods, n, n, n, containermap.NewContainerMap()); err != nil {
		return err
	}
	if n.Devices != nil {
		if err := n.startDevices(ctx, machine); err != nil {
			return err
		}
		n.topology.AddHintProvider(logr.Discard(), n.devices)
	}
	n.topology.AddHintProvider(logr.Discard(), n.cpus)
	n.topology.AddHintProvider(logr.Discard(), n.memory)
	return nil
}

// step does one step. A pod that is refused is not active afterwards.
func (n *node) step(s Step) (a Answer) {
	defer func() {
		if r := recover(); r != nil {
			a = Answer{Error: fmt.Sprint("panic: ", r)}
		}
	}()
	switch {
	case s.Restart:
		if err := n.start(); err != nil {
			return Answer{Error: err.Error()}
		}
	case s.Add == nil:
		var rest []*v1.Pod
		for _, p := range n.active {
			if string(p.UID) != s.Remove {
				rest = append(rest, p)
			}
		}
		n.set(rest)
	default:
		before := n.active
		n.set(append(append([]*v1.Pod(nil), before...), s.Add))
		if r := n.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: s.Add}); !r.Admit {
			n.set(before)
			return Answer{Refused: r.Reason + ": " + r.Message}
		}
		return n.shown(s.Add)
	}
	return a
}

// shown returns the allocations of a pod that was admitted, and the state of the node.
func (n *node) shown(p *v1.Pod) Answer {
	a := Answer{CPUs: map[string]string{}, Memory: map[string][]Block{}, Files: map[string]string{}, Devices: n.devicesOf(p)}
	uid := string(p.UID)
	for name, set := range n.cpus.State().GetCPUAssignments()[uid] {
		a.CPUs[name] = set.String()
	}
	for name, blocks := range n.memory.State().GetMemoryAssignments()[uid] {
		for _, b := range blocks {
			a.Memory[name] = append(a.Memory[name], Block{b.NUMAAffinity, b.Type, b.Size})
		}
	}
	a.Shared = n.cpus.State().GetDefaultCPUSet().String()
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		if text, err := os.ReadFile(filepath.Join(n.dir, name)); err == nil {
			a.Files[name] = string(text)
		}
	}
	return a
}
