package device

import "github.com/nodectl/nodectl/pkg/pod"

// Reserve replaces the devices that admission reserves for containers which are not created yet. Other
// containers get a reserved device only if no other device is left for them.
func (p *Plugins) Reserve(all []pod.DeviceReservation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = all
}

// reservedFor returns the devices of a resource that are reserved for other containers than this one.
func reservedFor(all []pod.DeviceReservation, uid, container, resource string) map[string]bool {
	others := make(map[string]bool)
	var own []string
	for _, r := range all {
		switch {
		case r.Resource != resource:
		case r.UID == uid && r.Container == container:
			own = r.Devices
		default:
			for _, id := range r.Devices {
				others[id] = true
			}
		}
	}
	for _, id := range own {
		delete(others, id) // a container that starts later uses it again
	}
	return others
}
