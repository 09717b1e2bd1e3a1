// Package balancer serves the Services of a node without a cluster. After each change of a Service
// or a pod, it calls service.Decide for the addresses, ports and endpoints of the Services. It
// stores the allocations, and gives the rules to the packet filter.
//
// A Balancer is a sink of the engine: Set, Report and Services hold a lock only briefly, and never
// wait for a disk or the kernel. Run does the work that may wait.
//
// The rules of the previous agent stay until every source has answered, or uses its last good set.
package balancer

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/service/nft"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// Filter is the packet filter of the node.
type Filter interface {
	// Links returns the networks of endpoints in which packets between two hosts bypass the packet
	// filter.
	Links(backends []netip.Addr) ([]netip.Prefix, error)
	// Prepare sets sysctls and routes of the devices of endpoints, so that clients on loopback
	// addresses of the node reach them. Restore resets these. loopback6 reports whether ::1 works.
	Prepare(backends []netip.Addr) (loopback6 bool, err error)
	Restore() error
	// Route adds a route to a range of cluster IPs, or removes it.
	Route(cidr netip.Prefix, on bool) error
	// Apply changes the rules in the kernel to d. After Forget, the next Apply replaces all of
	// them.
	Apply(d nft.Desired) (messages int, err error)
	Forget()
	// Remove removes the rules.
	Remove() error
	// Guard adds the rules that protect the loopback addresses of the node.
	Guard() error
	// Proxy names the tables and chains of a kube-proxy in the packet filter, or returns "".
	Proxy() (string, error)
	// Watch calls changed after another program has changed the rules, and proxied after a
	// kube-proxy has made rules that the kernel reports, until ctx ends.
	Watch(ctx context.Context, changed, proxied func()) error
	// Close closes the connection to the kernel. The rules stay.
	Close()
}

// Store keeps the allocations of Services.
type Store interface {
	Load() (service.Allocations, error)
	Save(service.Allocations) error
}

// RecordedPod is a pod of the previous agent, with its last status.
type RecordedPod struct {
	Pod    *v1.Pod
	Status *v1.PodStatus
}

// Config configures a Balancer.
type Config struct {
	CIDRs     []netip.Prefix
	Reserved  []netip.Addr
	NodePorts service.PortRange
	Nodes     []netip.Addr
	Local     []netip.Addr // all addresses of the node
	Listeners []uint16     // TCP ports on which this agent listens
	Recorded  []RecordedPod
	Store     Store
	Filter    Filter
	// Refused is called once for each problem of a Service.
	Refused func(o *pod.Object, p pod.Problem)
	// Trouble is called when Services cannot be served, and after the Balancer has restored rules
	// that another program had changed. It is called once for the same cause.
	Trouble func(reason, message string)
	// Views is called with all Services after each decision that changed one; it may be nil.
	// complete means that no Service can be missing.
	Views func(all []*service.View, complete bool)
	Log   *slog.Logger
}

// Reasons of Config.Trouble.
const (
	ReasonNoFilter = "ServicesNotServed"
	ReasonProxy    = "KubeProxyRuns"
	ReasonRestored = "ServiceRulesRestored"
)

// Answers is the state of the sources: it decides whether Services may be missing.
type Answers int

// The values of Answers.
const (
	Waiting  Answers = iota // a source has not answered
	Partial                 // a source has failed, and has no last good set
	Complete                // every source has answered, or uses its last good set
)

// Balancer serves the Services of a node.
type Balancer struct {
	cfg Config
	due wakeup.Signal // a change, for Run

	mu       sync.Mutex
	services []*pod.Object
	answers  Answers
	want     func(pod.Key) *pod.Spec // of the newest desired set
	pods     map[pod.Key]*entry
	list     []*service.Pod   // of pods, sorted by key, except for those that have changed
	changed  map[pod.Key]bool // pods, since list was made
	dirty    bool             // decision is older than services and pods
	decision service.Decision
	foreign  bool // another program has changed the rules
	proxied  bool // a kube-proxy may serve the node

	// Only Run uses these.
	stored   service.Allocations
	saved    service.Decision // the last one whose allocations are stored
	refused  map[service.Refusal]bool
	views    []*service.View
	whole    bool // complete in the last call of Config.Views
	guarded  bool // the guard of loopback addresses was in force, and no change of it was reported since
	open     bool // sysctls of devices may be set
	inFilter bool // the packet filter may have rules of ours
	routed   bool
	prepared prepared
	recovery
}

// entry is one pod.
type entry struct {
	uid      string
	pod      *service.Pod // never changes
	reported bool         // by this agent's engine
}

