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
	// maxObjects limits how many ConfigMaps and Secrets the source reads: each has a goroutine and a
	// watch. The server may bind more pods to the node than the node admits.
	maxObjects = 20_000
	// smallFirst is the weight of the objects of a pod that has not started. It needs room for so many
	// times its objects. So pods that name few objects still get theirs if there is little room.
	smallFirst = 8
	// retryRefused is how long the source waits for further changes before it decides again about pods
	// without room.
	retryRefused = time.Second
)

// claim has the objects that the source shall read for a pod.
type claim struct {
	ids    []objectID // sorted, all of one namespace
	weight int        // 1 for a pod that has started, else smallFirst
	held   bool       // the pod has started and has no room, and its objects are held (see refuse)
}

// same reports whether two claims are equal. It compares no objects if the claims share the list, as in a
// retry.
func (c claim) same(d claim) bool {
	if c.weight != d.weight || len(c.ids) != len(d.ids) {
		return false
	}
	return len(c.ids) == 0 || &c.ids[0] == &d.ids[0] || slices.Equal(c.ids, d.ids)
}

// tally counts how many pods name an object. It has at most maxObjects objects.
type tally struct {
	users map[objectID]int // how many pods name each object, at least 1
	used  map[string]int   // how many objects of each namespace have users, at least 1
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

// hasRoom reports whether the objects of c may be added. A namespace may have at most as many objects as
// the room that is left for all others. So one namespace gets at most half of all room, and two together
// get two thirds.
func (t *tally) hasRoom(c claim) bool {
	if len(c.ids) == 0 {
		return true
	}
	room := max(0, maxObjects-len(t.users)-t.used[c.ids[0].Namespace]) / c.weight
	return t.fresh(c.ids, room) <= room
}

// fresh returns how many of ids have no users. It stops counting above most, because each retry calls it
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

// claim notes which objects the source shall read for a file's pod; grant decides about them. A terminated
// pod needs none.
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
	p.endRefusal(file)
	p.setNames(file, nil)
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

// endRefusal notes that a file's pod does not wait for room.
func (p *pods) endRefusal(file string) {
	p.release(p.refused[file])
	delete(p.refused, file)
	p.set.Remove(p.refusal(file))
}

// refuse notes that a file's pod waits for room. If the pod has started, its objects are held: they do not
// count as deleted, so that its volumes keep their content. At most maxObjects objects are held.
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

// grant decides about the claims. It begins with pods that have started, and then with those that name few
// objects. A pod without room keeps the objects that it already has.
func (p *pods) grant() {
	files := slices.SortedFunc(maps.Keys(p.claims), func(a, b string) int {
		c, d := p.claims[a], p.claims[b]
		return cmp.Or(cmp.Compare(c.weight, d.weight), cmp.Compare(len(c.ids), len(d.ids)), strings.Compare(a, b))
	})
	for _, file := range files {
		c := p.claims[file]
		if p.hasRoom(c) {
			p.endRefusal(file)
			p.setNames(file, c.ids)
			if len(c.ids) > 0 {
				p.unsure[file] = struct{}{}
			}
			continue
		}
		p.setNames(file, slices.DeleteFunc(slices.Clone(p.names[file]), func(id objectID) bool {
			_, still := slices.BinarySearchFunc(c.ids, id, objectID.compare)
			return !still
		}))
		p.refuse(file, c)
		p.set.Put(unread(p.refusal(file), "the pods of this node, or of the namespace, name too many ConfigMaps and Secrets (at most "+strconv.Itoa(maxObjects)+" are read)"), nil)
	}
	clear(p.claims)
}

// retry has the next grant decide again about pods without room.
func (p *pods) retry() {
	for file, c := range p.refused {
		if _, newer := p.claims[file]; !newer {
			p.claims[file] = c
		}
	}
	p.moved = false
}

// refusal returns the name of the source.File with the problem that a pod has no room.
func (s *Source) refusal(file string) string {
	return s.cfg.Kubeconfig + "#pod/" + strings.TrimPrefix(file, s.cfg.Kubeconfig+"#")
}

// setNames sets the objects that are read for a file's pod.
func (p *pods) setNames(file string, ids []objectID) {
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
