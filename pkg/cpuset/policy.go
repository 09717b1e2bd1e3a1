package cpuset

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// The policies and scopes, as a KubeletConfiguration names them.
const (
	none           = "none"
	static         = "static"
	memoryNone     = "None"
	memoryStatic   = "Static"
	bestEffort     = "best-effort"
	restricted     = "restricted"
	singleNUMANode = "single-numa-node"
	scopeContainer = "container"
	scopePod       = "pod"
)

// The options of the CPU policy static and of the topology policies.
const (
	optionFullCores     = "full-pcpus-only"
	optionAcrossNUMA    = "distribute-cpus-across-numa"
	optionBySocket      = "align-by-socket"
	optionAcrossCores   = "distribute-cpus-across-cores"
	optionStrict        = "strict-cpu-reservation"
	optionByCache       = "prefer-align-cpus-by-uncorecache"
	optionClosest       = "prefer-closest-numa-nodes"
	optionMaxNUMA       = "max-allowable-numa-nodes"
	defaultMaxNUMANodes = 8
)

// Policy has the settings of a node about CPUs and memory. Zero values are the defaults.
type Policy struct {
	CPU             string // none, static
	CPUOptions      map[string]string
	Reserved        Set               // CPUs that are never exclusive; empty: as many as Reservation has
	Memory          string            // None, Static
	ReservedMemory  map[int]Reserved  // by NUMA node
	Topology        string            // none, best-effort, restricted, single-numa-node
	TopologyOptions map[string]string // by name
	Scope           string            // container, pod
	// Reservation has the resources that pods do not get: the sum of those reserved for the system
	// and for Kubernetes, and of the hard eviction thresholds.
	Reservation v1.ResourceList
}

// Reserved is memory of each kind in bytes.
type Reserved map[v1.ResourceName]uint64

// IsAlpha reports whether an option of the CPU policy needs the gate CPUManagerPolicyAlphaOptions.
func IsAlpha(option string) bool { return option == optionBySocket || option == optionAcrossCores }

// IsBeta reports whether an option of the CPU policy needs the gate CPUManagerPolicyBetaOptions,
// which is on by default.
func IsBeta(option string) bool { return option == optionAcrossNUMA }

// options are the parsed options of the policies.
type options struct {
	fullCores, acrossNUMA, bySocket, acrossCores, strict, byCache bool
	closest                                                       bool
	maxNodes                                                      int
}

// CheckCPU returns an error if the options cannot be used with the CPU policy.
func CheckCPU(policy string, given map[string]string) error {
	if policy != static && len(given) > 0 {
		return errors.New("options need the policy static")
	}
	_, err := options{}.parseCPU(given)
	return err
}

// CheckTopology returns an error if the options of the topology policy cannot be used.
func CheckTopology(given map[string]string) error {
	_, err := options{}.parseTopology(given)
	return err
}

// parseCPU returns o with the options of the CPU policy.
func (o options) parseCPU(given map[string]string) (options, error) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		into := map[string]*bool{
			optionFullCores: &o.fullCores, optionAcrossNUMA: &o.acrossNUMA, optionBySocket: &o.bySocket,
			optionAcrossCores: &o.acrossCores, optionStrict: &o.strict, optionByCache: &o.byCache,
		}[name]
		if into == nil {
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		}
		var err error
		if *into, err = strconv.ParseBool(given[name]); err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
	}
	for _, pair := range []struct {
		both bool
		a, b string
	}{
		{o.fullCores && o.acrossCores, optionFullCores, optionAcrossCores},
		{o.acrossNUMA && o.acrossCores, optionAcrossNUMA, optionAcrossCores},
		{o.byCache && o.acrossCores, optionByCache, optionAcrossCores},
		{o.byCache && o.acrossNUMA, optionByCache, optionAcrossNUMA},
	} {
		if pair.both {
			return o, fmt.Errorf("static policy options %s and %s can not be used at the same time", pair.a, pair.b)
		}
	}
	return o, nil
}

// parseTopology returns o with the options of the topology policy.
func (o options) parseTopology(given map[string]string) (options, error) {
	o.maxNodes = defaultMaxNUMANodes
	for _, name := range slices.Sorted(maps.Keys(given)) {
		var err error
		switch name {
		case optionClosest:
			o.closest, err = strconv.ParseBool(given[name])
		case optionMaxNUMA:
			if o.maxNodes, err = strconv.Atoi(given[name]); err == nil && o.maxNodes < defaultMaxNUMANodes {
				err = fmt.Errorf("must be at least %d", defaultMaxNUMANodes)
			}
		default:
			return o, fmt.Errorf("unknown Topology Manager Policy option: %q", name)
		}
		if err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
	}
	return o, nil
}

// Allocator has a machine and the policies of its node. It does not change.
type Allocator struct {
	options
	machine           Machine
	cpus              cpus // of the machine
	static, memory    bool
	reserved          Set // never exclusive
	reservedCores     Set // all CPUs of the cores that have a reserved CPU
	reservedMemory    map[int]Reserved
	topology, scope   string
	memoryOfNodes     map[int]*NUMANodeState // with nothing allocated
	memoryOfNodesUsed []int                  // their IDs, sorted
}

