package cpuset

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/pod"
)

// State has the allocations of a node's containers: allocations that Put added, and allocations of
// the pods that it admitted. One goroutine uses it at a time.
type State struct {
	allocator *Allocator
	shared    Set            // the CPUs that are not exclusive, without strictly reserved ones
	blocked   map[string]Set // see Block; by the UID of the pod that may get them
	cpus      map[string]map[string]Set
	memory    map[string]map[string][]Block
	nodes     NUMANodeMap
	layouts   map[string]*layout // of devices, by resource
	held      devices            // the devices that containers have
	reserved  devices            // by container without devices: the devices that admission reserves
	affinity  map[user][]int     // by container with devices: the NUMA nodes that the topology policy chose
}

// State returns the state of a node without pods.
func (a *Allocator) State() *State {
	s := &State{
		allocator: a, shared: cpuset.New(), blocked: map[string]Set{}, cpus: map[string]map[string]Set{}, memory: map[string]map[string][]Block{}, nodes: map[int]*NUMANodeState{},
		layouts: map[string]*layout{}, held: devices{}, reserved: devices{}, affinity: map[user][]int{},
	}
	if a.static {
		s.shared = a.cpus.all()
		if a.strict {
			s.shared = s.shared.Difference(a.reserved)
		}
	}
	for id, n := range a.memoryOfNodes {
		s.nodes[id] = n.clone()
	}
	return s
}

// Clone returns a copy that changes independently.
func (s *State) Clone() *State {
	out := &State{
		allocator: s.allocator, shared: s.shared, blocked: maps.Clone(s.blocked), cpus: make(map[string]map[string]Set, len(s.cpus)), memory: make(map[string]map[string][]Block, len(s.memory)), nodes: make(map[int]*NUMANodeState, len(s.nodes)),
		layouts: s.layouts, held: maps.Clone(s.held), reserved: maps.Clone(s.reserved), affinity: maps.Clone(s.affinity),
	}
	for uid, of := range s.cpus {
		out.cpus[uid] = maps.Clone(of)
	}
	for uid, of := range s.memory {
		out.memory[uid] = maps.Clone(of)
	}
	for id, n := range s.nodes {
		out.nodes[id] = n.clone()
	}
	return out
}

// Put adds the allocation of a container of the node. It accepts every allocation, even with CPUs that
// are reserved now or that the machine has lost: a running container keeps its CPUs.
func (s *State) Put(uid, container string, has pod.Placement) {
	if set, err := cpuset.Parse(has.CPUs); s.allocator.static && err == nil && !set.IsEmpty() {
		s.setCPUs(uid, container, set)
	}
	if s.allocator.memory && len(has.Memory) > 0 {
		for _, b := range has.Memory {
			s.reserve(b.NUMAAffinity, b.Type, b.Size)
		}
		s.setMemory(uid, container, has.Memory)
	}
	s.putDevices(uid, container, has)
}

// Block keeps CPUs from all pods but the one with this UID. A container of an earlier instance or
// definition of that pod still runs on them. It stops before a new container of the pod, which may
// get them, starts.
func (s *State) Block(uid, cpus string) {
	if set, err := cpuset.Parse(cpus); s.allocator.static && err == nil {
		s.block(uid, set)
	}
}

func (s *State) block(uid string, set Set) {
	if !set.IsEmpty() {
		s.blocked[uid] = s.blocked[uid].Union(set)
		s.shared = s.shared.Difference(set)
	}
}

// free returns the CPUs that can become exclusive for another container of the pod.
func (s *State) free(uid string) Set {
	free := s.shared
	if own := s.blocked[uid].Intersection(s.allocator.cpus.all()); !own.IsEmpty() {
		for other, set := range s.blocked {
			if other != uid {
				own = own.Difference(set)
			}
		}
		for _, of := range s.cpus {
			for _, set := range of {
				own = own.Difference(set)
			}
		}
		free = free.Union(own)
	}
	return free.Difference(s.allocator.reserved)
}

func (s *State) setCPUs(uid, container string, set Set) {
	if s.cpus[uid] == nil {
		s.cpus[uid] = map[string]Set{}
	}
	s.cpus[uid][container] = set
	s.shared = s.shared.Difference(set)
}

func (s *State) setMemory(uid, container string, blocks []Block) {
	if s.memory[uid] == nil {
		s.memory[uid] = map[string][]Block{}
	}
	s.memory[uid][container] = blocks
}

// Of returns the allocations of a pod's containers by name. It leaves out containers without one.
func (s *State) Of(uid string) map[string]pod.Placement {
	out := map[string]pod.Placement{}
	for name, set := range s.cpus[uid] {
		out[name] = pod.Placement{CPUs: set.String()}
	}
	for name, blocks := range s.memory[uid] {
		a := out[name]
		a.Memory = blocks
		out[name] = a
	}
	s.placedDevices(uid, out)
	return out
}

