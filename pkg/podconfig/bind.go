package podconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// bindings records which pods name which config objects, and which pods could not be
// bound. The zero value is none.
type bindings struct {
	names   sorted.List[naming]  // by pod; of pods that name any
	users   sorted.List[user]    // by object, then pod
	refused sorted.List[refusal] // by pod
	// problems are those of the refused, in their order.
	problems []pod.Problem
}

// naming is the objects that a pod names, sorted.
type naming struct {
	pod     ident
	objects []ident
}

func (n naming) compareTo(id ident) int { return n.pod.compare(id) }

// user is one pod that names one object.
type user struct{ object, pod ident }

func (u user) compareTo(object ident) int { return u.object.compare(object) }

// refusal is a pod that lacks an object it cannot run without. It has no problem while
// a source that may have the object has not answered.
type refusal struct {
	pod      ident
	problems []pod.Problem
}

func (r refusal) compareTo(id ident) int { return r.pod.compare(id) }

// bind returns the fold after it bound these pods, which may have changed, and all pods
// that name one of these objects. spoke says that another layer may have such objects
// now. set is the resulting pods, changed those of them that differ.
func (f fold) bind(pods, objects []ident, spoke bool) (next fold, set sorted.List[*pod.Spec], changed []ident) {
	set = f.merged.Pods
	ids := slices.Clone(pods)
	for _, object := range objects {
		for _, u := range sorted.Run(f.bindings.users, object, user.compareTo) {
			ids = append(ids, u.pod)
		}
	}
	if spoke {
		for r := range f.bindings.refused.All() {
			ids = append(ids, r.pod)
		}
	}
	if len(ids) == 0 {
		return f, set, nil
	}
	ids = sortedIdents(ids)
	binder := binder{fold: &f}
	changedSets := make(map[ident][]*pod.Spec, len(ids))
	refused := make(map[ident][]refusal)
	named := make(map[ident][]naming)
	for _, id := range ids {
		was, now := f.merged.Pod(id.key), f.written(id)
		if now != nil {
			refs := pod.Refs(now.Pod)
			if len(refs) > 0 {
				named[id] = []naming{{id, objectsOf(now, refs)}}
			}
			bound, r := binder.bound(now, was, refs)
			if r != nil {
				refused[id] = []refusal{*r}
			}
			now = bound
		}
		if now != nil {
			changedSets[id] = []*pod.Spec{now}
		}
		if now != was {
			changed = append(changed, id)
		}
	}
	f.bindings = f.bindings.replace(ids, named, refused)
	return f, sorted.Patch(set, changed, compareItem[*pod.Spec], from(changedSets)), changed
}

// written returns the pod of the layers, or the version that replaces it because of a
// cycle; nil for none.
func (f fold) written(id ident) *pod.Spec {
	if s, done := f.cycles.instead[id.key]; done {
		return s
	}
	s, _ := findPod(f.winners, id.key)
	return s
}

// replace returns the bindings with the objects that ids name, and those of ids that
// are refused.
func (b bindings) replace(ids []ident, named map[ident][]naming, refused map[ident][]refusal) bindings {
	come := make(map[ident][]ident) // pods, by object
	moved := make(map[ident]bool)
	var touched, renamed []ident
	for _, id := range ids {
		var before, after []ident
		if old, known := sorted.Find(b.names, id, naming.compareTo); known {
			before = old.objects
		}
		for _, n := range named[id] {
			after = n.objects
		}
		if slices.Equal(before, after) {
			continue
		}
		renamed, moved[id] = append(renamed, id), true
		for _, object := range after {
			come[object] = append(come[object], id)
		}
		touched = append(append(touched, before...), after...)
	}
	if len(renamed) > 0 {
		b.names = sorted.Patch(b.names, renamed, naming.compareTo, from(named))
		b.users = sorted.Patch(b.users, sortedIdents(touched), user.compareTo, func(object ident) []user {
			users := slices.Clone(sorted.Run(b.users, object, user.compareTo))
			users = slices.DeleteFunc(users, func(u user) bool { return moved[u.pod] })
			for _, id := range come[object] {
				users = append(users, user{object, id})
			}
			slices.SortFunc(users, func(a, b user) int { return a.pod.compare(b.pod) })
			return users
		})
	}
	if len(refused) == 0 && b.refused.Len() == 0 {
		return b
	}
	b.refused = sorted.Patch(b.refused, ids, refusal.compareTo, from(refused))
	var problems []pod.Problem
	for r := range b.refused.All() {
		problems = append(problems, r.problems...)
	}
	if !same(problems, b.problems) {
		b.problems = problems
	}
	return b
}

// objectsOf returns what refs of s name, sorted, each once.
func objectsOf(s *pod.Spec, refs []pod.Ref) []ident {
	var out []ident
	for _, r := range refs {
		out = append(out, ident{r.Kind, pod.Key{Namespace: s.Namespace, Name: r.Name}})
	}
	return sortedIdents(out)
}

// binder binds the pods of one step.
type binder struct {
	fold   *fold
	summer podspec.Summer
}

