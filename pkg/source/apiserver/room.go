package apiserver

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// maxObjects is how many ConfigMaps and Secrets are read at once: each has a goroutine
	// and a watch. The server binds any number of pods, whatever the node admits.
	maxObjects = 20_000
	// A pod that has not started needs room for smallFirst times its objects. Where room is
	// short, pods that name few still get theirs.
	smallFirst = 8
	// retryRefused is how long a change waits for further ones, before the source checks pods
	// without room again.
	retryRefused = time.Second
)

// claim is the objects that are to be read for a pod.
type claim struct {
	ids    []objectID // sorted, all of one namespace
	weight int        // smallFirst, or 1 of a pod that has started
	held   bool       // the pod has started and has no room, and its objects are held
}

// same reports whether two claims are equal. A retry costs no comparison.
func (c claim) same(d claim) bool {
	if c.weight != d.weight || len(c.ids) != len(d.ids) {
		return false
	}
	return len(c.ids) == 0 || &c.ids[0] == &d.ids[0] || slices.Equal(c.ids, d.ids)
}

// tally counts how many pods name an object. It has at most maxObjects objects.
type tally struct {
	users map[objectID]int // at least 1
	used  map[string]int   // by namespace: objects that have users; at least 1
}

func newTally() tally { return tally{users: map[objectID]int{}, used: map[string]int{}} }

func (t *tally) add(id objectID) {
	if t.users[id]++; t.users[id] == 1 {
		t.used[id.Namespace]++
	}
}

func (t *tally) drop(id objectID) {
	if t.users[id]--; t.users[id] > 0 {
		return
	}
	delete(t.users, id)
	if t.used[id.Namespace]--; t.used[id.Namespace] == 0 {
		delete(t.used, id.Namespace)
	}
}

// hasRoom reports whether the objects of c may be added. A namespace has at most as many as
// are left for the others: one has half, and two have two thirds.
func (t *tally) hasRoom(c claim) bool {
	if len(c.ids) == 0 {
		return true
	}
	room := max(0, maxObjects-len(t.users)-t.used[c.ids[0].Namespace]) / c.weight
	return t.fresh(c.ids, room) <= room
}

// fresh returns how many of ids have no users. It ends the count above most: each retry asks
// for all pods without room.
func (t *tally) fresh(ids []objectID, most int) int {
	n := 0
	for _, id := range ids {
		if t.users[id] == 0 {
			if n++; n > most {
				break
			}
		}
	}
	return n
}

// claim notes the objects to be read for a file's pod; grant decides. A terminated pod
// needs none.
func (p *pods) claim(file string, s *pod.Spec) {
	c := claim{weight: smallFirst}
	if !s.EndedAtServer() {
		c.ids = objectsOf(s.Pod)
	}
	if s.Pod.Status.Phase == v1.PodRunning {
		c.weight = 1
	}
	p.claims[file] = c
}

// unclaim removes the claim of a file's pod.
func (p *pods) unclaim(file string) {
	delete(p.claims, file)
	p.settle(file)
	p.name(file, nil)
	p.noteNaming(file, &namingPod{})
}

// noteNaming notes which objects a file's pod names.
func (p *pods) noteNaming(file string, n *namingPod) {
	if len(n.ids) == 0 {
		delete(p.naming, file)
		delete(p.unsure, file)
		return
	}
	p.naming[file], p.unsure[file] = n, struct{}{}
}

// settle notes that a file's pod does not wait for room.
func (p *pods) settle(file string) {
	p.release(p.refused[file])
	delete(p.refused, file)
	p.set.Remove(p.refusal(file))
}

// refuse notes that a file's pod waits for room. The objects of one that has started are held: they
// do not count as deleted, so its volumes keep their content. There is room for as many held
// objects as for read ones.
func (p *pods) refuse(file string, c claim) {
	was := p.refused[file]
	if !c.same(was) {
		p.release(was)
		was.held = false
		p.unsure[file] = struct{}{}
	}
	if c.held = was.held; !c.held && c.weight == 1 && p.held.hasRoom(c) {
		c.held = true
		for _, id := range c.ids {
			p.held.add(id)
			p.touched[id] = struct{}{}
		}
	}
	p.refused[file] = c
}

// release ends the hold on the objects of c.
func (p *pods) release(c claim) {
	if !c.held {
		return
	}
	for _, id := range c.ids {
		p.held.drop(id)
		p.touched[id] = struct{}{}
	}
}

// grant decides on the claims: of pods that have started first, then of those that name few
// objects. A pod without room keeps its objects.
func (p *pods) grant() {
	files := slices.SortedFunc(maps.Keys(p.claims), func(a, b string) int {
		c, d := p.claims[a], p.claims[b]
		return cmp.Or(cmp.Compare(c.weight, d.weight), cmp.Compare(len(c.ids), len(d.ids)), strings.Compare(a, b))
	})
	for _, file := range files {
		c := p.claims[file]
		if p.hasRoom(c) {
			p.settle(file)
			p.name(file, c.ids)
			if len(c.ids) > 0 {
				p.unsure[file] = struct{}{}
			}
			continue
		}
		p.name(file, slices.DeleteFunc(slices.Clone(p.names[file]), func(id objectID) bool {
			_, still := slices.BinarySearchFunc(c.ids, id, objectID.compare)
			return !still
		}))
		p.refuse(file, c)
		p.set.Put(unread(p.refusal(file), "the pods of this node, or of the namespace, name too many ConfigMaps and Secrets (at most "+strconv.Itoa(maxObjects)+" are read)"), nil)
	}
	clear(p.claims)
}

// retry has the next grant decide again on pods without room.
func (p *pods) retry() {
	for file, c := range p.refused {
		if _, newer := p.claims[file]; !newer {
			p.claims[file] = c
		}
	}
	p.moved = false
}

// refusal is the name of the source.File that says that a pod has no room.
func (s *Source) refusal(file string) string {
	return s.cfg.Kubeconfig + "#pod/" + strings.TrimPrefix(file, s.cfg.Kubeconfig+"#")
}

// name records the objects that are read for a file's pod.
func (p *pods) name(file string, ids []objectID) {
	if slices.Equal(p.names[file], ids) {
		return
	}
	p.moved = len(p.refused) > 0
	for _, id := range p.names[file] {
		p.drop(id)
		p.touched[id] = struct{}{}
	}
	for _, id := range ids {
		p.add(id)
		p.touched[id] = struct{}{}
	}
	if p.names[file] = ids; len(ids) == 0 {
		delete(p.names, file)
	}
}
