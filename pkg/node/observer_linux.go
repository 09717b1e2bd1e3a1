package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// Runtime is the part of a container runtime that an Observer uses; cri.Runtime is one.
type Runtime interface {
	Facts(ctx context.Context) (pod.RuntimeFacts, error) // without name and version
	Version(ctx context.Context) (name, version string, err error)
	Images(ctx context.Context) ([]pod.Image, error)
}

// ObserverConfig configures an Observer.
type ObserverConfig struct {
	Settings
	NodeIPs  []string // of --node-ip
	HostIPs  []string // the result of the function HostIPs; nil: the Observer calls it, which may query DNS
	NoLookup bool     // the node's name is in no cluster's DNS: no name server is asked for it
	Facts    Facts
	// Under returns the pressures that the node is under, in the order of their names; nil is
	// none. It must not block.
	Under func() []v1.NodeConditionType
	// Devices returns the extended resources of device plugins, and the healthy devices of them;
	// nil is none. It must not block.
	Devices func(now time.Time) (capacity, allocatable v1.ResourceList)
	// Drivers are the CSI drivers of the node; nil is none. They must not block.
	Drivers Drivers
	Runtime Runtime
	// Health returns a further reason why pods cannot run ("PLEG is not healthy: …"); it may be
	// nil. It must not block.
	Health func() error
	// ShuttingDown reports that the machine is about to stop (C-1.25.9); nil is never.
	ShuttingDown func() bool
	Log          *slog.Logger
}

const (
	askEvery    = 10 * time.Second       // how the runtime is
	askSoon     = 100 * time.Millisecond // while it is not well yet (C-1.25.5)
	askSoonFor  = 2 * time.Minute
	askTimeout  = 10 * time.Second
	imagesEvery = 30 * time.Second
	freshness   = 30 * time.Second // a runtime that did not answer for longer is down
)

// Observer measures the state of this node. Inputs and Node never wait for the runtime;
// Run and Ask do.
type Observer struct {
	cfg     ObserverConfig
	changed wakeup.Signal // readiness may be another

	mu              sync.Mutex
	runtime         pod.RuntimeFacts
	answered        time.Time // when the runtime last reported that it is ready
	runtimeAnswered bool      // it has answered at least once
	images          []pod.Image
	listed          time.Time // images
	ips             []string
	current         *v1.Node // as Node built it last
	logged          map[string]string
}

// NewObserver returns an Observer that knows nothing of the runtime yet.
func NewObserver(cfg ObserverConfig) *Observer {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Observer{cfg: cfg, changed: wakeup.New(), ips: cfg.HostIPs, logged: map[string]string{}}
}

// Name returns the node's.
func (o *Observer) Name() string { return o.cfg.Name }

// Changed is readable when the runtime became ready, or ceased to be.
func (o *Observer) Changed() <-chan struct{} { return o.changed }

// Recheck has Changed report that the node may have become ready, or not ready, for a reason
// that the Observer gets from others.
func (o *Observer) Recheck() {
	o.changed.Send()
}

