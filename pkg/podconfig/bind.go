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

// bindings has the config objects that each pod names, and the unbound pods. The zero value has no
// pods.
type bindings struct {
	names   sorted.List[naming]     // by pod; only of pods that name objects
	users   sorted.List[user]       // by object, then pod
	unbound sorted.List[unboundPod] // by pod
	// problems has the problems of all unbound pods, in their order.
	problems []pod.Problem
}

// naming has the objects that a pod names, sorted.
type naming struct {
	pod     ident
	objects []ident
}

func (n naming) compareTo(id ident) int { return n.pod.compare(id) }

// user is one pod that names one object.
type user struct{ object, pod ident }

func (u user) compareTo(object ident) int { return u.object.compare(object) }

// unboundPod is a pod that names a required object that is missing or that it may not see. While a
// source that may have the object has not answered, problems is empty.
type unboundPod struct {
	pod      ident
	problems []pod.Problem
}

func (r unboundPod) compareTo(id ident) int { return r.pod.compare(id) }

// bind binds the given pods again, and all pods that name one of the given objects. With retryUnbound
// it also binds all unbound pods again. It returns the fold after that, the merged pods (set), and the
// pods that have changed.
func (f fold) bind(pods, objects []ident, retryUnbound bool) (next fold, set sorted.List[*pod.Spec], changed []ident) {
	set = f.merged.Pods
	ids := slices.Clone(pods)
	for _, object := range objects {
		for _, u := range sorted.Run(f.bindings.users, object, user.compareTo) {
			ids = append(ids, u.pod)
		}
	}
	if retryUnbound {
		for r := range f.bindings.unbound.All() {
			ids = append(ids, r.pod)
		}
	}
	if len(ids) == 0 {
		return f, set, nil
	}
	ids = sortedIdents(ids)
	binder := binder{fold: &f}
	bound := make(map[ident][]*pod.Spec, len(ids))
	unbound := make(map[ident][]unboundPod)
	named := make(map[ident][]naming)
	for _, id := range ids {
		was, now := f.merged.Pod(id.key), f.beforeBinding(id)
		if now != nil {
			refs := pod.Refs(now.Pod)
			if len(refs) > 0 {
				named[id] = []naming{{id, objectsOf(now, refs)}}
			}
			spec, r := binder.bind(now, was, refs)
			if r != nil {
				unbound[id] = []unboundPod{*r}
			}
			now = spec
		}
		if now != nil {
			bound[id] = []*pod.Spec{now}
		}
		if now != was {
			changed = append(changed, id)
		}
	}
	f.bindings = f.bindings.replace(ids, named, unbound)
	return f, sorted.Patch(set, changed, compareItem[*pod.Spec], from(bound)), changed
}

// beforeBinding returns the version of a pod to bind: its replacement by breakCycles, else the
// winner of the layers; nil for none.
func (f fold) beforeBinding(id ident) *pod.Spec {
	if s, done := f.cycles.replacements[id.key]; done {
		return s
	}
	s, _ := findPod(f.winners, id.key)
	return s
}

// replace returns the bindings after bind has bound the pods in ids again. named has the objects that
// these pods name, and unbound has the unbound ones of them.
func (b bindings) replace(ids []ident, named map[ident][]naming, unbound map[ident][]unboundPod) bindings {
	newUsers := make(map[ident][]ident) // the changed pods, by object
	isChanged := make(map[ident]bool)
	var changed []ident // the pods that name other objects than before
	var touched []ident // the objects that these pods name or named before
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
		changed, isChanged[id] = append(changed, id), true
		for _, object := range after {
			newUsers[object] = append(newUsers[object], id)
		}
		touched = append(append(touched, before...), after...)
	}
	if len(changed) > 0 {
		b.names = sorted.Patch(b.names, changed, naming.compareTo, from(named))
		b.users = sorted.Patch(b.users, sortedIdents(touched), user.compareTo, func(object ident) []user {
			users := slices.Clone(sorted.Run(b.users, object, user.compareTo))
			users = slices.DeleteFunc(users, func(u user) bool { return isChanged[u.pod] })
			for _, id := range newUsers[object] {
				users = append(users, user{object, id})
			}
			slices.SortFunc(users, func(a, b user) int { return a.pod.compare(b.pod) })
			return users
		})
	}
	if len(unbound) == 0 && b.unbound.Len() == 0 {
		return b
	}
	b.unbound = sorted.Patch(b.unbound, ids, unboundPod.compareTo, from(unbound))
	var problems []pod.Problem
	for r := range b.unbound.All() {
		problems = append(problems, r.problems...)
	}
	if !same(problems, b.problems) {
		b.problems = problems
	}
	return b
}

// objectsOf returns the objects that refs of s name, sorted, each once.
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

