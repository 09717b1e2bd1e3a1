package podconfig

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Diff returns the updates that lead from old to new, layer by layer in layer order and
// within a layer in the kubelet's order (C-1.2.10): REMOVE, ADD, UPDATE, DELETE,
// RECONCILE. If a layer becomes ready and has no ADD, UPDATE or DELETE, Diff adds an ADD
// without pods before RECONCILE. This ADD reports that the layer is ready (C-1.2.16).
// A nil old is the empty state.
//
// Each pod is in at most one update. The first row that matches decides:
//
//	not in old                              ADD        also if it is being deleted already
//	not in new                              REMOVE     with its last known spec, in its old layer
//	other content, deletionTimestamp set    DELETE     (C-1.2.9)
//	other content                           UPDATE
//	other status, other layer or file       RECONCILE
//	contents of its objects known again     RECONCILE  old is from a record, which has only checksums
//	else                                    nothing    also if its line in the file differs
//
// The content of a pod is its UID, spec, labels, deletion fields and annotations, except the
// annotations that the kubelet adds to its own copy (C-1.2.7). The content of the config objects that
// the pod is bound to belongs to it, too. Unlike in the kubelet, a pod's identity is its key: the same
// key with another UID is an UPDATE, and the worker replaces the instance.
func Diff(old, new *Merged) []PodUpdate {
	if old == nil {
		old = &Merged{}
	}
	g := newGroups(old, new)
	for a, b := range sorted.Diff(old.Pods, new.Pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) }) {
		switch {
		case b == nil:
			g.add(*a, nil)
		case a == nil:
			g.add(nil, *b)
		default:
			g.add(*a, *b)
		}
	}
	return g.updates(old, new)
}

// diffPods is Diff for two states that differ only in these pods, which are sorted.
func diffPods(old, new *Merged, pods []ident) []PodUpdate {
	g := newGroups(old, new)
	for _, id := range pods {
		g.add(old.Pod(id.key), new.Pod(id.key))
	}
	return g.updates(old, new)
}

// updateOrder is the kubelet's order, with firstReady for the ADD without pods.
var updateOrder = [...]Op{REMOVE, ADD, UPDATE, DELETE, firstReady, RECONCILE}

const firstReady Op = ""

// groups gathers changes by layer and op.
type groups struct {
	layers []layerGroup
	byName map[string]int
}

type layerGroup struct {
	name, source, location string
	updates                map[Op]*PodUpdate
}

// newGroups returns groups with the layers of new in their order, then those that only old
// has.
func newGroups(old, new *Merged) *groups {
	g := &groups{byName: make(map[string]int)}
	for _, m := range []*Merged{new, old} {
		for _, l := range m.Layers {
			g.group(l.Name, l.Source, l.Location)
		}
	}
	return g
}

// group returns the group of layer name; a new one comes last.
func (g *groups) group(name, source, location string) *layerGroup {
	i, ok := g.byName[name]
	if !ok {
		i = len(g.layers)
		g.byName[name] = i
		g.layers = append(g.layers, layerGroup{name: name, source: source, location: location, updates: make(map[Op]*PodUpdate)})
	}
	return &g.layers[i]
}

// add notes the change of one pod; either side may be nil.
func (g *groups) add(old, new *pod.Spec) {
	op := opFor(old, new)
	if op == "" {
		return
	}
	shown := new
	if op == REMOVE {
		shown = old
	}
	o := shown.Origin
	group := g.group(o.Layer(), o.Source, o.Location)
	u := group.updates[op]
	if u == nil {
		u = &PodUpdate{Op: op, Source: group.source, Location: group.location}
		group.updates[op] = u
	}
	u.Pods = append(u.Pods, shown)
	if old != nil && op != REMOVE {
		u.Old = append(u.Old, old)
	}
}