// Run polls the runtime every few seconds until ctx ends; after a start, in quick
// succession until it was ready once (C-1.25.5).
func (o *Observer) Run(ctx context.Context) {
	start, soon := time.Now(), true
	for ctx.Err() == nil {
		if o.PollRuntime(ctx) || time.Since(start) > askSoonFor {
			soon = false
		}
		wait := askEvery
		if soon {
			wait = askSoon
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// PollRuntime polls the runtime once, and reports whether it is ready. It waits for the runtime
// up to askTimeout.
func (o *Observer) PollRuntime(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := o.cfg.Runtime.Facts(ctx)
	if err == nil {
		r.Name, r.Version, err = o.version(ctx)
	}
	o.note("runtime", err)
	now := time.Now()
	if err != nil {
		o.mu.Lock()
		o.runtime.Version = "" // the next answer may come from another runtime
		o.mu.Unlock()
		return false
	}
	o.mu.Lock()
	was := o.readyLocked()
	o.runtime, o.runtimeAnswered = r, true
	if r.Runtime.OK {
		o.answered = now
	}
	ready := o.readyLocked()
	list := r.Runtime.OK && (o.listed.IsZero() || now.Sub(o.listed) >= imagesEvery)
	o.mu.Unlock()
	if ready != was {
		o.Recheck()
	}
	if list {
		o.list(ctx)
	}
	return ready
}

// version is asked for once of every runtime that answers.
func (o *Observer) version(ctx context.Context) (name, version string, err error) {
	o.mu.Lock()
	name, version = o.runtime.Name, o.runtime.Version
	o.mu.Unlock()
	if version != "" {
		return name, version, nil
	}
	return o.cfg.Runtime.Version(ctx)
}

func (o *Observer) readyLocked() bool {
	return o.runtimeAnswered && o.runtime.Runtime.OK && o.runtime.Network.OK
}

// list reads the images from the runtime.
func (o *Observer) list(ctx context.Context) {
	images, err := o.cfg.Runtime.Images(ctx)
	o.note("images", err)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listed = time.Now()
	if err == nil {
		o.images = images
	}
}

// Inputs returns the addresses and pressures of this machine now, and the last facts of the
// runtime.
func (o *Observer) Inputs(ctx context.Context, now time.Time) Inputs {
	ips := o.addresses(ctx)
	problems := o.outer()
	var under []v1.NodeConditionType
	if o.cfg.Under != nil {
		under = o.cfg.Under()
	}
	var devices, healthy v1.ResourceList
	if o.cfg.Devices != nil {
		devices, healthy = o.cfg.Devices(now)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return Inputs{
		Settings: o.cfg.Settings, Addresses: ips, Runtime: o.runtime, Images: o.images,
		Problems: o.problemsLocked(now, problems), Under: under,
		Devices: devices, HealthyDevices: healthy, Drivers: o.cfg.Drivers,
	}
}

// Addresses returns the node's addresses as its object has them, measuring nothing
// else: those of a cloud controller, where there is one.
func (o *Observer) Addresses(ctx context.Context) []v1.NodeAddress {
	o.mu.Lock()
	current := o.current
	o.mu.Unlock()
	if o.cfg.ExternalCloud && current != nil && len(current.Status.Addresses) > 0 {
		return slices.Clone(current.Status.Addresses)
	}
	return addresses(Inputs{Settings: o.cfg.Settings, Addresses: o.addresses(ctx)})
}

// addresses finds the addresses once, and again when the machine no longer has them: it
// does not query DNS in every round. It returns none while it finds none.
func (o *Observer) addresses(ctx context.Context) []string {
	o.mu.Lock()
	ips := o.ips
	o.mu.Unlock()
	if len(ips) > 0 && allOwn(ips) {
		return ips
	}
	name := o.cfg.Name
	if o.cfg.NoLookup {
		name = ""
	}
	ips, err := HostIPs(ctx, name, o.cfg.NodeIPs)
	o.note("addresses", err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(ips) > 0 {
		o.ips = ips
	}
	return o.ips
}

// outer returns the problems that other parts report: of pods, and of the shutdown.
func (o *Observer) outer() (problems [2]error) {
	if o.cfg.Health != nil {
		problems[0] = o.cfg.Health()
	}
	if o.cfg.ShuttingDown != nil && o.cfg.ShuttingDown() {
		problems[1] = errors.New("node is shutting down")
	}
	return problems
}

// problemsLocked are why the node is not ready, in the kubelet's order and words.
func (o *Observer) problemsLocked(now time.Time, outer [2]error) []error {
	var all []error
	switch {
	case o.answered.IsZero():
		all = append(all, errors.New("container runtime status check may not have completed yet"))
	case now.Sub(o.answered) >= freshness:
		all = append(all, errors.New("container runtime is down"))
	}
	if outer[0] != nil {
		all = append(all, outer[0])
	}
	switch {
	case !o.runtimeAnswered:
		all = append(all, errors.New("network state unknown"))
	default:
		if !o.runtime.Runtime.OK {
			all = append(all, fmt.Errorf("container runtime not ready: %s", condition("RuntimeReady", o.runtime.Runtime)))
		}
		if !o.runtime.Network.OK {
			all = append(all, fmt.Errorf("container runtime network not ready: %s", condition("NetworkReady", o.runtime.Network)))
		}
	}
	if outer[1] != nil {
		all = append(all, outer[1])
	}
	return all
}

// condition writes a runtime's condition as the kubelet does.
func condition(name string, c pod.RuntimeCondition) string {
	if !c.Known {
		return "condition not set"
	}
	return fmt.Sprintf("%s=%t reason:%s message:%s", name, c.OK, c.Reason, c.Message)
}

// Node returns the Node as it is now, with other writers' fields of before; nil uses
// the Node that it returned last. It does not wait for the runtime.
func (o *Observer) Node(ctx context.Context, before *v1.Node) *v1.Node {
	now := time.Now()
	in := o.Inputs(ctx, now)
	o.mu.Lock()
	defer o.mu.Unlock()
	if before == nil {
		before = o.current
	}
	fresh := before == nil
	o.current = Object(o.cfg.Facts, in, before, now)
	if fresh {
		o.current.CreationTimestamp = metav1.NewTime(now)
	}
	return o.current.DeepCopy()
}

// PollNode is Node after PollRuntime, for an Observer whose Run is not used. Like PollRuntime, it
// waits for the runtime.
func (o *Observer) PollNode(ctx context.Context) *v1.Node {
	o.PollRuntime(ctx)
	return o.Node(ctx, nil)
}

// NewNode returns the Node as it is registered, whatever was there before.
func (o *Observer) NewNode(ctx context.Context) *v1.Node {
	now := time.Now()
	return Object(o.cfg.Facts, o.Inputs(ctx, now), nil, now)
}

// AdoptedNode is Node for an object that existed before this agent.
func (o *Observer) AdoptedNode(ctx context.Context, before *v1.Node) *v1.Node {
	n := o.Node(ctx, before)
	Adopt(Inputs{Settings: o.cfg.Settings}, n)
	return n
}

// note logs a failure once, until it changes.
func (o *Observer) note(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	o.mu.Lock()
	was := o.logged[what]
	o.logged[what] = text
	o.mu.Unlock()
	if text != "" && text != was {
		o.cfg.Log.Warn("Failed to read facts of the node", "what", what, "error", err)
	}
}
