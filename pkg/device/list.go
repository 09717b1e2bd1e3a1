package device

import (
	"cmp"
	"maps"
	"slices"
)

// Resource is an extended resource with its devices.
type Resource struct {
	Name      string
	Connected bool   // its plugin is connected
	Socket    string // the socket of its plugin
	Devices   []Listed
}

// Listed is a device, and the containers that have it: one container, or several containers of one
// pod that run one after another.
type Listed struct {
	Device
	Listed bool // its plugin lists it
	Users  []User
}

// User is a container that has a device.
type User struct{ Namespace, Pod, Container string }

// Resources lists the resources that plugins serve or served, sorted by name. Their devices are
// sorted by ID.
func (p *Plugins) Resources() []Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Resource
	for _, name := range slices.Sorted(maps.Keys(p.resources)) {
		r := p.resources[name]
		one := Resource{Name: name, Connected: r.plugin != nil}
		if r.plugin != nil {
			one.Socket = r.plugin.socket
		}
		devices := make(map[string]*Listed, len(r.devices))
		for id, d := range r.devices {
			devices[id] = &Listed{Device: d, Listed: true}
		}
		p.claims.each(name, func(of *podClaims, container, id string) {
			if devices[id] == nil {
				devices[id] = &Listed{Device: Device{ID: id}}
			}
			devices[id].Users = append(devices[id].Users, User{of.key.Namespace, of.key.Name, container})
		})
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			d := devices[id]
			slices.SortFunc(d.Users, func(a, b User) int {
				return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
			})
			one.Devices = append(one.Devices, *d)
		}
		all = append(all, one)
	}
	return all
}
