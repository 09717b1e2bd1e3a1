// Package device gives containers the devices of device plugins.
//
// Plugins register on the kubelet's sockets and list their devices. Choose decides, without I/O,
// which devices a container gets. They are an annotation of the container in the runtime, where the
// next agent reads them: this package writes no checkpoint file.
//
// A plugin that lies, hangs or floods harms only the pods that request its resource.
package device

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Device is one device in the list of its plugin.
type Device struct {
	ID      string
	Healthy bool
	NUMA    []int64 // its NUMA nodes; empty: unknown
}

// Ask is the request of a container for one resource, with the state that Choose needs.
type Ask struct {
	Resource string
	Number   int
	// Held are the devices that the container had before a restart, or that are reserved for it.
	// Choose ignores them unless their number is the requested one.
	Held []string
	// Reusable are the devices of earlier init containers of the pod that no other container of the
	// pod has. Choose takes them first.
	Reusable []string
	// InUse are the devices of all containers of the node.
	InUse map[string]bool
	// Devices are the devices that the plugin lists. Registered says that the plugin is connected.
	Devices    map[string]Device
	Registered bool
	// Reserved are devices that admission reserves for other containers. Choose takes them only if the
	// others are too few.
	Reserved map[string]bool
	// Near are the NUMA nodes whose devices the container gets first; empty: it gets any. With Only, it
	// gets no devices of other nodes.
	Near []int
	Only bool
	// Unknown is the reason why the devices of running containers are not known yet; else "".
	Unknown string
}

// Choice is the result of Choose.
type Choice struct {
	Devices []string // sorted if Missing is 0; else the devices chosen so far
	// Missing is the number of devices of Free that the container still gets. Complete chooses them
	// by the preference of the plugin.
	Missing int
	Free    []string // in the order in which Complete takes them
	Kept    bool     // the devices are Ask.Held
	Reason  string   // the reason, for the log
}

// Choose returns the devices for a container by the kubelet's rules. An error is a *pod.StartError.
// Its reason is ReasonWaitsForDevices if the container can get devices once the plugin is back or a
// device is healthy again. Otherwise it is ReasonUnexpectedAdmission.
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
	if rest := slices.DeleteFunc(slices.Clone(c.Free), func(id string) bool { return ask.Reserved[id] }); c.enough(ask, rest) {
		c.Free = rest
	}
	if !c.enough(ask, c.Free) {
		return Choice{}, waits("too few healthy devices %s are free on NUMA nodes %s", ask.Resource, strings.Trim(fmt.Sprint(ask.Near), "[]"))
	}
	return c.near(ask), nil
}

// enough reports whether the container can get its missing devices from these free ones.
func (c Choice) enough(ask Ask, free []string) bool {
	if !ask.Only || len(ask.Near) == 0 || !hasNodes(ask.Devices) {
		return len(free) >= c.Missing
	}
	near := 0
	for _, id := range free {
		if ask.isNear(id) {
			near++
		}
	}
	return near >= c.Missing
}

// isNear reports whether a device is on one of the nodes in Near.
func (ask Ask) isNear(id string) bool {
	return slices.ContainsFunc(ask.Devices[id].NUMA, func(n int64) bool { return slices.Contains(ask.Near, int(n)) })
}

// hasNodes reports whether the plugin lists a device with a NUMA node.
func hasNodes(all map[string]Device) bool {
	for _, d := range all {
		if len(d.NUMA) > 0 {
			return true
		}
	}
	return false
}

// near returns the choice with the devices of the NUMA nodes that the container has to be near. If these are
// more than it needs, only they are free. Else it gets all of them, and then devices of other nodes, and at
// last those without nodes. If no device of the resource has nodes, the choice does not change.
func (c Choice) near(ask Ask) Choice {
	var near, far, unknown []string
	for _, id := range c.Free {
		switch {
		case len(ask.Devices[id].NUMA) == 0:
			unknown = append(unknown, id)
		case ask.isNear(id):
			near = append(near, id)
		default:
			far = append(far, id)
		}
	}
	switch {
	case len(ask.Near) == 0 || len(near) == 0 && len(far) == 0:
		return c
	case len(near) > c.Missing:
		c.Free = near
		return c
	case len(near) > 0:
		c.Reason = "on the NUMA nodes that the topology policy chose"
	}
	c.Devices, c.Missing = slices.Sorted(slices.Values(slices.Concat(c.Devices, near))), c.Missing-len(near)
	c.Free = slices.Concat(far, unknown)
	return c
}

// Complete returns the choice with its missing devices. It takes the free devices that the plugin
// prefers first, in the plugin's order, and then the others. It ignores preferred devices that are
// not free.
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
