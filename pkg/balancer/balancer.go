// Package balancer keeps the Services of a node without a cluster. After each change of a Service or
// a pod it asks package service which addresses, ports and endpoints Services have now. It stores the
// allocations, and gives the rules to the packet filter.
//
// A Balancer is a listener of the engine: Set, Report and Services take a lock for a moment, and never
// wait for a disk or the kernel. Run does that.
//
// The one rule: the rules of the previous agent stay until every source has answered, or uses its
// last good set.
package balancer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/service/nft"
)

// Filter is the packet filter of the node.
type Filter interface {
	// Links returns the networks of endpoints whose hosts reach each other past the packet filter.
	Links(backends []netip.Addr) ([]netip.Prefix, error)
	// Prepare opens the devices by which the node reaches endpoints for its loopback addresses, and
	// Restore closes them again.
	Prepare(backends []netip.Addr) error
	Restore() error
	// Route makes a route to a range of cluster IPs, or removes it.
	Route(cidr netip.Prefix, on bool) error
	// Apply changes the rules to those of d. After Forget, the next Apply replaces all of them.
	Apply(d nft.Desired) (messages int, err error)
	Forget()
	// Remove removes the rules.
	Remove() error
	// Guard protects the loopback addresses of the node.
	Guard() error
	// Proxy names the table or chain of a kube-proxy in the packet filter, "" for none.
	Proxy() (string, error)
	// Watch calls changed after others have changed the rules, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// Close ends all that. The rules stay.
	Close()
}

// Store keeps the allocations of Services.
type Store interface {
	Load() (service.Allocations, error)
	Save(service.Allocations) error
}

// Kept is a pod of the previous agent, with its last status.
type Kept struct {
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
	Kept      []Kept
	Store     Store
	Filter    Filter
	// Refused is called for each new problem of a Service.
	Refused func(o *pod.Object, p pod.Problem)
	// Trouble is called when the packet filter cannot serve, and Restored after others have changed
	// its rules, each once for the same cause.
	Trouble func(reason, message string)
	// Views is called with the Services after each decision that changed any; nil: nothing is.
	// complete says that no others may be missing.
	Views func(all []*service.View, complete bool)
	Log   *slog.Logger
}

// Reasons of Config.Trouble.
const (
	ReasonNoFilter = "ServicesNotServed"
	ReasonProxy    = "KubeProxyRuns"
	ReasonRestored = "ServiceRulesRestored"
)

// Answers says how much is known of the Services of a node.
type Answers int

// The values of Answers.
const (
	Waiting  Answers = iota // a source has not answered
	Partial                 // a source has failed, and has no last good set
	Complete                // every source has answered, or uses its last good set
)

// Balancer keeps the Services of a node.
type Balancer struct {
	cfg Config
	due chan struct{} // capacity 1: a change, for Run

	mu       sync.Mutex
	services []*pod.Object
	answers  Answers
	pods     map[pod.Key]*entry
	list     []service.Pod // of pods; nil: to be made again
	dirty    bool          // decision is older than services and pods
	decision service.Decision
	foreign  bool // others have changed the rules

	// Only Run uses these.
	stored   service.Allocations
	refused  map[service.Refusal]bool
	views    []*service.View
	whole    bool // views were complete
	guarded  bool // the guard of loopback addresses was there, and nothing has changed it since
	open     bool // devices may be prepared
	inFilter bool // the packet filter may have rules of ours
	routed   bool
	trouble  string // the last one that was reported
	// unprepared is the last error of Filter.Links, which was logged.
	unprepared string
	unguarded  string // of Filter.Guard
	lingering  string // of Filter.Apply, about UDP connections
	failures   int    // in a row
	restored   time.Time
	reported   time.Time // the last report about changes by others
}

// entry is one pod.
type entry struct {
	uid      string
	pod      service.Pod
	reported bool // by this engine
}