// New returns the allocator of a machine, nil if the policies allocate nothing and align no devices. It returns an error if
// the policies cannot be used on this machine.
func New(m Machine, p Policy) (*Allocator, error) {
	a := &Allocator{
		machine: m, cpus: m.CPUs, static: p.CPU == static, memory: p.Memory == memoryStatic,
		topology: p.Topology, scope: p.Scope, reservedMemory: p.ReservedMemory,
	}
	if a.topology == "" {
		a.topology = none
	}
	if !a.static && !a.memory && a.topology == none {
		return nil, nil
	}
	var err error
	if a.options, err = a.options.parseCPU(p.CPUOptions); err != nil {
		return nil, err
	}
	if a.options, err = a.options.parseTopology(p.TopologyOptions); err != nil {
		return nil, err
	}
	for _, n := range m.Nodes {
		if n.ID > 63 {
			return nil, fmt.Errorf("NUMA node %d: only nodes 0 to 63 are supported", n.ID)
		}
		if a.topology != none && a.closest && n.Distances == nil {
			return nil, fmt.Errorf("the distances of NUMA node %d are not known", n.ID)
		}
	}
	if a.topology != none && len(m.Nodes) > a.maxNodes {
		return nil, fmt.Errorf("unsupported on machines with more than %d NUMA Nodes", a.maxNodes)
	}
	if a.static {
		if err := a.reserveCPUs(p); err != nil {
			return nil, err
		}
	}
	if a.memory {
		if err := a.reserveMemory(p); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// reserveCPUs chooses the reserved CPUs, which are never exclusive (C-1.46.2).
func (a *Allocator) reserveCPUs(p Policy) error {
	if a.bySocket && a.topology == singleNUMANode {
		return fmt.Errorf("topology manager policy %s is incompatible with the CPU manager policy option %s", singleNUMANode, optionBySocket)
	}
	if a.bySocket && a.cpus.parts(socketOf).Size() > a.cpus.parts(nodeOf).Size() {
		return fmt.Errorf("%s is not compatible with a machine that has more sockets than NUMA nodes", optionBySocket)
	}
	reserved := p.Reservation[v1.ResourceCPU]
	n := int((reserved.MilliValue() + 999) / 1000)
	if n == 0 {
		return errors.New("the static policy requires systemReserved.cpu + kubeReserved.cpu to be greater than zero, or reservedSystemCPUs")
	}
	a.reserved = p.Reserved
	if a.reserved.IsEmpty() {
		var err error
		if a.reserved, err = a.take(a.cpus.all(), n); err != nil {
			return fmt.Errorf("unable to reserve %d CPUs: %w", n, err)
		}
	}
	if err := a.machine.CheckReserved(a.reserved); err != nil {
		return err
	}
	a.reservedCores = cpuset.New()
	for _, id := range a.reserved.UnsortedList() {
		a.reservedCores = a.reservedCores.Union(a.cpus.in(coreOf, a.cpus[id].Core))
	}
	return nil
}

// CheckReserved returns an error if the machine does not have all of the CPUs (C-1.46.2).
func (m Machine) CheckReserved(set Set) error {
	all := cpus(m.CPUs).all()
	if unknown := set.Difference(all); !unknown.IsEmpty() {
		return fmt.Errorf("reserved CPUs %s are not online on this machine, which has %s", unknown, all)
	}
	return nil
}

// reserveMemory checks the reserved memory, and computes the memory that pods can get on each
// NUMA node (C-1.46.5).
func (a *Allocator) reserveMemory(p Policy) error {
	total := Reserved{}
	for id, of := range p.ReservedMemory {
		if !slices.ContainsFunc(a.machine.Nodes, func(n Node) bool { return n.ID == id }) {
			return fmt.Errorf("reservedMemory names NUMA node %d, which this machine does not have", id)
		}
		for name, n := range of {
			total[name] += n
		}
	}
	kinds := maps.Clone(total)
	for name := range p.Reservation {
		if isMemory(name) {
			kinds[name] = 0
		}
	}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		reserved := p.Reservation[name]
		if uint64(reserved.Value()) != total[name] {
			return fmt.Errorf("the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature",
				resource.NewQuantity(int64(total[name]), resource.BinarySI), name, resource.NewQuantity(reserved.Value(), resource.BinarySI))
		}
	}
	if total[v1.ResourceMemory] == 0 {
		return errors.New("the memory policy Static needs reservedMemory")
	}
	a.memoryOfNodes = map[int]*NUMANodeState{}
	for _, n := range a.machine.Nodes {
		a.memoryOfNodes[n.ID] = a.emptyNode(n)
		a.memoryOfNodesUsed = append(a.memoryOfNodesUsed, n.ID)
	}
	slices.Sort(a.memoryOfNodesUsed)
	return nil
}

func (a *Allocator) everyNode() (m mask) {
	for _, n := range a.machine.Nodes {
		m |= maskOf(n.ID)
	}
	return m
}

// take returns n of the free CPUs, chosen by the options of the policy.
func (a *Allocator) take(free Set, n int) (Set, error) {
	if !a.acrossNUMA {
		return packed(a.cpus, free, n, a.acrossCores, a.byCache)
	}
	group := 1
	if a.fullCores {
		group = a.cpus.perPart(coreOf)
	}
	return distributed(a.cpus, free, n, group, a.acrossCores)
}

// Allocatable returns the CPUs that can become exclusive, and the memory that containers can get.
func (a *Allocator) Allocatable() (ids []int, memory []Block) {
	if a.static {
		ids = a.cpus.all().Difference(a.reserved).List()
	}
	for _, id := range a.memoryOfNodesUsed {
		of := a.memoryOfNodes[id].MemoryMap
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if n := of[name].Allocatable; n > 0 {
				memory = append(memory, Block{NUMAAffinity: []int{id}, Type: name, Size: n})
			}
		}
	}
	return ids, memory
}