// Without returns the state without the pods for which gone returns true.
func (s *State) Without(gone func(uid string) bool) *State {
	out := s.allocator.State()
	out.layouts = s.layouts
	for u, ids := range s.held {
		if !gone(u.uid) {
			out.held[u] = ids
		}
	}
	for uid, set := range s.blocked {
		if !gone(uid) {
			out.block(uid, set)
		}
	}
	for _, uid := range s.uids() {
		if gone(uid) {
			continue
		}
		for name, a := range s.Of(uid) {
			out.Put(uid, name, a)
		}
	}
	return out
}

// uids returns the pods that have an allocation, sorted.
func (s *State) uids() []string {
	all := map[string]bool{}
	for uid := range s.cpus {
		all[uid] = true
	}
	for uid := range s.memory {
		all[uid] = true
	}
	for u := range s.affinity {
		all[u.uid] = true
	}
	for u := range s.reserved {
		all[u.uid] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// Shared returns the CPUs of the containers without exclusive CPUs, "" for all CPUs of the machine. If
// all CPUs but the reserved ones are exclusive, these containers run on the reserved ones.
func (s *State) Shared() string {
	switch {
	case !s.allocator.static:
		return ""
	case s.shared.IsEmpty():
		return s.allocator.reserved.String()
	}
	return s.shared.String()
}

// Admit allocates exclusive CPUs and memory to all containers of a pod, and reserves their devices. If that
// is not possible, it changes nothing and returns the reason. Containers with an allocation keep it.
func (s *State) Admit(p *v1.Pod) *Rejection {
	try := s.Clone()
	if err := try.admit(p); err != nil {
		return rejection(err)
	}
	*s = *try
	return nil
}

func (s *State) admit(p *v1.Pod) error {
	a, uid := s.allocator, string(p.UID)
	refused := &Rejection{reasonTopology, "Resources cannot be allocated with Topology locality"}
	var ok bool
	at := hint{any: true}
	s.release(uid, p)
	if a.topology != none && a.scope == scopePod {
		if at, ok = a.merge([]hints{s.deviceHints(uid, p, nil, nil), s.cpuHintsOfPod(uid, p), s.memoryHints(uid, p, nil, nil)}); !ok {
			return refused
		}
	}
	cpus, memory, again := cpuset.New(), reusable{}, map[string][]string{}
	for _, c := range containers(p) {
		if a.topology != none && a.scope != scopePod {
			if at, ok = a.merge([]hints{s.deviceHints(uid, p, c, again), s.cpuHints(uid, p, c, cpus), s.memoryHints(uid, p, c, memory)}); !ok {
				return refused
			}
		}
		if err := s.allocateDevices(uid, p, c, at, again); err != nil {
			return err
		}
		if err := s.allocateCPUs(uid, p, c, at, &cpus); err != nil {
			return err
		}
		if err := s.allocateMemory(uid, p, c, at, memory); err != nil {
			return err
		}
	}
	return nil
}

// Replace moves allocations from a pod to the one that replaces it, with another UID or another spec.
// A container gets the allocation of the container of its name if that has the same requests. All
// CPUs of the old containers stay blocked until these have stopped. A pod with another UID gets other
// devices: those of the old containers are free when these have stopped.
func (s *State) Replace(was, p *v1.Pod) {
	kept, of, old := map[string]pod.Placement{}, s.Of(string(was.UID)), s.blocked[string(was.UID)]
	for name := range of {
		old = old.Union(s.cpus[string(was.UID)][name])
	}
	lasting := cpuset.New() // CPUs of kept containers that run as long as the pod
	for _, c := range containers(p) {
		before, set := named(was, c.Name), s.cpus[string(was.UID)][c.Name]
		if before == nil || lasts(was, before) != lasts(p, c) || exclusive(p, c) != set.Size() || !sameMemory(before, c) || !set.Intersection(lasting).IsEmpty() {
			continue
		}
		kept[c.Name] = of[c.Name]
		if lasts(p, c) {
			lasting = lasting.Union(set)
		}
	}
	from := s.Clone()
	*s = *s.Without(func(uid string) bool { return uid == string(was.UID) })
	if was.UID == p.UID {
		s.keepDevices(from, string(p.UID), p)
	}
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		s.Put(string(p.UID), name, kept[name])
	}
	s.block(string(p.UID), old)
}

// Edit changes which containers a running pod has, by an edit that needs no new instance, and
// reports whether that changes the state. Added containers get the CPUs and memory that they
// request. A container that requests another number of devices gets others. If that is not possible, Edit
// changes nothing and returns the reason. The memory of removed containers becomes free. Their CPUs stay
// blocked until they have stopped. The other containers keep their CPUs, memory and devices.
func (s *State) Edit(was, p *v1.Pod) (changed bool, r *Rejection) {
	uid := string(p.UID)
	has, old := s.Of(uid), s.blocked[uid]
	added := slices.ContainsFunc(containers(p), func(c *v1.Container) bool { return named(was, c.Name) == nil })
	removed := false
	for name := range has {
		if named(p, name) == nil {
			removed, old = true, old.Union(s.cpus[uid][name])
		}
	}
	others := s.requestsOthers(was, p)
	if !added && !removed && !others {
		return false, nil
	}
	try := s.Without(func(u string) bool { return u == uid })
	try.keepDevices(s, uid, p)
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if named(p, name) != nil {
			try.Put(uid, name, has[name])
		}
	}
	try.block(uid, old)
	if added || others {
		if err := try.admit(p); err != nil {
			return false, rejection(err)
		}
	}
	*s = *try
	return true, nil
}

