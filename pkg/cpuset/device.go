package cpuset

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// layout has the devices of one resource by NUMA nodes. It does not change.
type layout struct {
	nodes   map[string]mask // of all listed devices, by ID, without nodes that the machine does not have
	located map[string]bool // the plugin names nodes of the device
	healthy map[string]bool
}

// user is a container and a resource.
type user struct{ uid, container, resource string }

// devices has the devices of containers. The lists do not change.
type devices map[user][]string

// SetDevices sets the devices of plugins, and the containers that have them. The caller sets them before it
// adds allocations. Resources whose devices have no NUMA nodes do not count.
func (s *State) SetDevices(supply map[v1.ResourceName]pod.DeviceSupply) {
	if s.allocator.topology == none {
		return
	}
	every := s.allocator.everyNode()
	for name, of := range supply {
		if of.Layout == nil {
			continue
		}
		resource := string(name)
		n := len(of.Layout.Devices)
		l := &layout{nodes: make(map[string]mask, n), located: make(map[string]bool, n), healthy: make(map[string]bool, n)}
		for id, d := range of.Layout.Devices {
			l.nodes[id], l.located[id], l.healthy[id] = maskOfDevice(d)&every, len(d.NUMA) > 0, d.Healthy
		}
		s.layouts[resource] = l
		for uid, containers := range of.Layout.Users {
			for container, ids := range containers {
				s.held[user{uid, container, resource}] = ids
			}
		}
	}
}

func maskOfDevice(d pod.DevicePlace) (m mask) {
	for _, id := range d.NUMA {
		if id >= 0 && id < 64 {
			m |= maskOf(int(id))
		}
	}
	return m
}

// Reserved returns the devices that are reserved for containers without devices.
func (s *State) Reserved() (all []pod.DeviceReservation) {
	for u, ids := range s.reserved {
		if len(s.held[u]) == 0 {
			all = append(all, pod.DeviceReservation{UID: u.uid, Container: u.container, Resource: u.resource, Devices: ids})
		}
	}
	return all
}

// putDevices adds the devices and NUMA nodes of an allocation. Reserved devices that are not healthy, or that
// another pod has by now, are not reserved any more.
func (s *State) putDevices(uid, container string, has pod.Placement) {
	if s.allocator.topology == none {
		return
	}
	if len(has.NUMA) > 0 {
		s.affinity[user{uid: uid, container: container}] = has.NUMA
	}
	for resource, ids := range has.Devices {
		l := s.layouts[resource]
		if l == nil || len(s.held[user{uid, container, resource}]) > 0 {
			continue
		}
		taken := s.taken(resource, uid)
		if !slices.ContainsFunc(ids, func(id string) bool { return !l.healthy[id] || taken[id] }) {
			s.reserved[user{uid, container, resource}] = ids
		}
	}
}

// placedDevices adds the NUMA nodes and the reserved devices of a pod's containers to out.
func (s *State) placedDevices(uid string, out map[string]pod.Placement) {
	for u, nodes := range s.affinity {
		if u.uid == uid {
			p := out[u.container]
			p.NUMA = nodes
			out[u.container] = p
		}
	}
	for u, ids := range s.reserved {
		if u.uid == uid {
			p := out[u.container]
			if p.Devices == nil {
				p.Devices = map[string][]string{}
			}
			p.Devices[u.resource] = ids
			out[u.container] = p
		}
	}
}

// taken returns the devices of a resource that containers have or that are reserved, except those of the
// pod except.
func (s *State) taken(resource, except string) map[string]bool {
	all := map[string]bool{}
	for _, of := range []devices{s.held, s.reserved} {
		for u, ids := range of {
			if u.resource != resource || u.uid == except {
				continue
			}
			for _, id := range ids {
				all[id] = true
			}
		}
	}
	return all
}

// devicesOf returns the devices of a container: those that it has, else those that are reserved for it.
func (s *State) devicesOf(u user) []string {
	if ids := s.held[u]; len(ids) > 0 {
		return ids
	}
	return s.reserved[u]
}

