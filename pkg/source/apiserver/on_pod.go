package apiserver

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
)

// show passes a complete list to cfg.Seen. Pods that the list lacks are passed as gone.
func (p *pods) show(l podList) {
	if p.cfg.OnPod == nil {
		return
	}
	there := make(map[pod.Key]bool, len(l.pods))
	for _, v := range l.pods {
		if p.bound(v) {
			there[pod.KeyOf(v)] = true
		}
	}
	for key, v := range p.shown {
		if !there[key] {
			p.hide(v)
		}
	}
	for _, v := range l.pods {
		if p.bound(v) {
			p.showOne(v)
		}
	}
}

// showEvent passes an event to cfg.Seen, unless an event or list before it was newer.
func (p *pods) showEvent(kind watch.EventType, v *v1.Pod) {
	if p.cfg.OnPod == nil || kind == watch.Bookmark || !p.bound(v) {
		return
	}
	was := p.shown[pod.KeyOf(v)]
	same := was != nil && was.UID == v.UID
	switch {
	case same && apiclient.Older(v.ResourceVersion, was.ResourceVersion), !same && apiclient.Older(v.ResourceVersion, p.seen):
	case kind == watch.Deleted && same:
		p.hide(was)
	case kind != watch.Deleted:
		p.showOne(v)
	}
}

func (p *pods) showOne(v *v1.Pod) {
	key := pod.KeyOf(v)
	was := p.shown[key]
	if was != nil && was.UID == v.UID && was.ResourceVersion == v.ResourceVersion && v.ResourceVersion != "" {
		return
	}
	if was != nil && was.UID != v.UID {
		p.hide(was)
	}
	now := *v               // a copy, so that it keeps no page of a list in memory, and put does not change it
	now.ManagedFields = nil // as in put
	p.shown[key] = &now
	p.cfg.OnPod(&now, false)
}

func (p *pods) hide(v *v1.Pod) {
	delete(p.shown, pod.KeyOf(v))
	p.cfg.OnPod(v, true)
}

// bound reports whether the server has bound a pod to this node. Mirror pods count.
func (p *pods) bound(v *v1.Pod) bool {
	return v.Spec.NodeName == p.cfg.Node && v.Name != "" && v.Namespace != ""
}
