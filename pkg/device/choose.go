// Package device gives containers the devices of device plugins.
//
// Plugins register on the kubelet's sockets and list their devices. Choose decides, without I/O,
// which devices a container gets. The runtime keeps them with the container, and the next agent
// reads them from the runtime: this package writes no file with devices.
//
// The one rule: a plugin that lies, hangs or floods harms only the pods that ask for its
// resource.
package device

import (
	"fmt"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Device is one device as its plugin lists it.
type Device struct {
	ID      string
	Healthy bool
	NUMA    []int64 // the NUMA nodes near to it; empty: not known
}

// Ask is the request of a container for one resource, and the state that decides about it.
type Ask struct {
	Resource string
	Number   int
	// Held are the devices that the container had before it was restarted, or that were
	// reserved for it. They count only if they are as many as requested.
	Held []string
	// Reusable are the devices that init containers of the pod had, and that no other container
	// of the pod has: they are taken first.
	Reusable []string
	// InUse are the devices of all containers of the node.
	InUse map[string]bool
	// Devices are those that the plugin lists; Registered says that it is connected.
	Devices    map[string]Device
	Registered bool
	// Unknown says why the devices of running containers are not known yet; "" when they are.
	Unknown string
}

// Choice is the result of Choose.
type Choice struct {
	Devices []string // sorted if Missing is 0; else those that are certain
	// Missing is how many more of Free the container gets: Complete takes those that the plugin
	// prefers.
	Missing int
	Free    []string // sorted
	Kept    bool     // the devices are those that the container had
	Reason  string   // why, for a person
}

// Choose returns the devices for a container by the kubelet's rules. An error is a
// *pod.StartError: its reason is ReasonWaitsForDevices if the container can have its devices
// once the plugin is back or a device is healthy again, else ReasonUnexpectedAdmission.
func Choose(ask Ask) (Choice, error) {
	healthy := func(id string) bool { return ask.Devices[id].Healthy }
	switch {
	case !ask.Registered:
		return Choice{}, waits("cannot allocate unregistered device %s", ask.Resource)
	case !anyHealthy(ask.Devices):
		return Choice{}, waits("no healthy devices present; cannot allocate unhealthy devices %s", ask.Resource)
	}
	if len(ask.Held) == ask.Number {
		if slices.ContainsFunc(ask.Held, func(id string) bool { return !healthy(id) }) {
			return Choice{}, waits("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", ask.Resource)
		}
		return Choice{Devices: slices.Sorted(slices.Values(ask.Held)), Kept: true, Reason: "the container had them"}, nil
	}
	if ask.Unknown != "" {
		return Choice{}, waits("%s", ask.Unknown)
	}
	c := Choice{Missing: ask.Number, Reason: "free and healthy"}
	for _, id := range slices.Sorted(slices.Values(ask.Reusable)) {
		if c.Missing > 0 && healthy(id) {
			c.Devices, c.Missing = append(c.Devices, id), c.Missing-1
			c.Reason = "an init container of the pod had them"
		}
	}
	if c.Missing == 0 {
		return c, nil
	}
	for id := range ask.Devices {
		if healthy(id) && !ask.InUse[id] && !slices.Contains(c.Devices, id) {
			c.Free = append(c.Free, id)
		}
	}
	slices.Sort(c.Free)
	if len(c.Free) < c.Missing {
		return Choice{}, unexpected(fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", ask.Resource, c.Missing, len(c.Free)))
	}
	return c, nil
}

// Complete returns the choice with its missing devices: first the free ones that the plugin
// prefers, in its order, then the others. It ignores preferred devices that are not free.
func (c Choice) Complete(preferred []string) Choice {
	devices := slices.Clone(c.Devices)
	for i, list := range [][]string{preferred, c.Free} {
		for _, id := range list {
			if c.Missing > 0 && slices.Contains(c.Free, id) && !slices.Contains(devices, id) {
				devices, c.Missing = append(devices, id), c.Missing-1
				if i == 0 {
					c.Reason = "the plugin prefers them"
				}
			}
		}
	}
	slices.Sort(devices)
	c.Devices = devices
	return c
}

func anyHealthy(all map[string]Device) bool {
	for _, d := range all {
		if d.Healthy {
			return true
		}
	}
	return false
}

// waits returns the error of a container that waits for its plugin.
func waits(format string, args ...any) error {
	return &pod.StartError{Reason: pod.ReasonWaitsForDevices, Err: fmt.Errorf("waiting for a device plugin: "+format, args...)}
}

// unexpected returns the error of a container that cannot get its devices, in the kubelet's
// words.
func unexpected(err error) error {
	return &pod.StartError{Reason: pod.ReasonUnexpectedAdmission, Err: fmt.Errorf("Allocate failed due to %w, which is unexpected", err)}
}
