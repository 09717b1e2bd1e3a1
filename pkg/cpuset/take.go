package cpuset

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"
)

// taker chooses CPUs of a machine, whole parts of it first (C-1.46.3).
type taker struct {
	machine cpus
	free    cpus
	need    int
	got     Set
	spread  bool // over the cores of a socket (distribute-cpus-across-cores)
}

func newTaker(machine cpus, free Set, need int, spread bool) *taker {
	return &taker{machine: machine, free: machine.only(free), need: need, got: cpuset.New(), spread: spread}
}

// nodesFirst reports whether NUMA nodes are as large as sockets, or larger.
func (t *taker) nodesFirst() bool {
	return t.machine.parts(socketOf).Size() >= t.machine.parts(nodeOf).Size()
}

// sorted sorts parts by the number of their free CPUs, fewest first, then by ID.
func (t *taker) sorted(part func(CPU) int, ids Set) []int {
	free := make(map[int]int, ids.Size())
	for _, c := range t.free {
		free[part(c)]++
	}
	list := ids.List()
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(free[a], free[b]) })
	return list
}

// nested returns the parts that have free CPUs, in the order of the outer parts. Within an outer part
// it sorts them as sorted does.
func (t *taker) nested(part, outer func(CPU) int, outers []int) []int {
	var all []int
	for _, o := range outers {
		for _, id := range t.sorted(part, t.free.within(part, outer, o)) {
			if !slices.Contains(all, id) { // it may be in several outer parts
				all = append(all, id)
			}
		}
	}
	return all
}

func (t *taker) nodes() []int {
	if t.nodesFirst() {
		return t.sorted(nodeOf, t.free.parts(nodeOf))
	}
	return t.nested(nodeOf, socketOf, t.sockets())
}

func (t *taker) sockets() []int {
	if t.nodesFirst() {
		return t.nested(socketOf, nodeOf, t.nodes())
	}
	return t.sorted(socketOf, t.free.parts(socketOf))
}

func (t *taker) cores() []int {
	if t.nodesFirst() {
		return t.nested(coreOf, socketOf, t.sockets())
	}
	return t.nested(coreOf, nodeOf, t.nodes())
}

func (t *taker) caches() []int { return t.nested(cacheOf, nodeOf, t.nodes()) }

// threads returns the free CPUs core after core or, with spread, socket after socket.
func (t *taker) threads() []int {
	part, ids := coreOf, []int(nil)
	if t.spread {
		part, ids = socketOf, t.sockets()
	} else {
		ids = t.cores()
	}
	var all []int
	for _, id := range ids {
		all = append(all, t.free.in(part, id).List()...)
	}
	return all
}

func (t *taker) take(set Set) {
	t.got = t.got.Union(set)
	for _, id := range set.UnsortedList() {
		delete(t.free, id)
	}
	t.need -= set.Size()
}

// takeWhole takes parts of which all CPUs are free, as long as that many are needed. Unless size is 0,
// it takes only parts with that number of CPUs.
func (t *taker) takeWhole(part func(CPU) int, ids []int, size int) {
	var whole []Set
	for _, id := range ids {
		free := t.free.in(part, id)
		if free.Equals(t.machine.in(part, id)) && (size == 0 || free.Size() == size) {
			whole = append(whole, free)
		}
	}
	for _, set := range whole {
		if t.need >= set.Size() {
			t.take(set)
		}
	}
}

// takeCaches takes the CPUs of whole uncore caches, then the rest from one cache if that has enough.
func (t *taker) takeCaches() {
	for _, id := range t.caches() {
		if t.need >= t.machine.perPart(cacheOf) {
			t.takeWhole(cacheOf, t.caches(), 0)
		}
		if t.need < 1 {
			return
		}
		t.takeFromCache(id)
		if t.need < 1 {
			return
		}
	}
}

// takeFromCache takes all that is needed from the cores of one uncore cache, or nothing.
func (t *taker) takeFromCache(id int) {
	each := t.machine.perPart(coreOf)
	cores := t.free.within(coreOf, cacheOf, id).List()
	if n := (t.need + each - 1) / each; len(cores) > n {
		cores = cores[:n]
	}
	list := t.free.in(coreOf, cores...).List()
	if t.need%2 != 0 && each > 1 && len(list) > t.need {
		list = list[:len(list)-1]
	}
	if len(list) == t.need {
		t.take(cpuset.New(list...))
	}
}

// packed returns n of the free CPUs in as few parts of the machine as possible. With byCache, it
// also keeps them in few uncore caches.
func packed(machine cpus, free Set, n int, spread, byCache bool) (Set, error) {
	t := newTaker(machine, free, n, spread)
	if n < 1 {
		return t.got, nil
	}
	if n > len(t.free) {
		return t.got, notEnough(n, free.Size())
	}
	takeNodes := func() { t.takeWhole(nodeOf, t.nodes(), 0) }
	takeSockets := func() { t.takeWhole(socketOf, t.sockets(), machine.perPart(socketOf)) }
	steps := []func(){takeSockets, takeNodes}
	if t.nodesFirst() {
		steps = []func(){takeNodes, takeSockets}
	}
	if byCache {
		steps = append(steps, t.takeCaches)
	}
	if !spread {
		steps = append(steps, func() { t.takeWhole(coreOf, t.cores(), machine.perPart(coreOf)) })
	}
	for _, step := range steps {
		if step(); t.need < 1 {
			return t.got, nil
		}
	}
	t.take(cpuset.New(t.threads()[:t.need]...))
	return t.got, nil
}

func notEnough(need, free int) error {
	return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", need, free)
}
