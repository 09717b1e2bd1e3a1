package service

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Input has all facts that a decision depends on.
type Input struct {
	// Services are the Services that win the merge, sorted by key. Each Object is a *v1.Service with
	// the defaults of the API.
	Services []*pod.Object
	Pods     []*Pod // sorted by key
	// Nodes are the addresses of the node that Services of the type LoadBalancer get.
	Nodes []netip.Addr
	// Local are all addresses of the node, and Listeners the TCP ports on which this agent listens
	// there. Services do not take these ports, or those of SSH and of the components of Kubernetes.
	Local     []netip.Addr
	Listeners []uint16
	// CIDRs are the ranges of cluster IPs, at most one of each family. The first one is the default.
	CIDRs []netip.Prefix
	// Reserved are cluster IPs that no Service may get.
	Reserved []netip.Addr
	// NodePorts is the range of node ports.
	NodePorts PortRange
	// Earlier are the allocations of the last decision, perhaps of an earlier agent. Before is the
	// last decision of this process, or nil, and Earlier are its allocations then. Decide computes
	// the changed parts of it again, and the others keep their pointers.
	Earlier Allocations
	Before  *Decision
	// Partial says that Services may be missing, because their sources have failed. Missing
	// Services keep their allocations in Earlier.
	Partial bool
	// Now becomes the creation time of Services without an allocation.
	Now time.Time
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// DefaultNodePorts is the default range of an API server.
func DefaultNodePorts() PortRange { return PortRange{30000, 32767} }

// Allocations are the addresses and ports of Services, by the key of the Service.
type Allocations map[pod.Key]Allocation

// Allocation has the addresses and ports of one Service.
type Allocation struct {
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	// NodePorts are the node ports, by protocol and port: "TCP/80".
	NodePorts map[string]uint16 `json:"nodePorts,omitempty"`
	Created   time.Time         `json:"created"`
}

func (a Allocation) equal(b Allocation) bool {
	if !slices.Equal(a.ClusterIPs, b.ClusterIPs) || len(a.NodePorts) != len(b.NodePorts) || !a.Created.Equal(b.Created) {
		return false
	}
	for k, v := range a.NodePorts {
		if b.NodePorts[k] != v {
			return false
		}
	}
	return true
}

// Equal reports whether two sets of allocations are the same.
func (a Allocations) Equal(b Allocations) bool {
	if len(a) != len(b) {
		return false
	}
	for key, v := range a {
		if w, there := b[key]; !there || !v.equal(w) {
			return false
		}
	}
	return true
}

// storedAllocation is an Allocation in the stored file.
type storedAllocation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Allocation
}

// MarshalJSON implements json.Marshaler: a list in the order of keys.
func (a Allocations) MarshalJSON() ([]byte, error) {
	out := make([]storedAllocation, 0, len(a))
	for _, key := range slices.SortedFunc(maps.Keys(a), pod.Key.Compare) {
		out = append(out, storedAllocation{key.Namespace, key.Name, a[key]})
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *Allocations) UnmarshalJSON(data []byte) error {
	var in []storedAllocation
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*a = make(Allocations, len(in))
	for _, s := range in {
		(*a)[pod.Key{Namespace: s.Namespace, Name: s.Name}] = s.Allocation
	}
	return nil
}

// Decision has the state of all Services.
type Decision struct {
	// Services are the served Services, in the order of the input.
	Services    []State
	Allocations Allocations
	// Refused are the problems of Services, sorted by key. A Service with a problem is served with
	// its earlier allocation. Without an earlier allocation, it is missing in Services.
	Refused []Refusal
	// Computed is the number of Services whose endpoints this decision has computed. The others are
	// those of Input.Before.
	Computed int

	frames *frames // of Services, in the same order
	pods   []*Pod  // of the input
}

// Refusal is one problem of one Service.
type Refusal struct {
	pod.Key
	Problem pod.Problem
}

// State is one served Service.
type State struct {
	// Object is the object of the source. Service is the object that an API server would return:
	// with cluster IPs, node ports and status.
	Object  *pod.Object
	Service *v1.Service
	View    *View
	// Rules are the rules of the packet filter for the Service, one for each port and family.
	Rules []Rule

	pods []*Pod // that the Service selects, sorted by key
}

// Rule is one port of one Service in one family, for the packet filter.
type Rule struct {
	// Name is unique: "namespace/name/tcp/port name".
	Name     string
	Protocol v1.Protocol
	Port     uint16
	// Cluster is the cluster IP.
	Cluster netip.Addr
	// External are the other addresses, sorted: external IPs, and for a Service of the type
	// LoadBalancer the addresses of the node.
	External []External
	NodePort uint16 // on all addresses of the node; 0: none
	// Backends are the endpoints that get connections, sorted. Without any, the node refuses
	// connections.
	Backends []netip.AddrPort
	// Affinity is the time for which connections of one client go to the same endpoint; 0: no
	// affinity.
	Affinity time.Duration
}

// External is an address of a Service other than its cluster IPs.
type External struct {
	Addr netip.Addr
	// Sources are the networks of clients that may use the address; nil allows all.
	Sources []netip.Prefix
}

// Decide returns the state of all Services.
//
// The frames of Services do not depend on pods. While they stay the same, Decide computes only the
// Services that select a changed pod.
func Decide(in Input) Decision {
	if b := in.Before; b != nil && b.frames.hold(in) {
		return b.with(in.Pods)
	}
	f := newFrames(in)
	d := Decision{Allocations: f.found, Refused: f.refused, Computed: len(f.all), frames: f, pods: in.Pods}
	index := newIndex(in.Pods)
	for i := range f.all {
		d.Services = append(d.Services, f.all[i].with(index.selected(f.all[i].Service)))
	}
	if in.Before != nil {
		d.keepPointers(in.Before)
	}
	return d
}

// keepPointers replaces each View of d by an equal View of before.
func (d *Decision) keepPointers(before *Decision) {
	known := make(map[pod.Key]*State, len(before.Services))
	for i := range before.Services {
		known[before.Services[i].Object.Key] = &before.Services[i]
	}
	for i := range d.Services {
		s := &d.Services[i]
		if b := known[s.Object.Key]; b != nil && s.View.equal(b.View) {
			s.View = b.View
		}
	}
}

func (v *View) equal(w *View) bool {
	return v.Namespace == w.Namespace && v.Name == w.Name && v.ExternalName == w.ExternalName && v.Headless == w.Headless &&
		v.PublishNotReady == w.PublishNotReady && slices.Equal(v.ClusterIPs, w.ClusterIPs) && slices.Equal(v.Ports, w.Ports) &&
		slices.EqualFunc(v.Endpoints, w.Endpoints, func(a, b Endpoint) bool {
			return a.Addr == b.Addr && a.Hostname == b.Hostname && a.Namespace == b.Namespace && a.Pod == b.Pod &&
				a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating && slices.Equal(a.Ports, b.Ports)
		})
}