// New returns a Balancer, and reads the allocations.
func New(cfg Config) *Balancer {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Balancer{
		cfg: cfg, due: wakeup.New(), pods: make(map[pod.Key]*entry), changed: make(map[pod.Key]bool), refused: make(map[service.Refusal]bool),
	}
	for _, k := range cfg.Recorded {
		p := service.PodOf(k.Pod, k.Status, false)
		b.pods[p.Key()], b.changed[p.Key()] = &entry{uid: string(k.Pod.UID), pod: &p}, true
	}
	var err error
	if b.stored, err = cfg.Store.Load(); err != nil {
		cfg.Log.Warn("Failed to read the addresses of Services; most Services get the same addresses again", "error", err)
	}
	b.decision.Allocations = b.stored
	b.inFilter = len(b.stored) > 0
	b.open = b.inFilter
	return b
}

// Set replaces the Services by those that win the merge. want returns the desired pod of a key, or nil.
// Pods that are not desired count as terminating if every source has answered.
func (b *Balancer) Set(services []*pod.Object, want func(pod.Key) *pod.Spec, answers Answers) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := answers != b.answers || !slices.Equal(services, b.services)
	b.services, b.answers, b.want = services, answers, want
	for key, e := range b.pods {
		if b.left(key, e.uid) && !e.pod.Terminating {
			p := *e.pod
			p.Terminating, p.Ready = true, p.Ready && e.reported // the pod of the previous agent may not run any more
			e.pod, changed, b.changed[key] = &p, true, true
		}
	}
	if changed {
		b.dirty = true
		b.due.Send()
	}
}

// left reports whether the newest desired set lacks the pod. The caller holds the mutex.
func (b *Balancer) left(key pod.Key, uid string) bool {
	if b.answers != Complete {
		return false
	}
	s := b.want(key)
	return s == nil || s.UID() != uid
}

// Report implements engine.Sink. It neither waits nor fails. A report may be older than the newest
// desired set. It does not make a pod an endpoint again that this set lacks.
func (b *Balancer) Report(r pod.StatusReport) error {
	key, uid := pod.KeyOf(r.Pod), string(r.Pod.UID)
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.pods[key]
	if r.Gone {
		if old == nil {
			return nil
		}
		delete(b.pods, key)
	} else {
		status := &r.Pod.Status
		if r.ObservedUID != "" && r.ObservedUID != uid {
			status = nil // the node still has the previous pod of the name
		}
		p := service.PodOf(r.Pod, status, r.NotDesired || b.left(key, uid))
		if old != nil && old.uid == uid && old.pod.Equal(p) {
			old.reported = true
			return nil
		}
		b.pods[key] = &entry{uid, &p, true}
	}
	b.changed[key], b.dirty = true, true
	b.due.Send()
	return nil
}

// updateList brings the list of pods up to date. Decisions have the earlier one, so it makes another
// one. The caller holds the mutex.
func (b *Balancer) updateList() {
	if len(b.changed) == 0 {
		return
	}
	rest, list := b.list, make([]*service.Pod, 0, len(b.pods))
	for _, key := range slices.SortedFunc(maps.Keys(b.changed), pod.Key.Compare) {
		at, found := slices.BinarySearchFunc(rest, key, func(p *service.Pod, key pod.Key) int { return p.Key().Compare(key) })
		list, rest = append(list, rest[:at]...), rest[at:]
		if found {
			rest = rest[1:]
		}
		if e := b.pods[key]; e != nil {
			list = append(list, e.pod)
		}
	}
	list = append(list, rest...)
	b.list = list
	clear(b.changed)
}

// decide updates the decision. The caller holds the mutex.
func (b *Balancer) decide() {
	if !b.dirty {
		return
	}
	b.updateList()
	before := b.decision
	b.decision = service.Decide(service.Input{
		Services: b.services, Pods: b.list, Nodes: b.cfg.Nodes, Local: b.cfg.Local, Listeners: b.cfg.Listeners,
		CIDRs: b.cfg.CIDRs, Reserved: b.cfg.Reserved, NodePorts: b.cfg.NodePorts,
		Earlier: before.Allocations, Before: &before, Partial: b.answers != Complete, Now: time.Now().UTC().Truncate(time.Second),
	})
	b.dirty = false
}

// Services returns the Services of a namespace as an API server would return them.
func (b *Balancer) Services(namespace string) ([]*v1.Service, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decide()
	var out []*v1.Service
	for i := range b.decision.Services {
		if s := b.decision.Services[i].Service; s.Namespace == namespace {
			out = append(out, s)
		}
	}
	return out, nil
}

// Object returns the Service of a key as its source has it, or nil.
func (b *Balancer) Object(key pod.Key) *pod.Object {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.services {
		if o.Key == key {
			return o
		}
	}
	return nil
}

// State returns the newest decision. Callers must not change it.
func (b *Balancer) State() service.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decide()
	return b.decision
}