// New returns a Balancer, and reads the allocations.
func New(cfg Config) *Balancer {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Balancer{cfg: cfg, due: make(chan struct{}, 1), pods: make(map[pod.Key]*entry), refused: make(map[service.Refusal]bool)}
	for _, k := range cfg.Kept {
		b.pods[pod.KeyOf(k.Pod)] = &entry{uid: string(k.Pod.UID), pod: service.PodOf(k.Pod, k.Status, false)}
	}
	var err error
	if b.stored, err = cfg.Store.Load(); err != nil {
		cfg.Log.Warn("Failed to read the addresses of Services; most Services get the same ones again", "error", err)
	}
	b.decision.Allocations = b.stored
	b.inFilter = len(b.stored) > 0
	b.open = b.inFilter
	return b
}

func (b *Balancer) wake() {
	select {
	case b.due <- struct{}{}:
	default:
	}
}

// Set takes the Services that win the merge. want returns the desired pod of a key, nil for none: the
// other pods terminate, if every source has answered.
func (b *Balancer) Set(services []*pod.Object, want func(pod.Key) *pod.Spec, answers Answers) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := answers != b.answers || !slices.Equal(services, b.services)
	b.services, b.answers = services, answers
	for key, e := range b.pods {
		s := want(key)
		gone := s == nil || s.UID() != e.uid
		if answers == Complete && gone && !e.pod.Terminating {
			e.pod.Terminating, changed, b.list = true, true, nil
			e.pod.Ready = e.pod.Ready && e.reported // nothing may be left of a pod of the previous agent
		}
	}
	if changed {
		b.dirty = true
		b.wake()
	}
}

// Report implements engine.Sink. It neither waits nor fails.
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
		if r.Here != "" && r.Here != uid {
			status = nil // the node still has the pod before
		}
		next := &entry{uid, service.PodOf(r.Pod, status, r.Unwanted), true}
		if old != nil && old.uid == uid && old.pod.Equal(next.pod) {
			old.reported = true
			return nil
		}
		b.pods[key] = next
	}
	b.list, b.dirty = nil, true
	b.wake()
	return nil
}

// decide brings the decision up to date. The caller holds the mutex.
func (b *Balancer) decide() {
	if !b.dirty {
		return
	}
	if b.list == nil {
		b.list = make([]service.Pod, 0, len(b.pods))
		for _, key := range slices.SortedFunc(maps.Keys(b.pods), pod.Key.Compare) {
			b.list = append(b.list, b.pods[key].pod)
		}
	}
	before := b.decision
	b.decision = service.Decide(service.Input{
		Services: b.services, Pods: b.list, Nodes: b.cfg.Nodes, Local: b.cfg.Local, Listeners: b.cfg.Listeners,
		CIDRs: b.cfg.CIDRs, Reserved: b.cfg.Reserved, NodePorts: b.cfg.NodePorts,
		Earlier: before.Allocations, Before: &before, Partial: b.answers != Complete, Now: time.Now().UTC().Truncate(time.Second),
	})
	b.dirty = false
}

// Services returns the Services of a namespace as an API server would show them.
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

// Object returns the Service of a key as its source has it, nil for none.
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

// State returns the newest decision. It is shared: nothing in it may be changed.
func (b *Balancer) State() service.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decide()
	return b.decision
}

// Run keeps the packet filter as Services want it, until ctx ends. The rules stay.
func (b *Balancer) Run(ctx context.Context) {
	defer b.cfg.Filter.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { b.watch(ctx) })
	_ = b.guard() // it logs its failure
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.due:
		case <-again.C:
		}
		if wait := b.step(); wait > 0 {
			again.Reset(wait)
		}
	}
}

// watch notes changes of the rules by others.
func (b *Balancer) watch(ctx context.Context) {
	err := b.cfg.Filter.Watch(ctx, func() {
		b.mu.Lock()
		b.foreign = true
		b.mu.Unlock()
		b.wake()
	})
	if err != nil && ctx.Err() == nil {
		b.cfg.Log.Info("Changes of the rules of Services by other programs are not noticed", "error", err)
	}
}

// The waits of Run.
const (
	firstRetry   = time.Second
	lastRetry    = time.Minute
	restoreEvery = 5 * time.Second // at most, if another program keeps on changing the rules
	reportEvery  = 10 * time.Minute
)

