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
	// Expand returns the pods and claims of workloads, each list sorted by key. workloads has
	// those that win the merge. Unchanged pods and claims keep their pointers. Their origin is that
	// of their workload. If two workloads ask for one name, the result has both.
	Expand(workloads []*pod.Object) (pods []*pod.Spec, claims []*pod.Object)
	// Due returns a channel that can be received from when Expand may return another result for the
	// same workloads. The channel is nil if that never happens.
	Due() <-chan struct{}
}

// dueOf returns the channel of e; nil without an expander.
func dueOf(e Expander) <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.Due()
}

// Expanded yields a batch with the state that Once has read and the pods of its workloads from e: one
// SET of all pods. Then it yields a batch each time that e is due, also if no pod changes, until ctx is
// done. Config.Expander must be nil. Call Expanded once, after Once.
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

// expand asks the Expander for the pods of all workloads again. It returns the fold after that, its
// batch, and whether the batch has any change.
func (c *PodConfig) expand(f fold) (fold, Batch, bool) {
	next := f
	if f.merged.AllReady() { // as in step, for all layers together
		next.before, next.kept = f.merged.Pods, sorted.List[*pod.Spec]{}
	}
	next, pods := next.remerge(nil, nil, changes{expand: true})
	b := Batch{Updates: diffPods(f.merged, next.merged, pods), State: next.merged, Layer: AllSources}
	b.Updates = c.mode.Convert(b)
	return next, b, len(b.Updates) > 0 || differsInState(f.merged, next.merged)
}

// withExpander returns the fold with one more layer for each layer, in the same order, and the
// pods that differ. The new layers hold the pods and claims that e returns for the workloads of
// the layers. A nil e changes nothing.
func (f fold) withExpander(e Expander) (fold, []ident) {
	if e == nil {
		return f, nil
	}
	f.expander = e
	f.layers = slices.Clip(f.layers)
	for range f.layers {
		f.layers = append(f.layers, NewLayer("", nil))
	}
	return f.remerge(nil, nil, changes{expand: true})
}

// expandWorkloads returns the fold with the pods and claims of the workloads in objects, and
// those that differ.
func (f fold) expandWorkloads(objects sorted.List[*pod.Object]) (next fold, pods, claims []ident) {
	var workloads []*pod.Object
	for _, kind := range pod.WorkloadKinds() {
		workloads = append(workloads, sorted.Run(objects, kind, func(o *pod.Object, kind string) int { return strings.Compare(o.Kind, kind) })...)
	}
	allPods, allClaims := f.expander.Expand(workloads)
	f.layers = slices.Clone(f.layers)
	sources, expansions := f.layers[:len(f.layers)/2], f.layers[len(f.layers)/2:]
	podsOf, claimsOf := byLayer(sources, allPods), byLayer(sources, allClaims)
	for i, l := range expansions {
		expansions[i] = l.expand(podsOf[i], claimsOf[i])
		pods, claims = append(pods, expansions[i].changedPods...), append(claims, expansions[i].changedObjects...)
	}
	return f, sortedIdents(pods), sortedIdents(claims)
}

// byLayer returns items by the layers of their workloads, in their order. Items of an unknown
// layer go to the last one.
func byLayer[T item](layers []Layer, items []T) [][]T {
	out := make([][]T, len(layers))
	for _, v := range items {
		name := originOf(v).Layer()
		i := slices.IndexFunc(layers, func(l Layer) bool { return l.state.Name == name })
		if i < 0 {
			i = len(layers) - 1
		}
		out[i] = append(out[i], v)
	}
	return out
}

// isExpansion reports whether the layer holds the pods and claims of another layer's workloads.
// It has no source and no state.
func (l *Layer) isExpansion() bool { return l.state.Name == "" }

// expand returns the layer of a layer's workloads with these pods and claims.
func (l Layer) expand(pods []*pod.Spec, claims []*pod.Object) Layer {
	l = l.unchanged()
	l.pods, l.changedPods, _ = l.pods.apply(changeTo(l.pods, pods))
	l.objects, l.changedObjects, _ = l.objects.apply(changeTo(l.objects, claims))
	return l
}

// changeTo returns the change of an expansion that leads to the items in now, which are sorted. In an
// expansion, each workload takes the place of a file. So if two workloads of a layer ask for one name,
// the workload that already has the item keeps it.
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
			touched[askerOf(v)] = true
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
		if name := askerOf(v); touched[name] {
			c.files[name] = append(c.files[name], v)
		}
	}
	return c
}

// askerOf identifies the workload that asks for an item. For a pod this is the UID of its controller,
// which stays if the workload moves to another file. For a claim it is the place of its workload.
func askerOf[T item](v T) string {
	if s, is := any(v).(*pod.Spec); is {
		if owner := metav1.GetControllerOfNoCopy(s.Pod); owner != nil {
			return string(owner.UID)
		}
	}
	o := originOf(v)
	return o.Layer() + "\x00" + o.String()
}

// withoutExpanded returns pods without those that one of these workloads may have made. A workload that
// exists asks for its pods itself, and a kept pod of its file would win over them.
func withoutExpanded(pods []*pod.Spec, objects []*pod.Object) []*pod.Spec {
	return slices.DeleteFunc(slices.Clone(pods), func(s *pod.Spec) bool { return isExpandedFrom(s, objects) })
}

// isExpandedFrom reports whether one of these objects may have made the pod.
func isExpandedFrom(s *pod.Spec, objects []*pod.Object) bool {
	owner := metav1.GetControllerOfNoCopy(s.Pod)
	return owner != nil && slices.ContainsFunc(objects, func(o *pod.Object) bool {
		return pod.IsWorkload(o.Kind) && o.Namespace == s.Namespace && (owner.Name == o.Name || strings.HasPrefix(owner.Name, o.Name+"-"))
	})
}

// states returns the states of the layers. The pods of a layer include those of its workloads.
func (f *fold) states() []LayerState {
	states := make([]LayerState, 0, len(f.layers))
	owner := 0 // the layer whose workloads the next expansion has
	for i := range f.layers {
		l := &f.layers[i]
		if !l.isExpansion() {
			states = append(states, l.state)
			continue
		}
		states[owner].Pods += l.pods.winners.Len()
		owner++
	}
	return states
}
