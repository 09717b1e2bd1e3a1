package service

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// frame is the state of a Service without its pods: its View has no endpoints, and its rules have no
// backends.
type frame struct {
	State
	families []bool // of endpoints; true is IPv6
}

// newFrame returns the frame of a Service with its allocation.
func (a *allocator) newFrame(o *pod.Object, has Allocation) frame {
	s := o.Object.(*v1.Service).DeepCopy()
	families := familiesOf(a, s, has.ClusterIPs)
	a.show(s, has, families)
	view := &View{
		Namespace: s.Namespace, Name: s.Name, ClusterIPs: has.ClusterIPs, Headless: isHeadless(s),
		PublishNotReady: s.Spec.PublishNotReadyAddresses,
	}
	if s.Spec.Type == v1.ServiceTypeExternalName {
		view.ExternalName = s.Spec.ExternalName
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		view.Ports = append(view.Ports, Port{p.Name, p.Protocol, uint16(p.Port), uint16(p.NodePort)})
	}
	return frame{State{Object: o, Service: s, View: view, Rules: a.rules(s, has)}, families}
}

// with returns the state of a Service that selects these pods.
func (f *frame) with(pods []*Pod) State {
	s, view := f.State, *f.View
	s.pods = pods
	view.Endpoints = endpointsOf(s.Service, pods, f.families)
	s.View, s.Rules = &view, slices.Clone(f.Rules)
	ports := s.Service.Spec.Ports
	for i := range s.Rules {
		s.Rules[i].Backends = backends(view.Endpoints, &ports[i%len(ports)], s.Rules[i].Cluster.Is6())
	}
	return s
}

// frames are the frames of all served Services, with the result of their allocation.
type frames struct {
	in      Input // from which they follow
	all     []frame
	found   Allocations
	refused []Refusal
	// settled says that the same input with the allocations found gives the same frames.
	settled bool
	// byLabel has the places of Services by one label of their selectors.
	byLabel map[label][]int
}

func newFrames(in Input) *frames {
	a, found, refused := allocateAll(in)
	f := &frames{in: in, found: found, byLabel: make(map[label][]int)}
	for _, o := range in.Services {
		if allocation, served := found[o.Key]; served {
			f.all = append(f.all, a.newFrame(o, allocation))
		}
	}
	taken := map[frontend]pod.Key{}
	for _, s := range a.bySeniority(f.all) {
		refused[s.Object.Key] = append(refused[s.Object.Key], a.keepFree(s, taken)...)
	}
	for _, o := range in.Services {
		for _, p := range refused[o.Key] {
			p.File, p.Line = o.Origin.String(), 0
			if o.Origin.File != "" {
				p.File, p.Line = o.Origin.File, o.Origin.Line
			}
			f.refused = append(f.refused, Refusal{o.Key, p})
		}
	}
	if in.Partial {
		for key, had := range in.Earlier {
			if _, there := found[key]; !there {
				found[key] = had
			}
		}
	}
	f.settled = f.found.Equal(in.Earlier)
	f.in.Pods, f.in.Before, f.in.Earlier = nil, nil, nil // the frames outlive them
	for i := range f.all {
		if at, selective := labelOf(f.all[i].Service); selective {
			f.byLabel[at] = append(f.byLabel[at], i)
		}
	}
	return f
}

// labelOf returns one label that all pods have which a Service selects: the first one by key.
func labelOf(s *v1.Service) (at label, selective bool) {
	for k, v := range s.Spec.Selector {
		if !selective || k < at.key {
			at, selective = label{s.Namespace, k, v}, true
		}
	}
	return at, selective
}

// hold reports whether an input gives these frames, whose allocations are its earlier ones.
func (f *frames) hold(in Input) bool {
	return f != nil && f.settled && in.Partial == f.in.Partial && in.NodePorts == f.in.NodePorts &&
		slices.Equal(in.Services, f.in.Services) && slices.Equal(in.Nodes, f.in.Nodes) && slices.Equal(in.Local, f.in.Local) &&
		slices.Equal(in.Listeners, f.in.Listeners) && slices.Equal(in.CIDRs, f.in.CIDRs) && slices.Equal(in.Reserved, f.in.Reserved)
}

// KeepsAddresses reports whether the allocations are those of another decision, without a comparison. If it
// returns false, they may be equal all the same.
func (d *Decision) KeepsAddresses(of Decision) bool { return d.frames != nil && d.frames == of.frames }

// affected calls do for each Service that selects one of these pods, and the pod.
func (f *frames) affected(pods []*Pod, do func(i int, p *Pod)) {
	for _, p := range pods {
		for k, v := range p.Labels {
			for _, i := range f.byLabel[label{p.Namespace, k, v}] {
				if selects(f.all[i].Service, p) {
					do(i, p)
				}
			}
		}
	}
}

// with returns the decision that follows when the pods change and the frames stay the same.
func (d *Decision) with(pods []*Pod) Decision {
	next := *d
	next.pods, next.Services = pods, slices.Clone(d.Services)
	gone, came := sorted.Changed(d.pods, pods, func(p, q *Pod) int { return p.Key().Compare(q.Key()) })
	left := make(map[*Pod]bool, len(gone))
	for _, p := range gone {
		left[p] = true
	}
	selected := make(map[int][]*Pod) // of the affected Services: first the pods that came
	d.frames.affected(gone, func(i int, _ *Pod) { selected[i] = nil })
	d.frames.affected(came, func(i int, p *Pod) { selected[i] = append(selected[i], p) })
	for i, all := range selected {
		before, s := &d.Services[i], &next.Services[i]
		for _, p := range before.pods {
			if !left[p] {
				all = append(all, p)
			}
		}
		slices.SortFunc(all, func(p, q *Pod) int { return p.Key().Compare(q.Key()) })
		*s = d.frames.all[i].with(all)
		if s.View.equal(before.View) {
			s.View = before.View
		}
	}
	next.Computed = len(selected)
	return next
}