// bind returns s bound to the objects of refs. If a required object is missing, it returns s as an
// unboundPod, and the version to use instead, with its old objects (I9). That version is was, else the
// one that the previous agent stored, else nil.
//
// A pod of an API server is never unbound. bind binds it to the objects that exist. Its containers
// wait for the others, as in the kubelet. A pod that is being deleted is never unbound either, because
// it only has to stop.
func (b *binder) bind(s, was *pod.Spec, refs []pod.Ref) (*pod.Spec, *unboundPod) {
	if len(refs) == 0 && s.Data == nil {
		return s, nil
	}
	var objects []*pod.Object
	var problems []pod.Problem
	missing := false
	found := make(map[ident]*pod.Object, len(refs))
	reported := make(map[string]bool)
	neverUnbound := s.Origin.FromAPI() || s.Pod.DeletionTimestamp != nil
	incomplete := false // an object is missing, but the pod is bound without it
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
			incomplete = true // the previous version was bound to the object, which may still exist
			continue
		}
		if r.Optional || r.Kind == pod.KindClaim && s.Origin.FromAPI() || o != nil && (r.Key == "" || o.Has(r.Key)) {
			continue
		}
		if neverUnbound {
			incomplete = true
			continue
		}
		missing = true
		msg, hint, final := b.fold.describeMissing(s.Origin.Source, id, r, o)
		if final && !reported[msg] {
			reported[msg] = true
			problems = append(problems, pod.Problem{
				File: cmp.Or(s.Origin.File, s.Origin.Location), Line: cmp.Or(s.Positions[r.Path].Line, s.Origin.Line), Column: s.Positions[r.Path].Column,
				Path: r.Path, Msg: msg, Hint: hint, Pod: s.Key,
			})
		}
	}
	if missing {
		if was == nil {
			was, _ = findPod(b.fold.kept, s.Key)
		}
		return was, &unboundPod{ident{kindPod, s.Key}, problems}
	}
	if incomplete && was != nil && was.Data != nil && was.Pod == s.Pod {
		return was, nil // keep the old binding: a missing object restarts nothing
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
	if data.Same(before) && before.HasContents() && sameBinding(was, now) {
		return was, nil // equal to now, but shared with the previous state
	}
	return now, nil
}

// sameBinding reports whether two specs with the same binding are equal.
func sameBinding(a, b *pod.Spec) bool {
	return a.Pod == b.Pod && a.Key == b.Key && a.Origin == b.Origin && slices.Equal(a.Unread, b.Unread) && a.Hash == b.Hash && a.SandboxHash == b.SandboxHash &&
		maps.Equal(a.ContainerHashes, b.ContainerHashes)
}

// object returns the config object for a pod of this kind of source, nil for none. The object comes from
// the first layer that has it and whose objects the pod may see.
func (f *fold) object(source string, id ident) *pod.Object {
	for i := range f.layers {
		l := &f.layers[i]
		if !l.isExpansion() && !f.visible.sees(source, l.state.Source) {
			continue
		}
		if won := l.objects.winner(id); won != nil && (!l.isExpansion() || f.visible.sees(source, won.value.Origin.Source)) {
			return won.value
		}
	}
	return nil
}

// describeMissing returns the message and the hint for a missing object or, if o is not nil, for a
// missing key of o. source is the kind of source of the pod. final is false while a source that may
// have the object has not answered yet.
func (f *fold) describeMissing(source string, id ident, r pod.Ref, o *pod.Object) (msg, hint string, final bool) {
	name := fmt.Sprintf("%s %q", strings.ToLower(r.Kind), r.Name)
	if r.Kind == pod.KindClaim {
		name = fmt.Sprintf("claim %q", r.Name)
	}
	if o != nil {
		return fmt.Sprintf("%s, at %s, has no key %q", name, o.Origin, r.Key), "add the key to it, or set optional: true in the reference", true
	}
	var unanswered, elsewhere string
	for i := range f.layers {
		if f.layers[i].isExpansion() {
			continue
		}
		l := &f.layers[i].state
		switch sees := f.visible.sees(source, l.Source); {
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
		return "at a URL"
	case "stdin":
		return "on standard input"
	case pod.SourceAPI:
		return "in an API server"
	}
	return "in " + source
}

// unanswered reports whether a layer's source has yielded neither a set nor an error, and has not
// ended.
func (l LayerState) unanswered() bool { return !l.Ready && l.Error == "" && !l.Ended }

// sameAnswer reports whether a layer has the same answer of its source in both states: none, a set, an
// error or the source's end.
func (l LayerState) sameAnswer(o LayerState) bool {
	return l.Ready == o.Ready && l.Ended == o.Ended && (l.Error == "") == (o.Error == "")
}