// step brings the store and the packet filter up to date. It returns when to try again, 0 for not
// before a change.
func (b *Balancer) step() time.Duration {
	b.mu.Lock()
	if b.answers == Waiting {
		foreign := b.foreign // the rules wait, but the guard does not
		b.mu.Unlock()
		if foreign {
			b.guarded = false
			_ = b.guard() // it logs its failure
		}
		return 0
	}
	b.decide()
	d, foreign, complete := b.decision, b.foreign, b.answers == Complete
	b.mu.Unlock()
	b.report(d, complete)
	wait, err := b.apply(d, foreign, complete)
	if err != nil {
		b.failures++
		b.fail(err)
		return backoff.After(b.failures, firstRetry, lastRetry)
	}
	b.failures = 0
	return wait
}

// report tells about new problems, and shows the Views.
func (b *Balancer) report(d service.Decision, complete bool) {
	refused := make(map[service.Refusal]bool, len(d.Refused))
	objects := make(map[pod.Key]*pod.Object)
	b.mu.Lock()
	for _, o := range b.services {
		objects[o.Key] = o
	}
	b.mu.Unlock()
	for _, r := range d.Refused {
		refused[r] = true
		if o := objects[r.Key]; !b.refused[r] && o != nil && b.cfg.Refused != nil {
			b.cfg.Refused(o, r.Problem)
		}
	}
	b.refused = refused
	views := make([]*service.View, len(d.Services))
	for i := range d.Services {
		views[i] = d.Services[i].View
	}
	if !slices.Equal(views, b.views) || b.views == nil || complete != b.whole {
		b.views, b.whole = views, complete
		if b.cfg.Views != nil {
			b.cfg.Views(views, complete)
		}
	}
}

// fail reports an error of the packet filter or the store, once in a row.
func (b *Balancer) fail(err error) {
	var proxy *proxyError
	reason := ReasonNoFilter
	if errors.As(err, &proxy) {
		reason = ReasonProxy
	}
	if b.trouble == err.Error() {
		return
	}
	b.trouble = err.Error()
	b.cfg.Log.Error("Failed to serve Services; pods keep running", "error", err)
	if b.cfg.Trouble != nil {
		b.cfg.Trouble(reason, err.Error())
	}
}

// proxyError says that a kube-proxy runs on the node.
type proxyError struct{ found string }

func (e *proxyError) Error() string {
	return "a kube-proxy serves this node (" + e.found + "): two proxies must not serve one node; stop it and remove its rules (kube-proxy --cleanup)"
}

// apply stores the allocations, and then makes the rules: an address that a client may know survives
// the agent. If Services may be missing, it removes nothing for lack of Services.
func (b *Balancer) apply(d service.Decision, foreign, complete bool) (wait time.Duration, err error) {
	if !d.Allocations.Equal(b.stored) {
		if err := b.cfg.Store.Save(d.Allocations); err != nil {
			return 0, err
		}
		b.stored = d.Allocations
	}
	if foreign {
		if wait := restoreEvery - time.Since(b.restored); !b.restored.IsZero() && wait > 0 {
			return wait, nil
		}
		b.mu.Lock()
		b.foreign = false
		b.mu.Unlock()
		b.cfg.Filter.Forget()
		b.guarded = false
		defer func() {
			if err == nil && b.guarded {
				b.noteRestored()
			}
		}()
	}
	if len(d.Services) == 0 {
		if b.guard() != nil { // it logs its failure, and no Service suffers
			wait = lastRetry
		}
		if complete {
			err = b.remove()
		}
		return wait, err
	}
	if foreign || b.trouble != "" || !b.inFilter || !b.routed {
		if found, err := b.cfg.Filter.Proxy(); err != nil {
			return 0, err
		} else if found != "" {
			return 0, errors.Join(&proxyError{found}, b.remove())
		}
	}
	if wait, err = b.rules(d); err != nil {
		return 0, err
	}
	if b.trouble != "" {
		b.trouble = ""
		b.cfg.Log.Info("Services are served again")
	}
	return wait, nil
}