// bound returns s bound to the objects of refs. Where one is missing, it returns the
// version before, bound to its old objects (I9), and why; nil when there was none. Pods
// of an API server are bound to the objects that exist and wait for the others, as in
// the kubelet. So is a pod that is being deleted, which has to stop.
func (b *binder) bound(s, was *pod.Spec, refs []pod.Ref) (*pod.Spec, *refusal) {
	if len(refs) == 0 && s.Data == nil {
		return s, nil
	}
	var objects []*pod.Object
	var problems []pod.Problem
	missing := false
	found := make(map[ident]*pod.Object, len(refs))
	reported := make(map[string]bool)
	waits := s.Origin.FromAPI() || s.Pod.DeletionTimestamp != nil
	lacks := false // an object that the pod waits for
	for _, r := range refs {
		id := ident{r.Kind, pod.Key{Namespace: s.Namespace, Name: r.Name}}
		o, known := found[id]
		if !known {
			o = b.fold.object(s.Origin.Source, id)
			if found[id] = o; o != nil {
				objects = append(objects, o)
			}
		}
		if r.Optional && o == nil && was != nil && was.Data.Has(r.Kind, r.Name) && s.CheckRead(r.Kind, r.Name) != nil {
			lacks = true // it was there, and may still be
			continue
		}
		if r.Optional || r.Kind == pod.KindClaim && s.Origin.FromAPI() || o != nil && (r.Key == "" || o.Has(r.Key)) {
			continue
		}
		if waits {
			lacks = true
			continue
		}
		missing = true
		msg, hint, final := b.fold.lacks(s.Origin.Source, id, r, o)
		if final && !reported[msg] {
			reported[msg] = true
			problems = append(problems, pod.Problem{
				File: cmp.Or(s.Origin.File, s.Origin.Location), Line: cmp.Or(s.Positions[r.Path].Line, s.Origin.Line), Column: s.Positions[r.Path].Column,
				Path: r.Path, Msg: msg, Hint: hint,
			})
		}
	}
	if missing {
		if was == nil {
			was, _ = findPod(b.fold.kept, s.Key)
		}
		return was, &refusal{ident{kindPod, s.Key}, problems}
	}
	if lacks && was != nil && was.Data != nil && was.Pod == s.Pod {
		return was, nil // a missing object restarts nothing
	}
	var before *pod.Data
	if was != nil {
		before = was.Data
	}
	data := b.summer.Data(objects, before)
	if was == nil {
		return podspec.Bind(s, data), nil
	}
	now := podspec.Bind(s, data)
	if data.Same(before) && before.Known() && sameBinding(was, now) {
		return was, nil // which shares memory with the yielded state
	}
	return now, nil
}

// sameBinding reports whether two specs with the same binding are equal.
func sameBinding(a, b *pod.Spec) bool {
	return a.Pod == b.Pod && a.Key == b.Key && a.Origin == b.Origin && slices.Equal(a.Unread, b.Unread) && a.Hash == b.Hash && a.SandboxHash == b.SandboxHash &&
		maps.Equal(a.ContainerHashes, b.ContainerHashes)
}

// object returns the config object that a pod of this kind of source sees: the one
// of the first layer, of those it may see, that has one; nil for none.
func (f *fold) object(source string, id ident) *pod.Object {
	for i := range f.layers {
		l := &f.layers[i]
		if !f.sees(source, l.state.Source) {
			continue
		}
		if won := l.objects.winner(id); won != nil {
			return won.value
		}
	}
	return nil
}

// sees reports whether the pods of one kind of source see the objects of another.
func (f *fold) sees(pods, objects string) bool {
	if f.visible == nil {
		return pods == objects
	}
	return f.visible(pods, objects)
}

// lacks describes which object, or which key of o, a pod of this kind of source cannot
// get. final is false while a source that may have it has not answered yet.
func (f *fold) lacks(source string, id ident, r pod.Ref, o *pod.Object) (msg, hint string, final bool) {
	name := fmt.Sprintf("%s %q", strings.ToLower(r.Kind), r.Name)
	if r.Kind == pod.KindClaim {
		name = fmt.Sprintf("claim %q", r.Name)
	}
	if o != nil {
		return fmt.Sprintf("%s, at %s, has no key %q", name, o.Origin, r.Key), "add the key to it, or set optional: true in the reference", true
	}
	var unanswered, elsewhere string
	for i := range f.layers {
		l := &f.layers[i].state
		switch sees := f.sees(source, l.Source); {
		case sees && l.unanswered():
			return "", "", false
		case sees && !l.Ready && unanswered == "":
			unanswered = " (" + l.Name + " could not be read)"
		case !sees && elsewhere == "":
			if won := f.layers[i].objects.winner(id); won != nil {
				elsewhere = l.Source
			}
		}
	}
	if elsewhere != "" {
		return fmt.Sprintf("%s is %s, and pods of %s sources cannot reference it", name, placeOf(elsewhere), source),
			"define the object and the pod in the same kind of source, or allow the reference in the source policy", true
	}
	hint = fmt.Sprintf("define the %s in namespace %s in the same kind of source as the pod", r.Kind, id.key.Namespace)
	if r.Kind != pod.KindClaim {
		hint += ", or set optional: true in the reference"
	}
	return fmt.Sprintf("no %[2]s source defines %[1]s%[3]s", name, source, unanswered), hint, true
}

// placeOf describes where a source's objects are.
func placeOf(source string) string {
	switch source {
	case "file":
		return "in a file"
	case "http":
		return "behind a URL"
	case "stdin":
		return "on standard input"
	case pod.SourceAPI:
		return "in an API server"
	}
	return "in " + source
}

// unanswered reports whether a layer's source has not answered in any way yet.
func (l LayerState) unanswered() bool { return !l.Ready && l.Error == "" && !l.Ended }

// differs reports whether two states of a layer differ in which objects it may still get.
func (l LayerState) differs(o LayerState) bool {
	return l.Ready != o.Ready || l.Ended != o.Ended || (l.Error == "") != (o.Error == "")
}