// updates returns the updates in order.
func (g *groups) updates(old, new *Merged) []PodUpdate {
	first := make(map[string]bool)
	for _, l := range new.Layers {
		if ready, _ := old.Ready(l.Name); l.Ready && !ready {
			first[l.Name] = true
		}
	}
	var out []PodUpdate
	for _, group := range g.layers {
		for _, op := range updateOrder {
			if u := group.updates[op]; u != nil {
				out = append(out, *u)
			}
			if op == firstReady && first[group.name] &&
				group.updates[ADD] == nil && group.updates[UPDATE] == nil && group.updates[DELETE] == nil {
				out = append(out, PodUpdate{Op: ADD, Source: group.source, Location: group.location})
			}
		}
	}
	return out
}

// opFor returns the op that leads from old to new, "" for none.
func opFor(old, new *pod.Spec) Op {
	switch {
	case old == new:
		return ""
	case old == nil:
		return ADD
	case new == nil:
		return REMOVE
	case different(old, new), !old.Data.Same(new.Data):
		if new.Pod.DeletionTimestamp != nil {
			return DELETE
		}
		return UPDATE
	case !sameStatus(old, new) || old.Data.HasContents() != new.Data.HasContents() || old.Origin.Layer() != new.Origin.Layer() || old.Origin.File != new.Origin.File:
		return RECONCILE
	}
	return ""
}

// different reports whether two specs of one key differ in their content as Diff defines it,
// without their config objects. A hash covers neither UID nor deletion fields: different compares
// these first. Then equal hashes mean equal content. With unequal hashes different compares the
// fields, because a hash covers more than the content.
func different(old, new *pod.Spec) bool {
	a, b := old.Pod, new.Pod
	switch {
	case a == b && old.Hash == new.Hash:
		return false
	case a.UID != b.UID, !sameDeletion(a, b):
		return true
	case old.Hash != "" && old.Hash == new.Hash:
		return false
	}
	return !reflect.DeepEqual(a.Labels, b.Labels) ||
		!sameAnnotations(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

func sameDeletion(a, b *v1.Pod) bool {
	x, y := a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds
	return a.DeletionTimestamp.Equal(b.DeletionTimestamp) && (x == y || x != nil && y != nil && *x == *y)
}

func sameStatus(a, b *pod.Spec) bool {
	x, y := &a.Pod.Status, &b.Pod.Status
	if a.Pod == b.Pod || onlyPhase(x) && onlyPhase(y) {
		return x.Phase == y.Phase
	}
	return equality.Semantic.DeepEqual(x, y)
}

// onlyPhase reports whether a status has only a phase, as for every pod that does not come
// from an API server. Most statuses are of this kind, and sameStatus needs no reflection for them.
func onlyPhase(s *v1.PodStatus) bool {
	return s.ObservedGeneration == 0 && s.Message == "" && s.Reason == "" &&
		s.NominatedNodeName == "" && s.HostIP == "" && s.PodIP == "" && s.QOSClass == "" && s.Resize == "" &&
		s.StartTime == nil && s.ExtendedResourceClaimStatus == nil && s.Resources == nil &&
		len(s.Conditions)+len(s.HostIPs)+len(s.PodIPs)+len(s.AllocatedResources)+
			len(s.InitContainerStatuses)+len(s.ContainerStatuses)+len(s.EphemeralContainerStatuses)+
			len(s.ResourceClaimStatuses)+len(s.NodeAllocatableResourceClaimStatuses) == 0
}

// sameAnnotations compares all annotations except those that the kubelet adds to its own copy of a
// pod. It compares AnnotationConfigHash.
func sameAnnotations(a, b map[string]string) bool {
	return covers(a, b) && covers(b, a)
}

// covers reports whether b has every annotation of a that sameAnnotations compares, with the same
// value.
func covers(a, b map[string]string) bool {
	for k, v := range a {
		switch k {
		case pod.AnnotationConfigSource, pod.AnnotationConfigMirror, pod.AnnotationConfigSeen:
			continue
		}
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}
