package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// stopGrace is how long the Node status shows the devices of a disconnected plugin, as in the
// kubelet.
const stopGrace = 5 * time.Minute

// usualPace is the pace of Changed for one resource: admission and waiting pods follow a change at once,
// unless its plugin does not stop.
var usualPace = backoff.Pace{First: 200 * time.Millisecond, Last: 10 * time.Second, Calm: time.Minute}

// Config configures Plugins.
type Config struct {
	// Dir holds the kubelet's directories device-plugins and plugins_registry.
	Dir string
	Log *slog.Logger
	// Label sets the SELinux label of a directory so that containers may use it; nil: the node has
	// no SELinux.
	Label func(dir string) error
	// Handlers register the plugins of other types in the registry, by type.
	Handlers map[string]Handler
	// Sockets are those of the machine if it is nil.
	Sockets Sockets
	// Registered and Allocated are callbacks for metrics; they may be nil.
	Registered func(resource string)
	Allocated  func(resource string, took time.Duration)
}

// Handler registers the plugins of one type in the registry.
type Handler interface {
	// Check returns an error for a plugin that no retry can make usable.
	Check(name, endpoint string, versions []string) error
	// Register connects to a plugin, which supports these versions. It is called again after an
	// error.
	Register(ctx context.Context, name, endpoint string, versions []string) error
	// Unregister is called when the socket of a registered plugin is gone.
	Unregister(name, endpoint string)
}

// Plugins are the device plugins of this node, and the devices that containers have.
type Plugins struct {
	cfg     Config
	changed wakeup.Signal // Changed
	running sync.WaitGroup

	mu        sync.Mutex
	ctx       context.Context // of Run; plugins are watched until it ends
	resources map[string]*resource
	claims    claims
	whole     bool // the claims of all pods are known
	reserved  []pod.DeviceReservation
	// advertised are the extended resources of other writers on the Node.
	advertised v1.ResourceList
}

// resource is the state of one extended resource.
type resource struct {
	// choosing has capacity 1: one container gets devices at a time, and the others wait. A plugin
	// that hangs delays only containers that request its resource.
	choosing chan struct{}
	plugin   *plugin // nil: none is connected
	stop     context.CancelFunc
	pace     backoff.Pace // of signals of Changed that the plugin causes
	stopped  time.Time    // when the last plugin disconnected; zero: there was none
	devices  map[string]Device
}

// New returns Plugins without a plugin.
func New(cfg Config) *Plugins {
	if cfg.Sockets == nil {
		cfg.Sockets = kernel{}
	}
	return &Plugins{cfg: cfg, changed: wakeup.New(), resources: make(map[string]*resource), claims: make(claims)}
}

// Changed receives a value after the results of Supply or Healthy have changed.
func (p *Plugins) Changed() <-chan struct{} { return p.changed }

// changedLocked signals Changed for a change that the plugin of a resource causes. A plugin that changes its
// devices or registers all the time does so with a back-off. The caller holds p.mu.
func (p *Plugins) changedLocked(r *resource) {
	switch at, pending := r.pace.Next(time.Now()); {
	case pending:
	case time.Until(at) <= 0:
		p.changed.Send()
	default:
		time.AfterFunc(time.Until(at), p.changed.Send)
	}
}

// of returns a resource, which it adds if there is none. The caller holds p.mu.
func (p *Plugins) of(name string) *resource {
	r := p.resources[name]
	if r == nil {
		r = &resource{choosing: make(chan struct{}, 1), pace: usualPace}
		p.resources[name] = r
	}
	return r
}

