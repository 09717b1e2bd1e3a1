package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// objectID names a ConfigMap or Secret.
type objectID struct {
	kind string
	pod.Key
}

func (o objectID) String() string { return strings.ToLower(o.kind) + "/" + o.Key.String() }

func (o objectID) compare(p objectID) int {
	return cmp.Or(strings.Compare(o.kind, p.kind), o.Key.Compare(p.Key))
}

// objectsOf returns the ConfigMaps and Secrets that p names, each once. It leaves out invalid names, which
// no object can have. A pod that is being deleted may name more than pod.MaxObjects: objectsOf then returns
// only the first ones.
func objectsOf(p *v1.Pod) []objectID {
	var out []objectID
	for _, r := range pod.Refs(p) {
		readable := r.Kind == pod.KindConfigMap || r.Kind == pod.KindSecret
		if readable && len(validation.IsDNS1123Subdomain(r.Name)) == 0 && len(validation.IsDNS1123Label(p.Namespace)) == 0 {
			out = append(out, objectID{r.Kind, pod.Key{Namespace: p.Namespace, Name: r.Name}})
		}
	}
	slices.SortFunc(out, objectID.compare)
	out = slices.Compact(out)
	return out[:min(len(out), pod.MaxObjects)]
}

// collection returns the collection of this one object: a node may not list others.
func (o objectID) collection() apiclient.Collection {
	if o.kind == pod.KindSecret {
		return apiclient.Secret(o.Namespace, o.Name)
	}
	return apiclient.ConfigMap(o.Namespace, o.Name)
}

// objects has the readers of ConfigMaps, Secrets and Services. One goroutine reads each object as long as a
// pod names it (C-1.38.10). Only the goroutine that ranges over Sets uses the fields.
type objects struct {
	begin   func(read func(context.Context)) (end func())
	answers chan answer // capacity 0: readers send, the goroutine of Sets receives; readers wait
	readers map[objectID]*reader
	waiting map[*reader]struct{} // the readers without an answer; pods wait for them
	until   time.Time            // the end of that wait
	service *reader              // the reader of Services; nil for none
	found   bool                 // since the last set, a reader has got its first answer
}

// reader is one goroutine that reads an object, or the Services.
type reader struct {
	id       objectID
	end      func()
	known    bool // the server has answered whether the object exists
	failures int
}

// answer is one result of a reader: the object, nil if it does not exist, or an error.
type answer struct {
	from   *reader
	object *pod.Object
	err    error
}

func newObjects(begin func(read func(context.Context)) (end func())) *objects {
	return &objects{begin: begin, answers: make(chan answer), readers: map[objectID]*reader{}, waiting: map[*reader]struct{}{}}
}

// start starts a reader. read calls report for each answer, until its context ends. Pods wait at most for
// limit for the first answer.
func (o *objects) start(r *reader, limit time.Duration, read func(ctx context.Context, report func(*pod.Object, error))) {
	if now := time.Now(); len(o.waiting) == 0 || now.After(o.until) {
		o.until = now.Add(limit)
	}
	o.waiting[r] = struct{}{}
	r.end = o.begin(func(ctx context.Context) {
		read(ctx, func(object *pod.Object, err error) {
			select {
			case o.answers <- answer{r, object, err}:
			case <-ctx.Done():
			}
		})
	})
}

// wait returns for how much longer pods wait for first answers.
func (o *objects) wait() time.Duration {
	if len(o.waiting) == 0 {
		return 0
	}
	return max(0, time.Until(o.until))
}

// noteUnread sets Spec.Unread of each pod to the objects about which the server has not answered yet. As in
// the kubelet, no container starts that uses such an object, even if the object is optional.
func (r *run) noteUnread() {
	for file := range r.unsure {
		n := r.naming[file]
		c, refused := r.refused[file]
		var unread []pod.ObjectID
		for _, id := range n.ids {
			// Another pod may have the object of a pod without room read, but only as long as that
			// pod exists. So it counts as unread.
			if read := r.readers[id]; read == nil || !read.known || refused && !c.held {
				unread = append(unread, pod.ObjectID{Kind: id.kind, Name: id.Name})
			}
		}
		if !slices.Equal(unread, n.unread) {
			n.unread = unread
			spec := *n.spec
			spec.Unread = unread
			r.set.Put(source.File{File: file, Pods: []*pod.Spec{&spec}}, n.notices)
		}
		// Do not check a pod without room again until that changes: there may be many.
		if refused || len(unread) == 0 {
			delete(r.unsure, file)
		}
	}
}

// isDirty reports whether the set may differ from the last yielded one.
func (r *run) isDirty() bool { return r.set.Dirty() || r.found && len(r.unsure) > 0 }

// syncReaders starts and ends readers, so that they read the objects that pods name and for which there is
// room, and no others.
func (r *run) syncReaders() {
	r.grant()
	for id := range r.touched {
		read, wanted := r.readers[id], r.users[id] > 0
		switch {
		case wanted && read == nil:
			read = &reader{id: id}
			r.readers[id] = read
			r.start(read, r.first, func(ctx context.Context, report func(*pod.Object, error)) { r.readObject(ctx, id, report) })
		case wanted:
		case read != nil:
			r.drop(read)
			delete(r.readers, id)
			fallthrough
		default:
			r.leaveUnread(id)
		}
	}
	clear(r.touched)
	switch wanted := r.cfg.Services && len(r.known) > 0; {
	case wanted && r.service == nil:
		r.service = &reader{}
		r.start(r.service, r.first, func(ctx context.Context, report func(*pod.Object, error)) {
			r.reader.ReadServices(ctx, func(err error) { report(nil, err) })
		})
	case !wanted && r.service != nil:
		r.drop(r.service)
		r.service = nil
	}
}

