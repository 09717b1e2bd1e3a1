package apiserver

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// pods is the set that follows from the server's lists and events. Names of files are those of
// source.File.
type pods struct {
	*Source
	set     source.Builder
	known   map[string]version     // the pods of the set, by file
	deleted map[types.UID]struct{} // pods deleted since the last list; a UID is never used again
	opened  map[string]struct{}    // files that were removed since the last snapshot
	seen    string                 // the newest resource version that was seen: the next watch begins there
	names   map[string][]objectID  // the objects that are read for the pods, by file
	tally                          // of names

	naming map[string]*namingPod // the pods that name objects, by file
	unsure map[string]struct{}   // files of naming whose unread objects may have changed

	touched map[objectID]struct{} // objects whose users may have changed

	claims  map[string]claim // the claims that the next grant decides about, by file
	refused map[string]claim // the claims without room, by file
	held    tally            // of the claims that are held
	moved   bool             // names has changed since claims were refused

	shown map[pod.Key]*v1.Pod // the pods that cfg.Seen got; empty if cfg.Seen is nil
}

// namingPod is a pod of the set that names objects.
type namingPod struct {
	spec    *pod.Spec // without unread objects
	notices []pod.Problem
	ids     []objectID     // the objects that it names
	unread  []pod.ObjectID // those of them about which the server has not answered
}

// version is one state of one pod.
type version struct {
	uid types.UID
	rv  string // the resource version; "" if it may be from before the server's data were set back
}

// podList is one complete list of pods.
type podList struct {
	rv   string
	at   apiclient.Position // of the watch that follows
	pods []*v1.Pod
}

// maxDeleted limits the UIDs of deleted pods that are kept between two lists. Old events of a deleted pod
// are rare, and come soon after its deletion.
const maxDeleted = 4096

func newPods(s *Source) *pods {
	return &pods{
		Source: s, known: map[string]version{}, deleted: map[types.UID]struct{}{}, opened: map[string]struct{}{},
		names: map[string][]objectID{}, tally: newTally(), touched: map[objectID]struct{}{},
		naming: map[string]*namingPod{}, unsure: map[string]struct{}{},
		claims: map[string]claim{}, refused: map[string]claim{}, held: newTally(), shown: map[pod.Key]*v1.Pod{},
	}
}

// snapshot returns the set.
func (p *pods) snapshot() source.Snapshot {
	clear(p.opened)
	return p.set.Snapshot()
}

// isDesired reports whether this node runs a pod. A mirror pod only shows a pod of another layer (C-1.4.1,
// C-1.12.2). A server without field selectors sends the pods of all nodes.
func (p *pods) isDesired(v *v1.Pod) bool {
	_, mirror := v.Annotations[pod.AnnotationConfigMirror]
	return !mirror && p.bound(v)
}

// doubts returns the pods of the set that l lacks, or has with another UID. The result has their UIDs in
// the set, by file.
func (p *pods) unconfirmed(l podList) map[string]types.UID {
	there := make(map[string]types.UID, len(l.pods))
	for _, v := range l.pods {
		if p.isDesired(v) {
			there[p.file(pod.KeyOf(v))] = v.UID
		}
	}
	unconfirmed := map[string]types.UID{}
	for file, is := range p.known {
		if uid, ok := there[file]; !ok || uid != is.uid {
			unconfirmed[file] = is.uid
		}
	}
	return unconfirmed
}

// replace makes the set that of l. It removes a pod that l lacks only if the pod is in gone. Other such
// pods stay, and the watch shows whether they are deleted.
func (p *pods) replace(l podList, gone map[string]types.UID, flush func()) {
	clear(p.deleted)
	unconfirmed := p.unconfirmed(l)
	for file, uid := range unconfirmed {
		if _, ok := gone[file]; ok {
			p.remove(file, uid)
		} else {
			p.known[file] = version{uid: uid}
		}
	}
	for _, v := range l.pods {
		file := p.file(pod.KeyOf(v))
		if is, ok := p.known[file]; p.isDesired(v) && (!ok || is.uid == v.UID) {
			p.put(v, flush)
		}
	}
}

// take applies an event to the set. Old and repeated events change nothing.
func (p *pods) take(e apiclient.Event, flush func()) {
	v, is := e.Object.(*v1.Pod)
	if !is {
		return
	}
	p.showEvent(e.Type, v)
	if !apiclient.Older(v.ResourceVersion, p.seen) && v.ResourceVersion != "" {
		defer func() { p.seen = v.ResourceVersion }()
	}
	file := p.file(pod.KeyOf(v))
	was, known := p.known[file]
	switch e.Type {
	case watch.Bookmark:
	case watch.Deleted:
		if known && was.uid == v.UID && !apiclient.Older(v.ResourceVersion, was.rv) {
			p.remove(file, v.UID)
		}
	case watch.Added, watch.Modified:
		_, dead := p.deleted[v.UID]
		old := dead || apiclient.Older(v.ResourceVersion, was.rv) || !known && apiclient.Older(v.ResourceVersion, p.seen)
		switch {
		case old:
		case p.isDesired(v):
			p.put(v, flush)
		case known && was.uid == v.UID:
			p.remove(file, v.UID)
		}
	}
}

// put makes v the content of its file. If v is rejected and an earlier pod of this name was deleted, put
// first calls flush, which yields the set without that pod. Otherwise the rejected file would keep the
// deleted pod in use.
func (p *pods) put(v *v1.Pod, flush func()) {
	file := p.file(pod.KeyOf(v))
	is, known := p.known[file]
	now := version{v.UID, v.ResourceVersion}
	if known && is == now && now.rv != "" {
		return
	}
	v.ManagedFields = nil // nodectl does not use them, and they take half of the memory
	f := source.File{File: file}
	spec, notices := p.cfg.Spec(v, file)
	for i := range notices {
		if notices[i].File == "" {
			notices[i].File = file
		}
	}
	if spec != nil {
		f.Pods = []*pod.Spec{spec}
		p.claim(file, spec)
		p.noteNaming(file, &namingPod{spec: spec, notices: notices, ids: p.claims[file].ids})
	} else {
		p.unclaim(file)
		f.Broken = []pod.Key{pod.KeyOf(v)}
		f.Problems, notices = notices, nil
		if len(f.Problems) == 0 {
			f.Problems = []pod.Problem{{File: file, Msg: "is rejected"}}
		}
		for i := range f.Problems {
			f.Problems[i].Pod = f.Broken[0]
		}
		_, opened := p.opened[file]
		if known && is.uid != v.UID {
			p.remove(file, is.uid)
			opened = true
		}
		if opened {
			flush()
		}
	}
	p.known[file] = now
	p.set.Put(f, notices)
}

// remove removes a file with its pod from the set.
func (p *pods) remove(file string, uid types.UID) {
	delete(p.known, file)
	if len(p.deleted) >= maxDeleted {
		clear(p.deleted)
	}
	p.deleted[uid] = struct{}{}
	p.opened[file] = struct{}{}
	p.set.Remove(file)
	p.unclaim(file)
	p.reader.ForgetTokens(uid)
}