// register connects to the plugin of a resource and watches its devices until it disconnects. The
// newest plugin of a resource replaces the previous one.
func (p *Plugins) register(ctx context.Context, name, socket string) error {
	p.mu.Lock()
	_, known := p.resources[name]
	full := !known && len(p.resources) >= maxResources
	p.mu.Unlock()
	if full {
		return fmt.Errorf("plugins of %d resources are registered: no more are accepted", maxResources)
	}
	next, err := connect(ctx, p.cfg.Sockets, socket)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.ctx.Err() != nil {
		_ = next.conn.Close()
		return errors.New("the agent is exiting")
	}
	r := p.of(name)
	if r.plugin != nil {
		if r.plugin.socket != socket {
			p.cfg.Log.Warn("Another device plugin replaces the one of a resource", "resource", name, "socket", socket, "replaced", r.plugin.socket)
		}
		r.stop()
	}
	watching, stop := context.WithCancel(p.ctx)
	r.plugin, r.stop = next, stop
	p.cfg.Log.Info("Device plugin registered", "resource", name, "socket", socket)
	if p.cfg.Registered != nil {
		p.cfg.Registered(name)
	}
	p.running.Go(func() { p.watch(watching, name, next) })
	return nil
}

// watch keeps the devices of a plugin until it disconnects.
func (p *Plugins) watch(ctx context.Context, name string, of *plugin) {
	err := of.watch(ctx, func(devices map[string]Device) {
		p.mu.Lock()
		defer p.mu.Unlock()
		r := p.of(name)
		if r.plugin != of {
			return
		}
		same := maps.EqualFunc(r.devices, devices, func(a, b Device) bool { return a.Healthy == b.Healthy })
		if r.devices = devices; !same {
			p.changedLocked(r)
		}
	})
	_ = of.conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.of(name)
	if r.plugin != of {
		return // another one has replaced it
	}
	r.stop()
	r.plugin, r.stopped = nil, time.Now()
	for id, d := range r.devices {
		d.Healthy = false
		r.devices[id] = d
	}
	if !ended(ctx, err) {
		p.cfg.Log.Warn("Device plugin disconnected", "resource", name, "error", err)
	}
	p.changedLocked(r)
}

// unregister disconnects the plugin of a socket.
func (p *Plugins) unregister(socket string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.resources {
		if r.plugin != nil && r.plugin.socket == socket {
			r.stop()
		}
	}
}

// Adopt adds pods of this node whose containers have devices already. whole says that the list of
// pods is complete. Before that, a container gets no devices but those that it had.
func (p *Plugins) Adopt(holders []pod.DeviceHolder, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range holders {
		p.claims.adopt(h)
		for _, list := range h.Containers {
			for _, a := range list {
				p.of(a.Resource) // the node shows it as served before
			}
		}
	}
	if whole && !p.whole {
		p.whole = true
		p.changed.Send()
	}
}

// Keep frees the devices of a pod's containers except these. Without a container to keep, it frees
// all devices of the pod.
func (p *Plugins) Keep(uid string, containers map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claims.keep(uid, containers) {
		p.changed.Send()
	}
}

// Allocate returns the devices of a container that the caller is about to create: its earlier
// devices, or else new ones. Until Keep frees them, no other container gets them, with one
// exception: later containers of the pod may get the devices of an init container. An error is a
// *pod.StartError.
func (p *Plugins) Allocate(ctx context.Context, q pod.DeviceRequest) ([]pod.DeviceAllocation, error) {
	c, _ := q.Want.Container(q.Container)
	if c == nil {
		return nil, nil
	}
	requests := pod.DeviceRequests(q.Want.Pod, c)
	p.dropOthers(q, requests)
	var all []pod.DeviceAllocation
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		if p.hasNoDevices(q, name) {
			continue
		}
		a, err := p.allocate(ctx, q, name, requests[name])
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// hasNoDevices reports whether a resource is one that the Node advertises, and no plugin serves. If the
// Node does not advertise it any more, a container that replaces one without devices of it gets none
// either: with a plugin, that one would not have started.
func (p *Plugins) hasNoDevices(q pod.DeviceRequest, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resources[name] != nil {
		return false
	}
	if _, is := p.advertised[v1.ResourceName(name)]; is {
		return true
	}
	return q.Replaces && !slices.ContainsFunc(q.Have[q.Container], func(a pod.DeviceAllocation) bool { return a.Resource == name })
}

// Advertise sets the extended resources of the Node object, as the API server shows it; those that
// plugins serve are left out.
func (p *Plugins) Advertise(node v1.ResourceList) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := make(v1.ResourceList)
	for name, q := range node {
		if pod.ExtendedResource(name) && q.Sign() > 0 && len(now) < maxResources {
			now[name] = q
		}
	}
	if !maps.EqualFunc(p.advertised, now, func(a, b apiresource.Quantity) bool { return a.Cmp(b) == 0 }) {
		p.advertised = now
		p.changed.Send()
	}
}