// freeDevices returns the healthy devices of a resource that are neither in use nor reserved, sorted.
func (s *State) freeDevices(resource string) (ids []string) {
	taken := s.taken(resource, "")
	for id, healthy := range s.layouts[resource].healthy {
		if healthy && !taken[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// requests returns how many devices of each resource with a layout a container requests.
func (s *State) requests(p *v1.Pod, c *v1.Container) map[string]int {
	if len(s.layouts) == 0 {
		return nil
	}
	asks := pod.DeviceRequests(p, c)
	maps.DeleteFunc(asks, func(resource string, _ int) bool { return s.layouts[resource] == nil })
	return asks
}

// requestsOfPod returns the largest numbers of devices that a pod needs at one time.
func (s *State) requestsOfPod(p *v1.Pod) map[string]int {
	sidecars, most, regular := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		for resource, n := range s.requests(p, c) {
			if pod.Restartable(c) {
				sidecars[resource] += n
			}
			most[resource] = max(most[resource], sidecars[resource])
			if !pod.Restartable(c) {
				most[resource] = max(most[resource], sidecars[resource]+n)
			}
		}
	}
	for i := range p.Spec.Containers {
		for resource, n := range s.requests(p, &p.Spec.Containers[i]) {
			regular[resource] += n
		}
	}
	for resource, n := range regular {
		most[resource] = max(most[resource], n+sidecars[resource])
	}
	return most
}

// release frees the devices of a pod's containers that request another number of them: they get others.
func (s *State) release(uid string, p *v1.Pod) {
	for _, of := range []devices{s.held, s.reserved} {
		maps.DeleteFunc(of, func(u user, ids []string) bool {
			if u.uid != uid || u.container == "" {
				return false
			}
			c := named(p, u.container)
			return c == nil || pod.DeviceRequests(p, c)[u.resource] != len(ids)
		})
	}
}

// requestsOthers reports whether a container of both pods requests another number of devices in the second.
func (s *State) requestsOthers(was, p *v1.Pod) bool {
	return slices.ContainsFunc(containers(p), func(c *v1.Container) bool {
		before := named(was, c.Name)
		return before != nil && !maps.Equal(s.requests(was, before), s.requests(p, c))
	})
}

// keepDevices adds the devices that containers of an edited pod have in the state from, and keep.
func (s *State) keepDevices(from *State, uid string, p *v1.Pod) {
	for u, ids := range from.held {
		if u.uid == uid && (u.container == "" || named(p, u.container) != nil) {
			s.held[u] = ids
		}
	}
	s.release(uid, p)
}

// deviceHints returns the sets of NUMA nodes on which a container, or with c == nil the whole pod, can have
// its devices, by resource (C-1.46.11). reuse has the devices of the pod's init containers, which have exited
// when this container starts.
func (s *State) deviceHints(uid string, p *v1.Pod, c *v1.Container, reuse map[string][]string) hints {
	asks, of := s.requestsOfPod(p), containers(p)
	if c != nil {
		asks, of = s.requests(p, c), []*v1.Container{c}
	}
	out := hints{}
	for resource, n := range asks {
		l := s.layouts[resource]
		var has []string
		for _, one := range of {
			has = append(has, s.devicesOf(user{uid, one.Name, resource})...)
		}
		slices.Sort(has)
		has = slices.Compact(has)
		switch {
		case len(has) == n:
			out[resource] = l.hints(has, nil, n)
		case c == nil:
			out[resource] = l.hints(s.freeDevices(resource), has, n) // has: after an edit
		default:
			out[resource] = l.hints(s.freeDevices(resource), reuse[resource], n)
		}
	}
	return out
}

// hints returns a hint for each set of NUMA nodes that has n devices in free and reuse, and all devices of
// reuse whose nodes the plugin names. A device is on a set if one of its nodes is. A set is preferred if it is
// as small as the smallest set with n listed devices.
func (l *layout) hints(free, reuse []string, n int) []hint {
	all, available, again := map[mask]int{}, map[mask]int{}, map[mask]int{}
	var nodes mask
	for _, m := range l.nodes {
		all[m]++
		nodes |= m
	}
	for _, id := range free {
		available[l.nodes[id]]++
	}
	for _, id := range reuse {
		if l.located[id] {
			again[l.nodes[id]]++
		}
	}
	least := nodes.count()
	out := []hint{}
	masks(nodes.ids(), func(m mask) {
		listed, matching, complete := 0, 0, true
		for at, devices := range all {
			if at&m != 0 {
				listed += devices
				matching += available[at]
			}
		}
		for at, devices := range again {
			complete = complete && at&m != 0
			matching += devices
		}
		if listed >= n {
			least = min(least, m.count())
		}
		if complete && matching >= n {
			out = append(out, hint{nodes: m})
		}
	})
	for i := range out {
		out[i].preferred = out[i].nodes.count() == least
	}
	return out
}

// allocateDevices reserves devices for a container, and stores the NUMA nodes of the hint.
func (s *State) allocateDevices(uid string, p *v1.Pod, c *v1.Container, at hint, reuse map[string][]string) error {
	if s.allocator.topology == none || len(pod.DeviceRequests(p, c)) == 0 {
		return nil
	}
	if place := (user{uid: uid, container: c.Name}); at.any {
		delete(s.affinity, place)
	} else {
		s.affinity[place] = at.nodes.ids()
	}
	asks := s.requests(p, c)
	for _, resource := range slices.Sorted(maps.Keys(asks)) {
		u := user{uid, c.Name, resource}
		if len(s.devicesOf(u)) == 0 {
			ids, err := s.pick(resource, asks[resource], at, reuse[resource])
			if err != nil {
				return err
			}
			s.reserved[u] = ids
		}
		reuse[resource] = handOver(reuse[resource], s.devicesOf(u), lasts(p, c))
	}
	return nil
}

// handOver returns the devices that the next container of a pod uses again, after one that has ids.
func handOver(reuse, ids []string, lasts bool) []string {
	rest := slices.DeleteFunc(slices.Clone(reuse), func(id string) bool { return slices.Contains(ids, id) })
	if !lasts {
		rest = slices.Concat(rest, ids)
	}
	return rest
}

// Settle changes the reservations of an admitted pod to the devices that its init containers have got. Their
// plugin may prefer others than the reserved ones.
func (s *State) Settle(p *v1.Pod) {
	reuse := map[string][]string{}
	for _, c := range containers(p) {
		for resource, n := range s.requests(p, c) {
			u := user{string(p.UID), c.Name, resource}
			if old := s.reserved[u]; len(old) > 0 && len(s.held[u]) == 0 {
				ids := s.layouts[resource].usable(reuse[resource])
				for _, id := range old {
					if !slices.Contains(ids, id) {
						ids = append(ids, id)
					}
				}
				s.reserved[u] = slices.Sorted(slices.Values(ids[:min(n, len(ids))]))
			}
			reuse[resource] = handOver(reuse[resource], s.devicesOf(u), lasts(p, c))
		}
	}
}

// LacksDevices reports whether a container of an admitted pod neither has devices that it requests nor has
// them reserved: they are not healthy any more, or another pod has got them.
func (s *State) LacksDevices(p *v1.Pod) bool {
	return slices.ContainsFunc(containers(p), func(c *v1.Container) bool {
		for resource := range s.requests(p, c) {
			if len(s.devicesOf(user{string(p.UID), c.Name, resource})) == 0 {
				return true
			}
		}
		return false
	})
}

// usable returns the healthy devices of a list, sorted.
func (l *layout) usable(ids []string) []string {
	return slices.DeleteFunc(slices.Sorted(slices.Values(ids)), func(id string) bool { return !l.healthy[id] })
}

// pick chooses n devices, sorted: first those of reuse, then those of the hint's nodes, then others, and at last
// those whose nodes are not known (C-1.46.12).
func (s *State) pick(resource string, n int, at hint, reuse []string) ([]string, error) {
	l := s.layouts[resource]
	ids := l.usable(reuse)
	ids = ids[:min(n, len(ids))]
	var aligned, others, unknown []string
	free := s.freeDevices(resource)
	if rest := n - len(ids); len(free) < rest {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", resource, rest, len(free))
	}
	for _, id := range free {
		switch {
		case at.any || l.nodes[id]&at.nodes != 0:
			aligned = append(aligned, id)
		case l.located[id]:
			others = append(others, id)
		default:
			unknown = append(unknown, id)
		}
	}
	ids = slices.Concat(ids, aligned, others, unknown)[:n]
	slices.Sort(ids)
	return ids, nil
}