// guard protects the loopback addresses, unless they are. Without the guard, no device may stay open.
func (b *Balancer) guard() error {
	if b.guarded {
		return nil
	}
	err := b.cfg.Filter.Guard()
	b.guarded = err == nil
	if err == nil {
		b.unguarded = ""
		return nil
	}
	if err.Error() != b.unguarded {
		b.unguarded = err.Error()
		b.cfg.Log.Warn("Loopback addresses are not protected from pods", "error", err)
	}
	if b.open {
		if closed := b.cfg.Filter.Restore(); closed != nil {
			return errors.Join(err, closed)
		}
		b.open = false
	}
	return err
}

// remove removes the rules and the routes.
func (b *Balancer) remove() error {
	if !b.inFilter {
		return nil
	}
	err := errors.Join(b.cfg.Filter.Restore(), b.cfg.Filter.Remove())
	for _, p := range b.cfg.CIDRs {
		err = errors.Join(err, b.cfg.Filter.Route(p, false))
	}
	if err == nil {
		b.inFilter, b.routed, b.open = false, false, false
	}
	return err
}

// rules makes the rules of all Services. It returns when to try the optional parts again, 0: never.
func (b *Balancer) rules(d service.Decision) (again time.Duration, err error) {
	desired := nft.Desired{CIDRs: b.cfg.CIDRs}
	var backends []netip.Addr
	for i := range d.Services {
		desired.Rules = append(desired.Rules, d.Services[i].Rules...)
		for j := range d.Services[i].Rules {
			for _, at := range d.Services[i].Rules[j].Backends {
				backends = append(backends, at.Addr())
			}
		}
	}
	slices.SortFunc(backends, netip.Addr.Compare)
	backends = slices.Compact(backends)
	b.inFilter = true
	for _, p := range b.cfg.CIDRs {
		if b.routed {
			break
		}
		if err := b.cfg.Filter.Route(p, true); err != nil {
			return 0, err
		}
	}
	b.routed = true
	if b.guard() != nil { // it logs its failure
		again = lastRetry
	}
	if desired.Links, err = b.devices(backends); err != nil && err.Error() != b.unprepared {
		b.unprepared = err.Error()
		b.cfg.Log.Warn("Failed to prepare the devices of pods for Services", "error", err)
	}
	n, err := b.cfg.Filter.Apply(desired)
	if n > 0 {
		b.cfg.Log.Debug("Changed the rules of Services", "services", len(d.Services), "messages", n)
	}
	if !errors.Is(err, nft.ErrDatagrams) {
		return again, err
	}
	if err.Error() != b.lingering {
		b.lingering = err.Error()
		b.cfg.Log.Warn("Some UDP clients may still use endpoints that have left", "error", err)
	}
	return lastRetry, nil
}

// devices prepares the devices of endpoints, only under the guard, and returns their Links.
func (b *Balancer) devices(backends []netip.Addr) ([]netip.Prefix, error) {
	links, err := b.cfg.Filter.Links(backends)
	if b.guarded {
		b.open = true
		err = errors.Join(err, b.cfg.Filter.Prepare(backends))
	}
	return links, err
}

// noteRestored reports that others had changed the rules.
func (b *Balancer) noteRestored() {
	b.restored = time.Now()
	if !b.reported.IsZero() && time.Since(b.reported) < reportEvery {
		return
	}
	b.reported = time.Now()
	b.cfg.Log.Warn("Restored rules of the packet filter, which another program had changed")
	if b.cfg.Trouble != nil {
		b.cfg.Trouble(ReasonRestored, "Restored rules of the packet filter, which another program had changed")
	}
}

// Protect keeps the guard of the loopback addresses where nothing serves Services, until ctx ends. The
// guard stays.
func Protect(ctx context.Context, f Filter, log *slog.Logger) {
	b := &Balancer{cfg: Config{Filter: f, Log: log}, due: make(chan struct{}, 1)}
	defer f.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { b.watch(ctx) })
	b.wake()
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.due:
		case <-again.C:
		}
		b.guarded = false
		if b.guard() != nil {
			b.failures++
			again.Reset(backoff.After(b.failures, firstRetry, lastRetry))
			continue
		}
		b.failures = 0
	}
}