// dropOthers frees devices of resources that a container does not request any more.
func (p *Plugins) dropOthers(q pod.DeviceRequest, requests map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mine := p.adoptShown(q)
	before := len(mine.containers[q.Container])
	mine.drop(q.Container, func(resource string) bool { return requests[resource] == 0 })
	if len(mine.containers[q.Container]) < before {
		p.changed.Send()
	}
}

// adoptShown returns the claims of a pod. It first adds the unknown claims in the runtime's
// annotations: they exist if the pod had terminated, and starts again. It leaves out devices that
// other pods have by now. The caller holds p.mu.
func (p *Plugins) adoptShown(q pod.DeviceRequest) *podClaims {
	mine := p.claims.of(q.Want.UID(), q.Want.Key)
	for container, list := range q.Have {
		if _, known := mine.containers[container]; !known && !p.claims.taken(q.Want.UID(), list) {
			mine.containers[container] = list
		}
	}
	return mine
}

// allocate is Allocate for one resource.
func (p *Plugins) allocate(ctx context.Context, q pod.DeviceRequest, name string, number int) (pod.DeviceAllocation, error) {
	p.mu.Lock()
	r := p.resources[name]
	p.mu.Unlock()
	if r == nil {
		_, err := Choose(Ask{Resource: name, Number: number})
		return pod.DeviceAllocation{}, err
	}
	defer note(ctx, q.Container, name)()
	select {
	case r.choosing <- struct{}{}:
	case <-ctx.Done():
		return pod.DeviceAllocation{}, ctx.Err()
	}
	defer func() { <-r.choosing }()
	ask, held, from := p.ask(q, name, number)
	choice, err := Choose(ask)
	if err != nil {
		return pod.DeviceAllocation{}, err
	}
	if choice.Kept {
		if err := from.preStart(ctx, choice.Devices); err != nil {
			return pod.DeviceAllocation{}, unexpected(err)
		}
		p.claim(q, held)
		return held, nil
	}
	if choice.Missing > 0 {
		preferred, err := from.preferred(ctx, slices.Concat(choice.Devices, choice.Free), choice.Devices, number)
		if err != nil {
			return pod.DeviceAllocation{}, unexpected(err)
		}
		choice = choice.Complete(preferred)
	}
	began := time.Now()
	a, err := from.allocate(ctx, name, choice.Devices)
	if p.cfg.Allocated != nil {
		p.cfg.Allocated(name, time.Since(began))
	}
	if err == nil {
		p.claim(q, a) // before another container chooses
		err = from.preStart(ctx, choice.Devices)
	}
	if err != nil {
		return pod.DeviceAllocation{}, unexpected(err)
	}
	p.cfg.Log.Debug("Devices allocated", "pod", q.Want.Key.String(), "container", q.Container, "resource", name, "devices", choice.Devices, "reason", choice.Reason)
	return a, nil
}