// leaveUnread removes an object that no reader reads from the set. If the object is held, it keeps its last
// state, or becomes a file that cannot be read.
func (r *run) leaveUnread(id objectID) {
	file := r.objectFile(id)
	switch {
	case r.held.users[id] == 0:
		r.set.Remove(file)
	case !r.set.Has(file):
		r.set.Put(unread(file, "pods name too many ConfigMaps and Secrets"), nil)
	}
}

func (r *run) drop(read *reader) {
	read.end()
	delete(r.waiting, read)
}

// takeAnswer applies an answer to the set. While an object cannot be read, the set keeps its last state.
func (r *run) takeAnswer(a answer) {
	read := a.from
	if read == r.service {
		delete(r.waiting, read)
		return
	}
	if r.readers[read.id] != read { // it was ended
		return
	}
	file := r.objectFile(read.id)
	switch {
	case a.err != nil:
		// The server permits a node to read an object a moment after it binds the pod.
		if read.failures++; read.failures > 1 {
			delete(r.waiting, read)
		}
		if !read.known && read.failures > 1 {
			r.set.Put(unread(file, a.err.Error()), nil)
		}
		return
	case a.object == nil:
		r.set.Remove(file)
	default:
		r.set.Put(source.File{File: file, Objects: []*pod.Object{a.object}}, nil)
	}
	r.found = r.found || !read.known
	read.known, read.failures = true, 0
	delete(r.waiting, read)
}

// markUnanswered adds the objects without an answer to the set as files that cannot be read, so that they do
// not count as deleted.
func (r *run) markUnread() {
	for read := range r.waiting {
		if file := r.objectFile(read.id); read != r.service && !r.set.Has(file) {
			r.set.Put(unread(file, "the server has not answered yet"), nil)
		}
	}
	clear(r.waiting)
}

func unread(file, why string) source.File {
	return source.File{File: file, Incomplete: true, Problems: []pod.Problem{{File: file, Msg: "cannot be read: " + why}}}
}

// await waits for first answers. It returns false if ctx ends.
func (r *run) await(ctx context.Context) bool {
	for r.wait() > 0 {
		timer := time.NewTimer(r.wait())
		select {
		case a := <-r.answers:
			r.takeAnswer(a)
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
	return true
}

// sleep waits for d, or until or is closed, and applies answers meanwhile. It returns false if ctx ends.
func (r *run) sleep(ctx context.Context, d time.Duration, or <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case a := <-r.answers:
			r.takeAnswer(a)
		case <-timer.C:
			return true
		case <-or:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// objectFile returns the name of the source.File of an object.
func (s *Source) objectFile(id objectID) string { return s.cfg.Kubeconfig + "#" + id.String() }

// readObject reads one object until ctx ends, or until the object is immutable. If a list lacks an object
// that existed before, a second list has to confirm that, as for pods (F71).
func (s *Source) readObject(ctx context.Context, id objectID, report func(*pod.Object, error)) {
	there, doubted := false, false
	show := func(o apiclient.Object) apiclient.Next {
		there, doubted = o != nil, false
		if o == nil {
			report(nil, nil)
			return apiclient.Continue
		}
		object := s.objectOf(id, o)
		report(object, nil)
		if object.Immutable() {
			return apiclient.Stop
		}
		return apiclient.Continue
	}
	is := func(o apiclient.Object) bool { return o.GetName() == id.Name && o.GetNamespace() == id.Namespace }
	s.reader.AwaitPermission(ctx, id.collection())
	s.reader.Reflect(ctx, id.collection(), apiclient.Listener{
		List: func(all []apiclient.Object) apiclient.Next {
			at := slices.IndexFunc(all, is)
			switch {
			case at >= 0:
				return show(all[at])
			case there && !doubted:
				doubted = true
				return apiclient.ListAgain
			}
			return show(nil)
		},
		Event: func(e apiclient.Event) apiclient.Next {
			switch {
			case !is(e.Object):
				return apiclient.Continue
			case e.Type == watch.Deleted:
				return show(nil)
			}
			return show(e.Object)
		},
		Failed: func(err error) {
			s.cfg.Log.Debug("Failed to read object", "object", id.String(), "error", err)
			report(nil, err)
		},
	})
}

// objectOf returns the object that pods are bound to, without managed fields.
func (s *Source) objectOf(id objectID, o apiclient.Object) *pod.Object {
	o.SetManagedFields(nil)
	out := &pod.Object{
		Key: id.Key, Kind: id.kind, Object: o,
		Origin: pod.Origin{Source: pod.SourceAPI, Location: s.cfg.Kubeconfig, File: s.objectFile(id)},
	}
	switch o := o.(type) {
	case *v1.ConfigMap:
		out.Hash = podspec.HashObject(map[string]any{"data": o.Data, "binaryData": o.BinaryData, "immutable": out.Immutable()})
	case *v1.Secret:
		out.Hash = podspec.HashObject(map[string]any{"type": fmt.Sprint(o.Type), "data": o.Data, "immutable": out.Immutable()})
	}
	return out
}