func sameMemory(a, b *v1.Container) bool {
	x, errX := memoryOf(a)
	y, errY := memoryOf(b)
	return errX == nil && errY == nil && maps.Equal(x, y)
}

// Infeasible returns why a resize of a running pod is infeasible, "" if it is not (C-1.46.7).
func (s *State) Infeasible(was, now *v1.Pod) string {
	a := s.allocator
	const text = "Resize is infeasible for Guaranteed Pods alongside "
	switch {
	case pod.QOS(&was.Spec) != v1.PodQOSGuaranteed && pod.QOS(&now.Spec) != v1.PodQOSGuaranteed:
	case a.static && changes(was, now, v1.ResourceCPU):
		return text + `CPU Manager policy "` + static + `"`
	case a.memory && changes(was, now, v1.ResourceMemory):
		return text + `Memory Manager policy "` + memoryStatic + `"`
	}
	return ""
}

// changes reports whether the request or the limit of a container changes.
func changes(was, now *v1.Pod, name v1.ResourceName) bool {
	for _, c := range containers(now) {
		before := named(was, c.Name)
		if before == nil {
			continue
		}
		x, y := before.Resources.Limits[name], c.Resources.Limits[name]
		asked, asks := request(before, name), request(c, name)
		if asked.Cmp(asks) != 0 || x.Cmp(y) != 0 {
			return true
		}
	}
	return false
}

// Lacks reports whether a container of the pod should have exclusive CPUs or memory of certain NUMA
// nodes, and has none.
func (a *Allocator) Lacks(p *v1.Pod, has map[string]pod.Placement) bool {
	return slices.ContainsFunc(containers(p), func(c *v1.Container) bool {
		return a.static && exclusive(p, c) > 0 && has[c.Name].CPUs == "" || a.pinned(p) && len(has[c.Name].Memory) == 0
	})
}

// Unreserved returns the kinds of resources of a container's allocation that the policies do not
// reserve: "CPUs", "memory", or both. A nil Allocator reserves nothing.
func (a *Allocator) Unreserved(has pod.Placement) (kinds []string) {
	if has.CPUs != "" && (a == nil || !a.static) {
		kinds = append(kinds, "CPUs")
	}
	if len(has.Memory) > 0 && (a == nil || !a.memory) {
		kinds = append(kinds, "memory")
	}
	return kinds
}

// Missing returns the CPUs and NUMA nodes of a container's allocation that the machine does not have,
// as text for messages; "" for none.
func (a *Allocator) Missing(has pod.Placement) string {
	var words []string
	if set, err := cpuset.Parse(has.CPUs); err == nil {
		if gone := set.Difference(a.cpus.all()); !gone.IsEmpty() {
			words = append(words, "CPUs "+gone.String())
		}
	}
	nodes := maskOf(has.NUMA...)
	for _, b := range has.Memory {
		nodes |= maskOf(b.NUMAAffinity...)
	}
	if gone := nodes &^ a.everyNode(); gone != 0 {
		words = append(words, "NUMA nodes "+cpuset.New(gone.ids()...).String())
	}
	return strings.Join(words, ", ")
}

// Near returns the NUMA nodes whose devices a container gets first: those that the topology policy chose at
// its admission. only says that it gets no others. A nil Allocator has no policy.
func (a *Allocator) Near(has pod.Placement) (nodes []int, only bool) {
	if a == nil || a.topology == none {
		return nil, false
	}
	return has.NUMA, a.topology != bestEffort
}

// Reserves reports whether a policy allocates exclusive CPUs or NUMA memory.
func (a *Allocator) Reserves() bool { return a != nil && (a.static || a.memory) }

// containers returns the init containers and the regular ones, in the order in which they start.
func containers(p *v1.Pod) []*v1.Container {
	var all []*v1.Container
	for i := range p.Spec.InitContainers {
		all = append(all, &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		all = append(all, &p.Spec.Containers[i])
	}
	return all
}

func named(p *v1.Pod, name string) *v1.Container {
	for _, c := range containers(p) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// lasts reports whether a container runs as long as the pod. Later containers do not use its CPUs
// again.
func lasts(p *v1.Pod, c *v1.Container) bool { return !isInit(p, c) || pod.Restartable(c) }

func isInit(p *v1.Pod, c *v1.Container) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name })
}

// request returns a container's request; by default that is its limit.
func request(c *v1.Container, name v1.ResourceName) resource.Quantity {
	if q, ok := c.Resources.Requests[name]; ok {
		return q
	}
	return c.Resources.Limits[name]
}