// ask returns the input of Choose, the devices that the container had, and the plugin to ask.
func (p *Plugins) ask(q pod.DeviceRequest, name string, number int) (Ask, pod.DeviceAllocation, *plugin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, mine := p.of(name), p.claims.of(q.Want.UID(), q.Want.Key)
	held, _ := find(mine.containers[q.Container], name)
	if len(held.Devices) != number {
		mine.drop(q.Container, func(resource string) bool { return resource == name }) // an edit changed the number
	}
	ask := Ask{
		Resource: name, Number: number, Held: held.Devices, Reusable: mine.reusable(q.Want, q.Container, name),
		InUse: p.claims.inUse(name), Devices: maps.Clone(r.devices), Registered: r.plugin != nil,
		Reserved: reservedFor(p.reserved, q.Want.UID(), q.Container, name), Near: q.Near, Only: q.Only,
	}
	if !p.whole {
		ask.Unknown = "the devices of running containers are not known yet"
	}
	return ask, held, r.plugin
}

// claim records the devices of a container.
func (p *Plugins) claim(q pod.DeviceRequest, a pod.DeviceAllocation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims.of(q.Want.UID(), q.Want.Key).set(q.Container, a)
}

// Supply returns the supply of each resource, for admission.
func (p *Plugins) Supply() map[v1.ResourceName]pod.DeviceSupply {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[v1.ResourceName]pod.DeviceSupply, len(p.resources)+len(p.advertised))
	for name, q := range p.advertised {
		number := int(min(q.Value(), math.MaxInt32))
		all[name] = pod.DeviceSupply{Advertised: true, Registered: true, Healthy: number, Usable: number}
	}
	for name, r := range p.resources {
		s := pod.DeviceSupply{Registered: r.plugin != nil}
		used := p.claims.inUse(name)
		s.Usable = len(used)
		for id, d := range r.devices {
			if d.Healthy {
				s.Healthy++
				if !used[id] {
					s.Usable++
				}
			}
		}
		s.Layout = layout(r.devices, p.claims, name)
		all[v1.ResourceName(name)] = s
	}
	return all
}

// layout returns the devices of a resource by NUMA node; nil if no device has a node.
func layout(devices map[string]Device, of claims, name string) *pod.DeviceLayout {
	if !hasNodes(devices) {
		return nil
	}
	l := &pod.DeviceLayout{Devices: make(map[string]pod.DevicePlace, len(devices)), Users: make(map[string]map[string][]string)}
	for id, d := range devices {
		l.Devices[id] = pod.DevicePlace{Healthy: d.Healthy, NUMA: d.NUMA}
	}
	for uid, p := range of {
		users := make(map[string][]string)
		for container, list := range p.containers {
			if a, ok := find(list, name); ok {
				users[container] = a.Devices
			}
		}
		for _, a := range p.others {
			if a.Resource == name {
				users[""] = append(users[""], a.Devices...)
			}
		}
		if len(users) > 0 {
			l.Users[uid] = users
		}
	}
	return l
}

// Healthy reports whether a device is healthy. As in the kubelet, a device that no plugin lists
// counts as healthy.
func (p *Plugins) Healthy(name, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.resources[name]
	if r == nil {
		return true
	}
	d, listed := r.devices[id]
	return !listed || d.Healthy
}

// Capacity returns the numbers of all devices and of healthy devices, for each resource that a
// plugin serves or served. Both are 0 once the plugin has been disconnected for stopGrace.
func (p *Plugins) Capacity(now time.Time) (capacity, allocatable v1.ResourceList) {
	p.mu.Lock()
	defer p.mu.Unlock()
	capacity, allocatable = v1.ResourceList{}, v1.ResourceList{}
	for name, r := range p.resources {
		all, healthy := len(r.devices), 0
		for _, d := range r.devices {
			if d.Healthy {
				healthy++
			}
		}
		if r.plugin == nil && now.Sub(r.stopped) > stopGrace {
			all = 0
		}
		capacity[v1.ResourceName(name)] = *apiresource.NewQuantity(int64(all), apiresource.DecimalSI)
		allocatable[v1.ResourceName(name)] = *apiresource.NewQuantity(int64(healthy), apiresource.DecimalSI)
	}
	return capacity, allocatable
}
