package podconfig

import (
	"context"
	"iter"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Expander returns the pods of workloads. One goroutine calls it: the one that ranges over
// Batches or Expanded, or that calls Once.
type Expander interface {
	// Expand returns the pods and claims of these workloads, which are those that win the
	// merge, sorted by key. Unchanged ones keep their pointers. The origin of each is that of
	// its workload. If two workloads ask for one name, the result has both.
	Expand(workloads []*pod.Object) (pods []*pod.Spec, claims []*pod.Object)
	// Due receives when Expand may return something else for the same workloads. It is nil if
	// that never happens.
	Due() <-chan struct{}
}

// dueOf returns when an expander is due; nil for never.
func dueOf(e Expander) <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.Due()
}

// Expanded yields the state that Once has read, with the pods of its workloads from e. Then it
// yields a batch each time that e is due, also if no pod changes, until ctx is done. The first
// batch has the SET of all pods. The Expander of Config must be nil. Call it once, after Once.
func (c *PodConfig) Expanded(ctx context.Context, e Expander) iter.Seq[Batch] {
	return func(yield func(Batch) bool) {
		f, _ := c.read.withExpander(e)
		if !yield(syncBatch(f.merged)) {
			return
		}
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-e.Due():
				next, b, _ := c.expand(f)
				if f = next; !yield(b) {
					return
				}
			}
		}
	}
}

// expand returns the fold after the pods of workloads were expanded again, the batch that leads
// to, and whether the batch has any change.
func (c *PodConfig) expand(f fold) (fold, Batch, bool) {
	next := f
	if f.merged.AllReady() { // as if every layer took a step
		next.before, next.kept = f.merged.Pods, sorted.List[*pod.Spec]{}
	}
	next, pods := next.remerge(nil, nil, changes{expand: true})
	b := Batch{Updates: diffPods(f.merged, next.merged, pods), State: next.merged, Layer: AllSources}
	b.Updates = c.mode.Convert(b)
	return next, b, len(b.Updates) > 0 || differsInState(f.merged, next.merged)
}

// withExpander returns the fold with one more layer, which holds the pods and claims that e
// returns, and the pods that differ. A nil e changes nothing.
func (f fold) withExpander(e Expander) (fold, []ident) {
	if e == nil {
		return f, nil
	}
	f.expander = e
	f.layers = append(f.layers[:len(f.layers):len(f.layers)], NewLayer("", nil))
	return f.remerge(nil, nil, changes{expand: true})
}

// expandWorkloads returns the fold with the pods and claims of the workloads in objects, and
// those that differ.
func (f fold) expandWorkloads(objects sorted.List[*pod.Object]) (next fold, pods, claims []ident) {
	var workloads []*pod.Object
	for _, kind := range pod.WorkloadKinds() {
		workloads = append(workloads, sorted.Run(objects, kind, func(o *pod.Object, kind string) int { return strings.Compare(o.Kind, kind) })...)
	}
	last := len(f.layers) - 1
	l := f.layers[last].expand(f.expander.Expand(workloads))
	f.layers = append(f.layers[:last:last], l)
	return f, l.changedPods, l.changedObjects
}

// isExpansion reports whether the layer is that of an Expander. It has no source and no state;
// its pods and claims belong to the layers of their workloads.
func (l *Layer) isExpansion() bool { return l.state.Name == "" }

// expand returns the layer of an Expander with these pods and claims.
func (l Layer) expand(pods []*pod.Spec, claims []*pod.Object) Layer {
	l = l.unchanged()
	l.pods, l.changedPods, _ = l.pods.apply(changeTo(l.pods, pods))
	l.objects, l.changedObjects, _ = l.objects.apply(changeTo(l.objects, claims))
	if len(l.changedPods) > 0 {
		l.expanded = make(map[string]int)
		for d := range l.pods.winners.All() {
			l.expanded[d.value.Origin.Layer()]++
		}
	}
	return l
}

// changeTo returns the change of the layer of an Expander that leads to these items, which are
// sorted. What asks for an item counts as its file: if two workloads ask for one name, the one
// that has it keeps it.
func changeTo[T item](t table[T], now []T) change[T] {
	before := make([]T, 0, t.definitions.Len())
	for d := range t.definitions.All() {
		before = append(before, d.value)
	}
	var c change[T]
	touched := make(map[string]bool)
	for _, side := range trim(before, now) {
		for _, v := range side {
			c.ids = append(c.ids, identOf(v))
			touched[documentOf(v)] = true
		}
	}
	if len(c.ids) == 0 {
		return c
	}
	c.files = make(map[string][]T, len(touched))
	for name := range touched {
		c.files[name] = nil
	}
	for _, v := range now {
		if name := documentOf(v); touched[name] {
			c.files[name] = append(c.files[name], v)
		}
	}
	return c
}

// documentOf names what asks for an item: the controller of a pod, whatever place the workload
// has, and the place of the workload of a claim.
func documentOf[T item](v T) string {
	if s, is := any(v).(*pod.Spec); is {
		if owner := metav1.GetControllerOfNoCopy(s.Pod); owner != nil {
			return string(owner.UID)
		}
	}
	o := originOf(v)
	return o.Layer() + "\x00" + o.String()
}

// withoutExpanded returns the pods that none of these objects may have made: a workload that is
// there asks for its pods itself, and a pod of a file would win over it.
func withoutExpanded(pods []*pod.Spec, objects []*pod.Object) []*pod.Spec {
	made := func(s *pod.Spec) bool {
		owner := metav1.GetControllerOfNoCopy(s.Pod)
		return owner != nil && slices.ContainsFunc(objects, func(o *pod.Object) bool {
			return pod.IsWorkload(o.Kind) && o.Namespace == s.Namespace && (owner.Name == o.Name || strings.HasPrefix(owner.Name, o.Name+"-"))
		})
	}
	return slices.DeleteFunc(slices.Clone(pods), made)
}

// states returns the states of the layers. The pods of a layer include those of its workloads.
func (f *fold) states() []LayerState {
	var expanded map[string]int
	states := make([]LayerState, 0, len(f.layers))
	for i := range f.layers {
		l := &f.layers[i]
		if l.isExpansion() {
			expanded = l.expanded
			continue
		}
		states = append(states, l.state)
	}
	for i := range states {
		states[i].Pods += expanded[states[i].Name]
	}
	return states
}
